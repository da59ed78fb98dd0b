"""The memory of a node: what is held is what was given, and no more than there is room for."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster import memory as memory_module
from headrace.cluster.memory import PoolMemory, Reading
from headrace.cluster.messages import Node, View
from headrace.cluster.placement import Placement

BUDGET = 1 << 16
SMALL = 1 << 14


def data_of(dataset: str, sample: int, nbytes: int) -> bytes:
    return (f"{dataset}{sample} ".encode() * nbytes)[:nbytes]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "ahead", "read", "drop"]),
            st.sampled_from("ab"),
            st.integers(0, 15),
            st.integers(1, 9000),
        ),
        max_size=60,
    )
)
def test_what_is_read_is_what_was_kept_and_no_budget_is_exceeded(
    steps: list[tuple[str, str, int, int]],
) -> None:
    memory = PoolMemory(BUDGET)
    for name in "ab":
        memory.open(name, 16)
    kept: dict[tuple[str, int], bytes] = {}
    ahead: dict[tuple[str, int], bytes] = {}
    for what, dataset, sample, nbytes in steps:
        key, data = (dataset, sample), data_of(dataset, sample, nbytes)
        if what == "keep":
            before = key in kept
            if memory.keep(dataset, sample, data) and not before:
                kept[key] = data
        elif what == "ahead":
            room = memory.room_for(dataset, nbytes)
            if room and memory.keep_ahead(dataset, sample, data):
                ahead.setdefault(key, data)
        elif what == "drop":
            memory.drop_ahead(dataset)
            ahead = {one: value for one, value in ahead.items() if one[0] != dataset}
        else:
            reading = memory.read(dataset, [sample])
            found = reading.samples[0]
            wanted = kept.get(key) or ahead.pop(key, None)
            assert (None if found is None else bytes(found)) == wanted
            reading.done()
        # (one that waits may always come in, however little room there is)
        assert sum(map(len, ahead.values())) - max(map(len, ahead.values()), default=0) < BUDGET // 16
        assert sum(map(len, kept.values())) <= BUDGET - BUDGET // 16
        assert memory.used == sum(map(len, kept.values())) + sum(map(len, ahead.values()))
        missing = set(memory.missing(dataset, np.arange(16)).tolist())
        assert missing == {one for one in range(16) if (dataset, one) not in {**kept, **ahead}}


@given(
    views=st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    asked=st.lists(st.lists(st.integers(0, 39), max_size=40), min_size=4, max_size=4),
)
def test_what_counts_is_what_is_held_of_a_nodes_own_part(
    views: list[set[str]], weights: list[int], asked: list[list[int]]
) -> None:
    nodes = {name: Node(name, name, "", 0, "", weight) for name, weight in zip("abc", weights, strict=True)}
    memories = {name: PoolMemory(BUDGET) for name in nodes}
    for number, (names, samples) in enumerate(zip(views, asked, strict=False), 1):
        view = View(number, tuple(nodes[name] for name in sorted(names)))
        for name in names:
            memories[name].see(name, view)
            memories[name].see(name, View(0, tuple(nodes.values())))  # (it comes late)
            memories[name].open("data", 40)
        places = Placement(view, "data", 40).nodes_of(np.array(samples, np.int64)).tolist()
        for sample, place in zip(samples, places, strict=True):
            memories[view.nodes[place].id].keep("data", sample, data_of("data", sample, 50 + sample))
        every = Placement(view, "data", 40).nodes_of(np.arange(40))
        for place, node in enumerate(view.nodes):
            held = memories[node.id]._held["data"].starts >= 0
            mine = np.flatnonzero(held & (every == place))
            assert memories[node.id].describe()["data"] == (40, len(mine), int((50 + mine).sum()))
            assert set(mine.tolist()) >= {one for one, at in zip(samples, places, strict=True) if at == place}
    alone = memories["a"]
    alone.see("a", View(9, (nodes["b"],)))
    alone.open("data", 40)
    assert alone.describe()["data"][1] == alone._held["data"].count, "whoever is in no view has no part"
    for memory in memories.values():
        memory.close()


def test_a_dataset_that_nobody_uses_makes_room_for_another(monkeypatch: object) -> None:
    memory = PoolMemory(BUDGET)
    for name in "abc":
        memory.open(name, 64)
    for sample in range(64):
        memory.keep("a" if sample % 2 else "b", sample, bytes(2048))
    assert not memory.keep("c", 0, bytes(2048)), "both were used just now"
    memory._held["a"].used -= memory_module._QUIET + 1
    reading = memory.read("a", [1])
    memory._held["a"].used -= memory_module._QUIET + 1
    assert not memory.keep("c", 0, bytes(2048)), "somebody reads from it"
    reading.done()
    assert memory.keep("c", 0, bytes(2048))
    held = {name: count for name, (_, count, _) in memory.describe().items()}
    assert held["a"] == 0 and held["b"] > 0 and held["c"] == 1
    assert memory.read("a", [1]).samples == [None]


def test_what_waits_for_a_job_that_is_gone_makes_room_for_another_and_does_not_come_back() -> None:
    memory = PoolMemory(BUDGET)
    for name in "ab":
        memory.open(name, 64)
    for sample in range(64):
        memory.keep("a", sample, bytes(2048))
    for sample in range(40, 44):
        memory.keep_ahead("a", sample, bytes(1024))
    assert not memory.room_for("b", 1024), "the job may go on"
    memory._held["a"].used -= memory_module._QUIET + 1
    assert memory.room_for("b", 1024) == 4
    assert not memory.room_for("a", 1024), "nobody reads it ahead again, in the way of the other"
    assert memory.keep("b", 0, bytes(2048)) and not memory.room_for("a", 1024)
    memory.read("a", [1]).done()
    assert memory.room_for("a", 1024), "the job goes on after all"


def test_a_dataset_that_nobody_uses_is_forgotten() -> None:
    memory = PoolMemory(BUDGET)
    for name in "abc":
        memory.open(name, 64)
        memory.keep(name, 1, bytes(2048))
    memory.keep_ahead("b", 2, bytes(1024))
    assert memory.forget() is None, "all were used just now"
    reading = memory.read("a", [1])
    for held in memory._held.values():
        held.used -= memory_module._QUIET + 1
    memory._held["b"].used -= 1.0
    assert memory.forget() == "b" and memory.used == 4096
    assert memory.read("b", [1, 2]).samples == [None, None]
    assert memory.missing("b", np.arange(64)).tolist() == list(range(64))
    assert not memory.keep("b", 1, bytes(8)) and not memory.room_for("b", 8)
    assert memory.forget() == "c" and memory.forget() is None, "somebody reads from the third"
    assert bytes(reading.samples[0] or b"") == bytes(2048)
    reading.done()
    memory.open("b", 64)
    assert memory.keep("b", 1, bytes(2048)) and memory.room_for("b", 8)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "put", "put", "find", "begin", "end", "drop"]),
            st.integers(0, 15),
            st.integers(1, 9000),
        ),
        max_size=80,
    )
)
def test_what_is_there_by_key_gives_way_and_is_whole_while_it_is_there(
    steps: list[tuple[str, int, int]],
) -> None:
    memory = PoolMemory(SMALL)
    memory.open("a", 16)
    held: dict[int, bytes] = {}
    put: dict[bytes, bytes] = {}
    readings: list[tuple[Reading, bytes]] = []
    for what, number, nbytes in steps:
        key, group = bytes([number]) * 16, f"g{number % 2}"
        if what == "keep" and number not in held:
            data = data_of("a", number, nbytes)
            if memory.keep("a", number, data):
                held[number] = data
            elif not readings:
                # (where something lies between two that stay, there may be no range that is large enough)
                assert memory.by_key == (0, 0), "nothing that is there by key keeps a sample out"
        elif what == "put":
            data = data_of(group, number, nbytes)
            done = memory.put(group, key, memoryview(data))
            if done:
                put[key] = data
        elif what == "find":
            reading = memory.find(group, [key, bytes(15) + b"x"])
            assert reading.samples[1] is None
            assert memory.lengths(group, [key]) == [
                -1 if reading.samples[0] is None else len(reading.samples[0])
            ]
            if reading.samples[0] is not None:
                assert bytes(reading.samples[0]) == put[key]
            reading.done()
        elif what == "begin":
            reading = memory.find(group, [key])
            if reading.samples[0] is not None:
                readings.append((reading, bytes(reading.samples[0])))
            else:
                reading.done()
        elif what == "end" and readings:
            readings.pop(0)[0].done()
        elif what == "drop":
            memory.drop(group, [key])
            assert memory.lengths(group, [key]) == [-1], "whoever reads it"
        for reading, data in readings:
            found = reading.samples[0]
            assert found is not None and bytes(found) == data, "what is being sent stays where it is"
        for sample, data in held.items():
            reading = memory.read("a", [sample])
            assert bytes(reading.samples[0] or b"") == data
            reading.done()
        count, total = memory.by_key
        there = {id(kept): kept.length for one, _ in readings for kept in one._held if kept.gone}
        assert memory.used == total + sum(map(len, held.values())) + sum(there.values()) <= SMALL
        assert count <= len(put)


def test_what_gives_way_is_not_looked_for_among_all_there_is() -> None:
    """There may be millions by key, and nothing else is done meanwhile."""
    looked = 0

    class Counting(memory_module.Kept):
        @property
        def reading(self) -> int:
            nonlocal looked
            looked += 1
            return 0

        @reading.setter
        def reading(self, value: int) -> None:
            pass

    memory = PoolMemory(1 << 20)
    memory.open("a", 64)
    number = 0
    with mock.patch.object(memory_module, "Kept", Counting):
        while memory.put("g", number.to_bytes(16, "little"), memoryview(bytes(1024))):
            number += 1
    assert number > 900
    for sample in range(64):
        assert memory.keep("a", sample, bytes(1024))
    assert looked < 64 * 20
    left, nbytes = memory.by_key
    assert left == number - 64 and nbytes == 1024 * left
    assert memory.lengths("g", [one.to_bytes(16, "little") for one in range(64)]) == [-1] * 64, (
        "the first to come"
    )


def test_a_sample_of_a_dataset_takes_the_place_of_what_is_there_by_key() -> None:
    memory = PoolMemory(SMALL)
    memory.open("a", 16)
    for number in range(14):
        assert memory.put("g", bytes([number]) * 16, memoryview(bytes([number]) * 1024))
    assert memory.put("g", b"x" * 16, memoryview(bytes(4096))) is None, "there is no room for it"
    assert memory.room_for("a", 1024) >= 14, "what gives way counts as room"
    reading = memory.find("g", [bytes(16), b"\1" * 16])
    assert memory.keep("a", 3, b"3" * 3000)
    assert memory.by_key == (11, 11 * 1024), "no more than had to, and those first that came first"
    assert [bytes(one or b"") for one in reading.samples] == [bytes(1024), b"\1" * 1024], (
        "not what is being sent"
    )
    assert memory.lengths("g", [bytes([number]) * 16 for number in range(7)]) == [
        1024,
        1024,
        -1,
        -1,
        -1,
        1024,
        1024,
    ]
    reading.done()
    assert all(memory.keep("a", number, bytes(1024)) for number in range(4, 15))
    assert memory.by_key[0] <= 1 and memory.used <= SMALL
    memory.close()


def test_something_else_takes_the_place_of_what_is_dropped_while_it_is_read() -> None:
    memory = PoolMemory(SMALL)
    key, right = b"k" * 16, b"right" * 200
    assert memory.put("g", key, memoryview(b"wrong" * 200))
    one, two = memory.find("g", [key]), memory.find("g", [key])
    memory.drop("g", [key])
    assert memory.put("g", key, memoryview(right)), "at once"
    one.done()
    assert memory.put("g", b"l" * 16, memoryview(b"other" * 200))
    assert bytes(two.samples[0] or b"") == b"wrong" * 200 and memory.used == 3000
    two.done()
    assert memory.by_key == (2, 2000) and memory.used == 2000, "once nobody reads it"
    assert bytes(memory.find("g", [key]).samples[0] or b"") == right
