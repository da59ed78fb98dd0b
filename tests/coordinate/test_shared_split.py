"""How the shared cache is divided by what workers report."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinate.protocol import Finished, decode_request
from headrace.coordinate.shared_split import SharedSplit
from headrace.core.forms import Form
from headrace.planning import Spent
from headrace.simulate import load_scenario, simulate
from tests.coordinate.jobs import Member, World

SIZES = {"decoded": 56_000.0, "augmented": 15_000.0}


def second(storage: float, *, hands: int = 4, cpu: float = 1e-3) -> Spent:
    """What workers report of one second in which storage gave so many bytes, and all were waited for."""
    fetched = int(storage / 5_000)
    return Spent(
        fetch=2.0,
        fetched=fetched,
        fetched_bytes=5_000 * fetched,
        wait_fetch=hands - fetched * cpu,
        decode=0.9 * fetched * cpu,
        augment=0.1 * fetched * cpu,
        decoded=fetched,
        prepared=fetched,
        cpu=fetched * cpu,
    )


def look(shared_split: SharedSplit, now: float, spent: Spent, *, jobs: int = 1, delivered: int = 0) -> bool:
    shared_split.add(spent)
    shared_split.give(delivered or spent.prepared)
    assert shared_split.is_due(now)
    return shared_split.look(now, samples=1000, budget=5_000_000, jobs=jobs, instances=30.0, **SIZES)


def begun(cpus: float = 2.0) -> SharedSplit:
    shared_split = SharedSplit()
    shared_split.cpus = cpus
    assert not shared_split.is_due(0.0)
    return shared_split


def test_nothing_is_divided_until_something_is_known() -> None:
    shared_split = begun()
    assert shared_split.parts(1000) is None and shared_split.terms is None
    assert not look(shared_split, 1.0, Spent())
    assert shared_split.parts(1000) is None


def test_without_processors_nothing_is_planned() -> None:
    shared_split = SharedSplit()
    shared_split.add(second(1e6))
    assert not shared_split.is_due(0.0) and not shared_split.is_due(100.0)


def test_slow_storage_gets_an_encoded_part_and_fast_storage_none() -> None:
    """The encoded dataset fits the cache and the decoded one does not, by far."""
    slow = begun()
    assert look(slow, 1.0, second(500_000.0))
    assert slow.encoded > 0.5 and slow.terms is not None and slow.terms.storage == pytest.approx(500_000.0)
    parts = slow.parts(1_000_000)
    assert parts is not None and sum(parts.values()) == 1_000_000
    assert parts[(Form.ENCODED,)] == int(slow.encoded * 1_000_000)
    fast = begun()
    spent = second(1_900 * 5_000.0)
    spent.fetch, spent.wait_fetch, spent.wait_order = 0.01, 0.0, 1.0
    look(fast, 1.0, spent)
    assert fast.encoded == 0 and fast.parts(1_000_000) is None


def test_it_follows_a_shift_and_does_not_swing() -> None:
    shared_split = begun()
    spent = second(1_900 * 5_000.0)
    spent.fetch, spent.wait_fetch, spent.wait_order = 0.01, 0.0, 1.0
    for now in range(1, 6):
        look(shared_split, float(now), spent)
    assert shared_split.encoded == 0
    changes = [look(shared_split, float(now), second(500_000.0)) for now in range(6, 30)]
    assert shared_split.encoded > 0.5
    assert sum(changes) <= 5 and not any(changes[-8:])


def test_very_slow_storage_is_seen_too() -> None:
    """Ten samples a second: after some seconds that is enough to go by, and remains so."""
    shared_split = begun()
    for now in range(1, 41):
        look(shared_split, float(now), second(50_000.0))
        assert (shared_split.terms is not None) == (now >= 7), now
    assert shared_split.encoded > 0.5


def test_jobs_that_share_keep_room_for_what_is_on_its_way_through() -> None:
    """With three jobs an augmented sample saves two preparations, as long as there is room for it."""
    shared_split = begun()
    look(shared_split, 1.0, second(400_000.0), jobs=3, delivered=240)
    assert shared_split.terms is not None and shared_split.terms.jobs == 3 and shared_split.terms.window == 30
    parts = shared_split.parts(5_000_000)
    assert parts is not None and parts[(Form.DECODED, Form.AUGMENTED)] >= 30 * SIZES["augmented"]


@given(
    st.lists(
        st.builds(
            Spent,
            fetch=st.floats(0, 100),
            decode=st.floats(0, 100),
            augment=st.floats(0, 100),
            wait_fetch=st.floats(0, 100),
            wait_order=st.floats(0, 100),
            fetched=st.integers(0, 10_000),
            fetched_bytes=st.integers(0, 1 << 40),
            decoded=st.integers(0, 10_000),
            prepared=st.integers(0, 10_000),
            cpu=st.floats(0, 100),
            fetch_cpu=st.floats(0, 100),
        ),
        max_size=8,
    ),
    st.integers(1, 9),
)
def test_whatever_is_reported_the_parts_are_the_whole(reports: list[Spent], jobs: int) -> None:
    shared_split = begun()
    for number, spent in enumerate(reports, 1):
        look(shared_split, 1.5 * number, spent, jobs=jobs, delivered=jobs * spent.prepared)
        assert 0 <= shared_split.encoded <= 1
        parts = shared_split.parts(12_345)
        assert parts is None or (sum(parts.values()) == 12_345 and min(parts.values()) >= 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_times_that_cannot_be_are_refused(bad: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_request(msgspec.msgpack.encode(Finished(1, 0, 1, spent=Spent(decode=bad))))


# -- in the commons ----------------------------------------------------------------------------------------


def test_a_sample_that_has_an_encoded_part_lasts_in_one_form() -> None:
    world = World()
    parts = (300 * 8_192, 100 * 57_344)
    member = Member(world, np.arange(600), budget=sum(parts), split=(*parts, 0.0))
    for _ in range(3):
        member.begin()
        while not member.over:
            member.go_on()
            world.settle()
        member.check_epoch()
    shelves = {shelf.form: shelf for shelf in world.state.pool.shelves.values()}
    decoded, encoded = set(shelves[Form.DECODED].cached.ids()), set(shelves[Form.ENCODED].cached.ids())
    assert len(decoded) >= 95 and len(encoded) >= 290
    assert not decoded & encoded


def test_simulated_jobs_on_slow_storage_get_an_encoded_part() -> None:
    """The whole machine: what workers report makes the host divide its cache, and that pays."""
    sets = [
        "data.samples=800",
        "nodes.cache=20%",
        "storage.rate=12MB",
        "jobs.count=3",
        "jobs.epochs=5",
    ]
    auto = simulate(load_scenario("sharing", sets))
    undivided = simulate(load_scenario("sharing", [*sets, "jobs.split=[0, 0.5, 0.5]"]))
    assert auto.images_s > 1.5 * undivided.images_s
