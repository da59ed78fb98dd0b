"""Node servers and those who read by way of them: every sample is right, whoever comes, goes, hangs or lies."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.channel import wire
from headrace.cluster import datasets as datasets_module
from headrace.cluster import fetching, greeting, joining, placement
from headrace.cluster import keyed_tier as keyed_module
from headrace.cluster import members as members_module
from headrace.cluster import memory as memory_module
from headrace.cluster import pooled as pooled_module
from headrace.cluster import server as server_module
from headrace.cluster.fetching import Dataset, Fetcher
from headrace.cluster.joining import Joined
from headrace.cluster.keyed_tier import NodesTier
from headrace.cluster.members import Members, answer, ask, greet
from headrace.cluster.memory import PoolMemory
from headrace.cluster.messages import (
    PROTOCOL,
    Ahead,
    Define,
    GetStatus,
    Given,
    Hello,
    Helper,
    Noted,
    Open,
    Opened,
    Refused,
    Status,
    View,
    Want,
    Watch,
    decode_reply,
    encode,
)
from headrace.cluster.placement import Placement
from headrace.cluster.pooled import PooledSource, define
from headrace.core.errors import HostRefused, OptionError, ProtocolError
from headrace.planning import peers
from headrace.planning.rendezvous import key_of, owners
from headrace.recipes.subset import SubsetSource
from headrace.sampling.uniform import epoch_order
from headrace.sources.source import Source
from tests.cluster.nodes import TOKEN, Servers, forget_members, make_files
from tests.loader.helpers import wait_until

SAMPLES = 120


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_files(tmp_path_factory.mktemp("data"), SAMPLES)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has members of its own. (And files here are faster than any node: mostly that is not to matter.)"""
    monkeypatch.setattr(peers, "_SLACK", 60.0)
    yield
    forget_members()


def introduce(servers: Servers, source: Source) -> PooledSource:
    """The dataset, known to all servers."""
    found = servers.pooled(source)
    members = members_module.members_of(servers.nodes["n0"].socket)
    for node in servers.nodes.values():
        define(members, node, servers.pool(source))
    return found


def read_all(source: PooledSource, plain: Source, seed: int = 0, step: int = 16) -> None:
    """An epoch, each sample of which has to be right."""
    order = np.random.default_rng(seed).permutation(len(plain))
    for first in range(0, len(order), step):
        part = order[first : first + step]
        assert [bytes(blob) for blob in source.read_many(part)] == plain.read_many(part)


@pytest.mark.parametrize("limits", [(2000, 9000), (9000, 2000)], ids=str)
def test_each_job_has_samples_as_large_as_it_allows_whoever_came_first(
    limits: tuple[int, int], servers: Servers, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (1000 if number % 2 else 5000))
    for limit in limits:
        plain: Any = SubsetSource(hr.files(paths, max_bytes=limit), range(30))
        found = introduce(servers, plain)
        wanted, got = plain.read_many(range(30)), found.read_many(range(30))
        for one, other in zip(wanted, got, strict=True):
            assert str(one) == str(other) if isinstance(one, OSError) else one == bytes(other)
        assert sum(isinstance(one, OSError) for one in got) == (15 if limit == 2000 else 0)
    assert servers.fetched == 30, "each was read once, and all of them by servers"


@pytest.mark.parametrize("most", [0, 1 << 26])
def test_places_that_are_kept_are_those_that_were_drawn(
    most: int, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_MOST_KNOWN", most)
    view = View(1, tuple(servers.nodes.values()))
    keys, weights = [key_of(one.id) for one in view.nodes], [float(one.memory) for one in view.nodes]
    every = np.arange(SAMPLES)
    wanted = owners(every, key_of("data"), keys, weights)
    found = Placement(view, "data", SAMPLES)
    for part in (every[5:50], every[60:20:-3], every[:0], every, every[[7, 7, 119]]):
        assert (found.nodes_of(part) == wanted[part]).all()
    assert (Placement(View(1), "data", SAMPLES).nodes_of(every) == -1).all()


def test_places_stay_where_only_helpers_come_and_go(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    server, members = servers.servers["n1"], members_module.members_of(servers.nodes["n0"].socket)
    with members.lent(servers.nodes["n1"]) as connection:
        ask(connection, Ahead(source.fingerprint(), 1, 0), 5.0)
    read_all(found, source)
    first, reading = found._placement, server._datasets._preloads[source.fingerprint()][1]
    assert first is not None
    servers.nodes["n1"] = msgspec.structs.replace(servers.nodes["n1"], helpers=(Helper(7400, "its"),))
    view = servers.tell()
    assert wait_until(lambda: members.view.number == view.number)
    read_all(found, source)
    second = found._placement
    assert second is not None and second.view == view and second._known is first._known
    assert server._datasets._preloads[source.fingerprint()][1] is reading, "it does not begin anew"
    servers.add("n3")
    view = servers.tell()
    assert wait_until(lambda: members.view.number == view.number)
    read_all(found, source)
    third = found._placement
    assert third is not None and third._known is not first._known
    assert (third.nodes_of(np.arange(SAMPLES)) == 3).any()
    assert server._datasets._preloads[source.fingerprint()][1] is not reading


def test_who_watches_is_told_of_a_view_once_and_then_that_somebody_is_there(servers: Servers) -> None:
    connection = wire.connect_unix(servers.nodes["n0"].socket, 5.0)
    greet(connection, "")
    connection.send(encode(Watch()), seconds=5.0)
    said = [answer(connection, 10.0)[0] for _ in range(3)]
    assert isinstance(said[0], View) and said[1:] == [Noted(), Noted()]
    view = servers.tell()
    while (last := answer(connection, 10.0)[0]) == Noted():
        pass
    assert last == view
    connection.close()


# -- when all is well -----------------------------------------------------------------------------------------


def test_what_was_read_ahead_is_not_asked_for_again(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    order = np.random.default_rng(1).permutation(SAMPLES)
    found.read_ahead(order[:24])
    assert found.take_pooled().samples == 24
    elsewhere: list[Any] = []
    # (where reading takes long, whoever fetches has other threads read)
    thread = threading.Thread(target=lambda: elsewhere.extend(found.read_many(order[:8])))
    thread.start()
    thread.join()
    assert found.take_pooled().samples == 0
    assert [bytes(blob) for blob in elsewhere] == source.read_many(order[:8])
    # (the first piece was used up, and the second has some that were not read, and one that was used up)
    pieces = ((order[:8], 8), (np.append(order[8:20], [*order[30:33], order[0]]), 4), (order[20:40], 16))
    for piece, asked in pieces:
        assert [bytes(blob) for blob in found.read_many(piece)] == source.read_many(piece)
        assert found.take_pooled().samples == asked
    # What one thread reads ahead takes the place of what it has read ahead before, and of nobody else's.
    thread = threading.Thread(target=lambda: found.read_ahead(order[40:48]))
    thread.start()
    thread.join()
    found.read_ahead(order[48:56])
    found.read_ahead(order[56:64])
    found.take_pooled()
    for piece, asked in ((order[40:48], 0), (order[48:56], 8), (order[56:64], 0)):
        assert [bytes(blob) for blob in found.read_many(piece)] == source.read_many(piece)
        assert found.take_pooled().samples == asked


def test_storage_is_read_once_whoever_asks_and_however_often(servers: Servers, source: Source) -> None:
    first = introduce(servers, source)
    others = [servers.pooled(source, at) for at in ("n1", "n2")]
    threads = [
        threading.Thread(target=read_all, args=(one, source, seed))
        for seed, one in enumerate([first, *others, first])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert servers.fetched == SAMPLES
    first.take_pooled()
    read_all(first, source, 9)
    assert servers.fetched == SAMPLES
    taken = first.take_pooled()
    assert (taken.samples, taken.kept) == (SAMPLES, SAMPLES)
    assert taken.nbytes == sum(map(len, source.read_many(range(SAMPLES))))
    assert first.take_pooled().samples == 0
    held = [server.status().datasets[0].held for server in servers.servers.values()]
    assert sum(held) == SAMPLES and min(held) > SAMPLES // 6


def test_a_dataset_larger_than_all_memory_is_read_once_an_epoch(tmp_path: Path, source: Source) -> None:
    servers = Servers(tmp_path, memory=64 << 10)
    try:
        found = introduce(servers, source)
        for epoch in range(3):
            before = servers.fetched
            read_all(found, source, epoch)
            assert servers.fetched - before <= SAMPLES
        assert all(server.memory.used <= 64 << 10 for server in servers.servers.values())
        assert servers.fetched < 3 * SAMPLES, "a part of it is held"
    finally:
        servers.close()


def test_samples_come_in_before_they_are_asked_for(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    members = members_module.members_of(servers.nodes["n0"].socket)
    for node in servers.nodes.values():
        with members.lent(node) as connection:
            ask(connection, Ahead(source.fingerprint(), 1, 0), 5.0)
    assert wait_until(lambda: servers.fetched == SAMPLES)
    found.take_pooled()
    read_all(found, source)
    assert found.take_pooled().kept == SAMPLES and servers.fetched == SAMPLES


def test_what_has_no_room_waits_for_its_use_and_is_not_read_twice(tmp_path: Path, source: Source) -> None:
    servers = Servers(tmp_path, count=1, memory=96 << 10)
    try:
        found = introduce(servers, source)
        (server,) = servers.servers.values()
        members = members_module.members_of(servers.nodes["n0"].socket)
        for epoch in range(2):
            before = servers.fetched
            with members.lent(servers.nodes["n0"]) as connection:
                ask(connection, Ahead(source.fingerprint(), 5, epoch), 5.0)
            order = epoch_order(SAMPLES, 5, epoch)
            for first in range(0, SAMPLES, 8):
                time.sleep(0.01)  # (a loop that trains)
                part = order[first : first + 8]
                assert [bytes(one) for one in found.read_many(part)] == source.read_many(part)
            time.sleep(0.1)
            assert servers.fetched - before <= SAMPLES
            assert server.memory.used <= (96 << 10) + 4000, "one sample more than its room, at most"
    finally:
        servers.close()


def test_what_was_asked_for_before_its_epoch_was_said_to_begin_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_SLACK", 16)
    monkeypatch.setattr(memory_module, "_AHEAD", 4)
    source = make_files(tmp_path / "many", 400)
    (tmp_path / "nodes").mkdir()
    servers = Servers(tmp_path / "nodes", count=1, memory=96 << 10)
    try:
        found = introduce(servers, source)
        members = members_module.members_of(servers.nodes["n0"].socket)
        order = epoch_order(400, 5, 1)
        found.read_many(order[100:140])
        # (memory is full; and now a loader that is some batches ahead, at the end of an epoch)
        found.read_many(order[:24])
        with members.lent(servers.nodes["n0"]) as connection:
            ask(connection, Ahead(source.fingerprint(), 5, 1), 5.0)
        found.take_pooled()
        for first in range(24, 400, 8):
            part = order[first : first + 8]
            time.sleep(0.03)  # (a loop that trains)
            assert [bytes(one) for one in found.read_many(part)] == source.read_many(part)
            if first == 200:
                found.take_pooled()
        assert found.take_pooled().kept > 60, "reading ahead goes on"
    finally:
        servers.close()


def test_a_job_that_is_started_anew_is_read_ahead_for_again(servers: Servers, source: Source) -> None:
    """It says what it said before: the same seed, and the first epoch."""
    found = introduce(servers, source)
    server, members = servers.servers["n1"], members_module.members_of(servers.nodes["n0"].socket)
    for _ in range(2):
        with members.lent(servers.nodes["n1"]) as connection:
            ask(connection, Ahead(source.fingerprint(), 1, 0), 5.0)
        asked = server._datasets._datasets[source.fingerprint()].asked
        assert not asked.any()
        read_all(found, source)
        assert asked.any()
    servers.add("n3")
    servers.tell()
    assert asked.any(), "it is in the middle of it, for all that others come"


def test_servers_hear_once_of_an_epoch_for_which_workers_have_to_start(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = members_module.members_of(servers.nodes["n0"].socket)
    joined = Joined(source, servers.pool(source), members)
    said: list[Ahead] = []
    monkeypatch.setattr(joined, "_tell", said.append)
    for epoch, early in ((0, True), (0, False), (1, False), (1, False), (1, True), (2, False)):
        joined.expect(seed=7, epoch=epoch, position=0, shuffled=True, early=early)
    assert wait_until(lambda: len(said) == 5)
    assert sorted(one.epoch for one in said) == [0, 1, 1, 1, 2]


def test_a_server_that_comes_in_the_middle_of_an_epoch_hears_what_is_needed_from_then_on(
    servers: Servers, source: Source
) -> None:
    members = members_module.members_of(servers.nodes["n0"].socket)
    joined = Joined(source, servers.pool(source), members)
    joined.introduce(says=True)
    joined.expect(seed=7, epoch=1, position=8, shuffled=True)
    assert wait_until(lambda: servers.fetched == SAMPLES - 8)
    servers.lose("n1")
    servers.add("n1")
    servers.tell()
    fresh = servers.servers["n1"]
    assert wait_until(lambda: source.fingerprint() in fresh._datasets._preloads), "nobody has read anything"
    assert fresh._datasets._preloads[source.fingerprint()][0] == Ahead(source.fingerprint(), 7, 1, 8)
    joined.close()
    servers.add("n3")
    view = servers.tell()
    assert wait_until(lambda: members.view.number == view.number)
    assert not members.watchers and not servers.servers["n3"]._datasets._datasets, "the job is over"
    reading = [one for server in servers.servers.values() for _, one in server._datasets._preloads.values()]
    assert len(reading) == 3 and wait_until(lambda: not any(one.reads for one in reading))


def test_what_a_dataset_is_made_of_is_said_once(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be megabytes, and a job has hundreds of processes."""
    introduce(servers, source)

    def said(connection: wire.Wire, definition: Define) -> None:
        raise ProtocolError("it was said again")

    for server in servers.servers.values():
        monkeypatch.setattr(server, "_define", said)
    members = members_module.members_of(servers.nodes["n0"].socket)
    for node in servers.nodes.values():
        define(members, node, servers.pool(source))


def test_a_list_of_files_that_is_too_long_is_said_to_be(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_LONGEST", 16)
    with pytest.raises(OptionError, match=r"takes \d+ B, and 16 B is the most; name a folder"):
        joining.join(source, must=True, find_rail=lambda: None)
    monkeypatch.setattr(joining, "ray_node", lambda: "n0")
    assert joining.join(source, must=False, find_rail=lambda: None) is None


@pytest.mark.parametrize("others", ["another order", "another job"])
def test_what_waits_for_its_use_is_not_taken_for_used_by_who_has_another_order(
    tmp_path: Path, others: str
) -> None:
    """A sampler of the user's is not known here, and two jobs over the same data have two orders."""
    source = make_files(tmp_path / "many", 600)
    (tmp_path / "nodes").mkdir()
    servers = Servers(tmp_path / "nodes", count=1, memory=300 << 10)
    try:
        found = introduce(servers, source)
        members = members_module.members_of(servers.nodes["n0"].socket)
        with members.lent(servers.nodes["n0"]) as connection:
            ask(connection, Ahead(source.fingerprint(), 5, 1), 5.0)
        orders = [epoch_order(600, 6, 1)]
        if others == "another job":
            orders.append(epoch_order(600, 5, 1))
        for first in range(0, 600, 8):
            for order in orders:
                time.sleep(0.01)  # (a loop that trains)
                part = order[first : first + 8]
                assert [bytes(one) for one in found.read_many(part)] == source.read_many(part)
        held = servers.servers["n0"].status().datasets[0].held
        assert 0 < held < 150
        assert servers.fetched <= held + len(orders) * (600 - held) + 40
    finally:
        servers.close()


@given(
    samples=st.integers(1, 20_000),
    at=st.floats(0, 1),
    before=st.floats(0.2, 1),
    behind=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_how_far_somebody_is_in_an_order(
    samples: int, at: float, before: float, behind: float, seed: int
) -> None:
    drawn = np.random.default_rng(seed).random(samples)
    place = int(at * samples)
    asked = np.append(drawn[:place] < before, drawn[place:] < behind * before)
    front = fetching.front_of(asked)
    assert 0 <= front <= samples
    assert not fetching.front_of(drawn < before * behind), "there is no front"
    if behind == 0:
        assert front <= place
        if samples > 1000 and 0.1 < at < 0.8:
            assert front > place - 60


def test_what_somebody_has_got_is_not_read_ahead(source: Source) -> None:
    """Not even if it was looked at before the other had it: it is asked again when it would be read."""
    memory = PoolMemory(0)
    dataset = Dataset("one", source, "one")
    memory.open("one", len(source))
    fetcher = Fetcher(memory)
    try:
        assert fetcher.fetch(dataset, [3, 4], 5.0).keys() == {3, 4}
        assert fetcher.fetch(dataset, [2, 3, 4], 5.0, ahead=True).keys() == {2}
        assert fetcher.fetched == 3
        assert fetcher.fetch(dataset, [2], 5.0).keys() == {2}
        assert fetcher.fetched == 3, "what waits is not read again"
    finally:
        fetcher.close()


def test_a_source_is_what_it_was_but_for_where_it_reads(servers: Servers, source: Source) -> None:
    import pickle

    found = pickle.loads(pickle.dumps(introduce(servers, source)))
    assert len(found) == SAMPLES and found.fingerprint() == source.fingerprint()
    assert found.identity(3) == source.identity(3) and found.name(3) == source.name(3)
    assert np.array_equal(found.targets, source.targets) and found.encoded is True
    assert found.classes == ["a"], "and what only some sources have"
    assert found.identity_bytes([1]) == source.identity_bytes([1])
    assert not hasattr(found, "nothing_of_the_kind")
    read_all(found, source)


def test_a_forked_worker_has_connections_of_its_own(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    read_all(found, source)
    child = os.fork()
    if not child:
        try:
            read_all(found, source, 1)
            os._exit(0 if found.take_pooled().samples == SAMPLES else 2)
        except BaseException:
            os._exit(1)
    for seed in range(5):
        read_all(found, source, seed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- when it is not -------------------------------------------------------------------------------------------


def test_a_server_that_is_lost_costs_reads_and_no_sample(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    read_all(found, source)
    servers.lose("n1")
    read_all(found, source, 1)
    before = servers.fetched
    # Once all know of it, the others share its part, and nothing else moves.
    servers.tell([servers.nodes["n0"], servers.nodes["n2"]])
    members = members_module.members_of(servers.nodes["n0"].socket)
    assert wait_until(lambda: len(members.view.nodes) == 2)
    read_all(found, source, 2)
    lost = Placement(View(1, tuple(servers.nodes.values())), source.fingerprint(), SAMPLES).nodes_of(
        np.arange(SAMPLES)
    )
    assert servers.fetched - before == int((lost == 1).sum())
    found.take_pooled()
    read_all(found, source, 3)
    assert found.take_pooled().kept == SAMPLES


def test_a_server_that_comes_back_is_told_of_the_dataset(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    read_all(found, source)
    servers.lose("n1")
    servers.add("n1")
    servers.tell()
    members = members_module.members_of(servers.nodes["n0"].socket)
    assert wait_until(lambda: servers.nodes["n1"] in members.view.nodes)
    read_all(found, source, 1)
    fresh = servers.servers["n1"]
    assert wait_until(lambda: bool(fresh.status().datasets)), "who reads has said what it is made of"
    read_all(found, source, 2)
    found.take_pooled()
    read_all(found, source, 3)
    assert found.take_pooled().kept == SAMPLES


def test_servers_that_are_gone_are_forgotten(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started again and again, with other files or no memory, is another each time."""
    defined = threading.Semaphore(0)

    def refuses(*_: Any) -> None:
        defined.release()
        raise HostRefused("it sees other files there")

    found = introduce(servers, source)
    monkeypatch.setattr(pooled_module, "define", refuses)
    monkeypatch.setattr(keyed_module, "_FULL", 1000.0)
    monkeypatch.setattr(PoolMemory, "put", lambda *_: None)
    members = members_module.members_of(servers.nodes["n0"].socket)
    tier = NodesTier(servers.nodes["n0"].socket, "", "a group", 1 << 20).open()
    samples = [(number.to_bytes(16, "little"), [bytes(4096)]) for number in range(0, 2**40, 2**30)]
    for _ in range(4):
        servers.lose("n2")
        servers.add("n2")
        view = servers.tell()
        assert wait_until(lambda view=view: members.view.number == view.number)
        there = {one.incarnation for one in view.nodes}
        read_all(found, source)
        assert defined.acquire(timeout=20.0)
        tier._full = dict.fromkeys(tier._full, 0.0)  # (time passes)
        tier.put_many(samples)
        assert set(members._lent) | set(members._idle) | set(found._usual) == there
        assert set(found._strangers) <= there and set(tier._full) == there
    tier.close()


def test_a_server_that_hangs_is_left_alone(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_module, "_PATIENCE", 0.3)
    monkeypatch.setattr(members_module, "GREETING", 0.3)
    found = introduce(servers, source)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = msgspec.structs.replace(servers.nodes["n1"], port=silent.getsockname()[1], incarnation="hung")
        servers.tell([servers.nodes["n0"], hung, servers.nodes["n2"]])
        members = members_module.members_of(servers.nodes["n0"].socket)
        assert wait_until(lambda: hung in members.view.nodes)
        begun = time.monotonic()
        read_all(found, source)
        assert not members.is_well(hung)
        assert time.monotonic() - begun < 5.0, "it was not waited for again and again"


class Cable:
    """Passes connections on to a port, until it is cut: then nothing comes through, and nobody is told."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._to, self.delay, self.whole = port, delay, threading.Event()
        self.whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, taken: socket.socket, given: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := taken.recv(1 << 16):
                self.whole.wait()
                time.sleep(self.delay)
                given.sendall(data)
            given.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.whole.set()
        self._listener.close()


def test_a_cable_that_is_cut_holds_nobody_up_for_long(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooled_module, "_LEAST", 0.2)
    monkeypatch.setattr(pooled_module, "_PATIENCE", 60.0)
    monkeypatch.setattr(members_module, "GREETING", 0.5)
    with contextlib.closing(Cable(servers.nodes["n1"].port)) as cable:
        far = msgspec.structs.replace(servers.nodes["n1"], port=cable.port, incarnation="far")
        servers.tell([servers.nodes["n0"], far, servers.nodes["n2"]])
        found = introduce(servers, source)
        members = members_module.members_of(servers.nodes["n0"].socket)
        for _ in range(2):
            read_all(found, source)
        found.take_pooled()
        cable.whole.clear()
        mended = threading.Timer(30, cable.whole.set)
        mended.start()
        read_all(found, source)
        assert not cable.whole.is_set() and not members.is_well(far), "it was waited for"
        first = found.take_pooled().samples
        assert first < SAMPLES
        read_all(found, source)
        assert found.take_pooled().samples <= first
        mended.cancel()
        cable.whole.set()
        assert wait_until(lambda: members.is_well(far))
        read_all(found, source)
        assert found.take_pooled().samples == SAMPLES


def test_a_node_that_is_slower_than_storage_is_left_until_it_is_not(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_SLACK", 0.03)
    monkeypatch.setattr(peers, "_REST", 0.1)
    monkeypatch.setattr(peers, "_LONGEST", 0.1)
    with contextlib.closing(Cable(servers.nodes["n1"].port, 0.1)) as cable:
        far = msgspec.structs.replace(servers.nodes["n1"], port=cable.port, incarnation="far")
        servers.tell([servers.nodes["n0"], far, servers.nodes["n2"]])
        found = introduce(servers, source)

        def pooled() -> int:
            found.take_pooled()
            read_all(found, source)
            return found.take_pooled().samples

        assert pooled() == SAMPLES, "at first nobody knows"
        assert wait_until(lambda: pooled() < 0.9 * SAMPLES)
        cable.delay = 0.0
        assert wait_until(lambda: pooled() == SAMPLES)


def test_who_waits_for_a_server_is_woken_when_it_is_gone(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    dataset = servers.servers["n1"]._datasets._datasets[source.fingerprint()]
    reading, release = threading.Event(), threading.Event()
    read_many = dataset.source.read_many

    def slow(indices: object) -> object:
        reading.set()
        release.wait(30)
        return read_many(indices)

    dataset.source.read_many = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=read_all, args=(found, source))
    thread.start()
    try:
        assert reading.wait(10)
        servers.tell([servers.nodes["n0"], servers.nodes["n2"]])
        thread.join(5.0)
        assert not thread.is_alive(), "it reads from storage, or from another, at once"
    finally:
        release.set()
        thread.join()


def test_a_server_takes_more_datasets_than_it_has_room_for_at_a_time(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets_module, "_MOST_DATASETS", 2)
    sources = [make_files(tmp_path / name, 20) for name in "abc"]
    first, second = (introduce(servers, one) for one in sources[:2])
    server, members = servers.servers["n1"], members_module.members_of(servers.nodes["n0"].socket)
    with pytest.raises(HostRefused, match="2 datasets that jobs use"):
        define(members, servers.nodes["n1"], servers.pool(sources[2]))
    monkeypatch.setattr(memory_module, "_QUIET", 0.0)
    read_all(second, sources[1])
    third = introduce(servers, sources[2])
    found = [(one.fingerprint, one.name) for one in server.status().datasets]
    assert found == [(one.fingerprint(), repr(one)) for one in sources[1:]]
    read_all(third, sources[2])
    read_all(first, sources[0])
    assert wait_until(lambda: sources[0].fingerprint() in server._datasets._datasets), (
        "who reads it has said what it is"
    )
    assert len(server._datasets._datasets) == 2 and len(server.memory.describe()) == 2
    read_all(first, sources[0])


def test_without_any_server_samples_come_from_storage(servers: Servers, source: Source) -> None:
    found = introduce(servers, source)
    for name in list(servers.servers):
        servers.lose(name)
    read_all(found, source)
    again = PooledSource(source, found._pool._replace(path="/nowhere/node.sock"))
    read_all(again, source)
    assert again.take_pooled().samples == 0


def test_a_sample_that_cannot_be_read_says_what_it_always_says(servers: Servers, tmp_path: Path) -> None:
    source = make_files(tmp_path / "data", 20)
    found = introduce(servers, source)
    os.unlink(source.name(7))
    os.chmod(source.name(8), 0)
    got, wanted = found.read_many(range(20)), source.read_many(range(20))
    for mine, theirs in zip(got, wanted, strict=True):
        if isinstance(theirs, BaseException):
            assert type(mine) is type(theirs) and str(mine) == str(theirs)
        else:
            assert bytes(mine) == theirs


def test_a_node_that_sees_other_files_is_not_asked(servers: Servers, source: Source, tmp_path: Path) -> None:
    other = make_files(tmp_path / "data", 20)
    pool = servers.pool(source)._replace(definition=servers.pool(other).definition)
    members = members_module.members_of(servers.nodes["n0"].socket)
    with pytest.raises(HostRefused, match="sees other files"):
        define(members, servers.nodes["n1"], pool)
    gone = servers.pool(other)
    for path in sorted((tmp_path / "data" / "a").iterdir()):
        path.unlink()
    with pytest.raises(HostRefused, match="it cannot open the data"):
        define(members, servers.nodes["n1"], gone)
    read_all(servers.pooled(source), source)


def test_whatever_is_wrong_with_a_listing_is_said(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AccessDenied(Exception):
        """Of a library that talks to storage."""

    def fails(_: object) -> Source:
        raise AccessDenied("the role of this node may not list it")

    monkeypatch.setattr(datasets_module, "source_from_plain", fails)
    members = members_module.members_of(servers.nodes["n0"].socket)
    with pytest.raises(HostRefused, match="it cannot open the data: AccessDenied: the role of this"):
        define(members, servers.nodes["n1"], servers.pool(source))


def test_a_job_begins_without_a_node_that_is_still_listing_its_data(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong there is said when it is known, once for each reason."""
    monkeypatch.setattr(joining, "_OTHERS", 0.0)
    release, listing = threading.Event(), servers.servers["n1"]

    def late(connection: wire.Wire, definition: Define) -> None:
        assert release.wait(60)
        listing._reply(connection, Refused("it sees other files"))

    for name in ("n1", "n2"):
        monkeypatch.setattr(servers.servers[name], "_define", late)
    members = members_module.members_of(servers.nodes["n0"].socket)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        begun = joining.Introduction(members, servers.pool(source), says=True)
        begun.run()
        assert begun._open == {"n1", "n2"} and not said, "the own node was waited for, and nobody else"
        assert source.fingerprint() in servers.servers["n0"]._datasets._datasets
        release.set()
        assert wait_until(lambda: not begun._open and bool(said))
    assert len(said) == 1 and "node n" in str(said[0].message), [str(one.message) for one in said]


def test_nodes_that_refuse_for_the_same_reason_are_said_together(
    servers: Servers, source: Source, tmp_path: Path
) -> None:
    other = make_files(tmp_path / "data", 20)
    pool = servers.pool(source)._replace(definition=servers.pool(other).definition)
    members = members_module.members_of(servers.nodes["n0"].socket)
    wanted = (
        r"memory: 3 nodes \(n0 \(127.0.0.1\), n1 .*, n2 .*\): it sees other files there than the job does"
    )
    with pytest.warns(UserWarning, match=wanted) as said:
        joining.Introduction(members, pool, says=True).run()
    assert len(said) == 1
    assert sum("20 files here" in one for one in servers.log) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joining.Introduction(members, pool, says=False).run()


# -- who may, and who may not -----------------------------------------------------------------------------------


def connect(servers: Servers, at: str = "n1") -> wire.Wire:
    node = servers.nodes[at]
    return wire.connect_tls((node.host, node.port), node.certificate, 5.0)


def test_a_wrong_token_and_a_wrong_version_are_refused_with_the_reason(servers: Servers) -> None:
    with pytest.raises(HostRefused, match="token is not that of this cluster"):
        greet(connect(servers), "a guess")
    assert "a guess" not in " ".join(servers.log) and TOKEN not in " ".join(servers.log)
    connection = connect(servers)
    connection.send(encode(Hello(PROTOCOL + 1, TOKEN, "9.9")), seconds=5.0)
    reply = decode_reply(connection.receive(seconds=5.0)[0])
    assert isinstance(reply, Refused) and "9.9" in reply.reason and "headrace cluster stop" in reply.reason
    assert greet(connect(servers), TOKEN).token == "", "the token is told to those on the same machine alone"


def test_nothing_is_answered_before_the_token_was_shown(servers: Servers, source: Source) -> None:
    introduce(servers, source)
    connection = connect(servers)
    connection.send(encode(Want(source.fingerprint(), np.arange(3).tobytes())), seconds=5.0)
    assert isinstance(decode_reply(connection.receive(seconds=5.0)[0]), Refused)


def test_who_says_a_hello_byte_by_byte_is_not_listened_to_for_long(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "GREETING", 0.5)
    connection = connect(servers)
    said = wire._HEAD.pack(wire._MAGIC, 4096, 0) + bytes(4096)
    with pytest.raises((OSError, EOFError)):
        for at in range(100):
            connection._send([memoryview(said[at : at + 1])], 5.0)
            with contextlib.suppress(TimeoutError):  # (a byte comes long before it is given up)
                connection.receive(seconds=0.2)
    connection.close()


def test_who_has_not_even_begun_to_speak_tls_counts_as_a_connection(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MOST_CLIENTS", 3)
    monkeypatch.setattr(server_module, "GREETING", 60.0)
    node = servers.nodes["n1"]
    with contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection((node.host, node.port), 5.0)) for _ in range(4)
        ]
        assert silent[3].recv(1) == b"", "there is no room for it"
    assert wait_until(lambda: servers.servers["n1"]._elsewhere.coming == 0)
    greet(connect(servers), TOKEN)


def test_jobs_of_the_node_itself_are_taken_in_however_many_others_there_are(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MOST_CLIENTS", 2)
    monkeypatch.setattr(server_module, "_REST", 60.0)
    others = [connect(servers) for _ in range(2)]
    for one in others:
        greet(one, TOKEN)
    with pytest.raises((OSError, EOFError)):
        greet(connect(servers), TOKEN)
    here = [wire.connect_unix(servers.nodes["n1"].socket, 5.0) for _ in range(3)]
    assert [greet(one, "").node for one in here] == ["n1"] * 3
    assert servers.servers["n1"].status().clients == 5
    monkeypatch.setattr(server_module, "_MOST_HERE", 3)
    with pytest.raises((OSError, EOFError)):
        greet(wire.connect_unix(servers.nodes["n1"].socket, 5.0), "")
    assert [ask(one, Open("x"), 5.0)[0] for one in others] == [Opened(False)] * 2
    for one in (*others, *here):
        one.close()


def test_a_server_for_whom_no_thread_may_be_started_takes_others_in(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, node = servers.servers["n1"], servers.nodes["n1"]
    start, refused = threading.Thread.start, threading.Event()

    def may_not(thread: threading.Thread) -> None:
        if thread.name != "headrace-node" or refused.is_set():
            start(thread)
            return
        refused.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", may_not)
    with pytest.raises(OSError):
        wire.connect_tls((node.host, node.port), node.certificate, 20.0)
    assert refused.is_set() and server._elsewhere.coming == 0
    connection = wire.connect_tls((node.host, node.port), node.certificate, 20.0)
    greet(connection, TOKEN)
    connection.close()


def test_who_has_asked_nothing_for_the_longest_makes_room(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.servers["n1"]
    monkeypatch.setattr(server_module, "_MOST_CLIENTS", 3)
    monkeypatch.setattr(server_module, "_REST", 0.0)
    answering, release = threading.Event(), threading.Event()
    status = server.status

    def slow() -> Status:
        answering.set()
        assert release.wait(60)
        return status()

    monkeypatch.setattr(server, "status", slow)

    def resting() -> int:
        return sum(one is not None for one in server._elsewhere._idle.values())

    busy, first, second = (connect(servers) for _ in range(3))
    for number, one in enumerate((busy, first, second)):
        greet(one, TOKEN)
        assert wait_until(lambda: resting() == number + 1)  # noqa: B023
    busy.send(encode(GetStatus()), seconds=5.0)
    assert answering.wait(10)
    ask(first, Open("x"), 5.0)
    assert wait_until(lambda: resting() == 2)
    third = connect(servers)
    greet(third, TOKEN)
    assert wait_until(second.ended), "it was idle for longer than the first, and the busy one was not"
    assert not first.ended() and not busy.ended()
    release.set()
    assert isinstance(answer(busy, 10.0)[0], Status)
    assert ask(first, Open("x"), 5.0)[0] == ask(third, Open("x"), 5.0)[0] == Opened(False)
    for one in (busy, first, second, third):
        one.close()


@pytest.mark.parametrize("how", ["samples", "by key", "one by one"])
def test_a_connection_that_was_ended_while_nobody_used_it_is_replaced(
    servers: Servers, source: Source, how: str
) -> None:
    found = introduce(servers, source)
    members = members_module.members_of(servers.nodes["n0"].socket)
    tier = NodesTier(servers.nodes["n0"].socket, "", "group", 1 << 30).open()
    keys = [bytes([number]) * 16 for number in range(40)]

    def use() -> None:
        if how == "samples":
            read_all(found, source)
            assert found.take_pooled().samples == SAMPLES
        elif how == "by key":
            assert tier.put_many([(key, [key]) for key in keys]) in (40, 0)
            assert all(tier.has_many(keys)) and tier.get_many(keys) == keys
        else:
            for node in servers.nodes.values():
                with members.lent(node) as connection:
                    ask(connection, Open("x"), 5.0)

    use()
    used = {one for kept in members._idle.values() for one in kept}
    use()
    assert {one for kept in members._idle.values() for one in kept} == used, "they are used again"
    for server in servers.servers.values():
        server._here.shut()
        server._elsewhere.shut()
    assert wait_until(lambda: all(one.ended() for one in used))
    use()
    assert all(members.is_well(node) for node in servers.nodes.values())
    assert not used & {one for kept in members._idle.values() for one in kept}


def test_other_machines_have_to_speak_tls(servers: Servers) -> None:
    node = servers.nodes["n1"]
    with socket.create_connection((node.host, node.port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(10.0)
        with contextlib.suppress(ConnectionResetError):
            assert b"token" not in sock.recv(4096)
    with pytest.raises(ssl.SSLError):
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection((node.host, node.port)) as sock:
            old.wrap_socket(sock)


@pytest.mark.parametrize(
    "samples",
    [
        b"1234567",
        np.array([SAMPLES]).tobytes(),
        np.array([-1]).tobytes(),
        np.zeros(1 << 17, np.int64).tobytes(),
    ],
)
def test_samples_that_do_not_exist_are_refused(servers: Servers, source: Source, samples: bytes) -> None:
    introduce(servers, source)
    connection = connect(servers)
    greet(connection, TOKEN)
    with pytest.raises(HostRefused):
        ask(connection, Want(source.fingerprint(), samples), 5.0)


def test_definitions_import_nothing(servers: Servers) -> None:
    connection = connect(servers)
    greet(connection, TOKEN)
    for definition in (b'{"source": "os:system"}', b"[" * 100_000, b"\xff", b'{"source": "folder"}'):
        with pytest.raises(HostRefused, match="cannot open"):
            ask(connection, Define("x", definition), 5.0)
    reply, _ = ask(connection, Open("x"), 5.0)
    assert reply == Opened(False)


@pytest.mark.parametrize(
    "definition",
    [
        b"\xff",
        b"5",
        b"[" * 100_000,
        b'{"max_bytes": 5}',
        b'{"source": "subset"}',
        b'{"source": "files", "max_bytes": Infinity}',
        b'{"source": "files", "max_bytes": "much"}',
        b'{"source": "files", "max_bytes": 1%s}' % (b"0" * 4000),
    ],
    ids=range(8),
)
def test_whatever_is_said_of_a_dataset_that_is_known_it_stays_as_it_is(
    servers: Servers, source: Source, definition: bytes
) -> None:
    introduce(servers, source)
    connection = connect(servers)
    greet(connection, TOKEN)
    known = servers.servers["n1"]._datasets._datasets[source.fingerprint()]
    before = known.source, known.limit
    with pytest.raises(HostRefused, match="cannot open"):
        ask(connection, Define(source.fingerprint(), definition), 5.0)
    limit = servers.pool(source).limit
    assert ask(connection, Open(source.fingerprint(), limit), 5.0)[0] == Opened(True, SAMPLES)
    assert ask(connection, Open(source.fingerprint(), limit + 1), 5.0)[0] == Opened(False, SAMPLES)
    assert (known.source, known.limit) == before


def test_a_limit_of_any_size_is_one(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(b"some bytes")
    found = introduce(servers, hr.files([tmp_path / "0.bin"], max_bytes=1 << 80))
    assert bytes(found.read_many([0])[0]) == b"some bytes" and servers.fetched == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.binary(min_size=1, max_size=80))
def test_no_message_ends_a_server(servers: Servers, data: bytes) -> None:
    connection = connect(servers)
    greet(connection, TOKEN)
    connection.send(data, seconds=5.0)
    connection.shut()
    connection.close()
    well = connect(servers)
    greet(well, TOKEN)
    assert ask(well, Open("x"), 5.0)[0] == Opened(False)
    well.close()


@pytest.mark.parametrize("lie", ["short", "long", "negative", "other", "nothing"])
def test_a_server_that_lies_is_not_believed(
    servers: Servers, source: Source, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    found = introduce(servers, source)
    server = servers.servers["n1"]

    def lies(connection: wire.Wire, want: Want) -> None:
        count = len(want.samples) // 8
        lengths = np.full(count, 10, np.int64)
        body = bytes(10 * count)
        if lie == "short":
            lengths = lengths[:-1]
        elif lie == "long":
            body += b"x"
        elif lie == "negative":
            lengths[0] = -10
        if lie == "other":
            server._reply(connection, View(5))
        elif lie == "nothing":
            connection.shut()
        else:
            server._reply(connection, Given(lengths.tobytes()), [body])

    monkeypatch.setattr(server, "_give", lies)
    read_all(found, source)


def test_a_process_keeps_no_more_connections_than_leave_room_for_its_files(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(members_module.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(members_module.resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    members = Members(servers.nodes["n0"].socket)
    assert limits == [(1024, 4096), (4096, 4096)]
    node = servers.nodes["n1"]
    for nodes, kept in ((3, 8), (200, 5), (500, 2), (3000, 1)):
        others = [msgspec.structs.replace(node, id=f"o{at}", incarnation=f"o{at}") for at in range(nodes - 1)]
        view = servers.tell([node, *others])
        assert wait_until(lambda: members.view.number == view.number)  # noqa: B023
        for connection in [members.borrow(node) for _ in range(9)]:
            members.give_back(node, connection)
        assert len(members._idle[node.incarnation]) == kept
        while members._idle[node.incarnation]:
            members._idle[node.incarnation].pop().close()
    members.close()


def test_members_are_closed_whole(servers: Servers) -> None:
    members = Members(servers.nodes["n0"].socket)
    borrowed = members.borrow(servers.nodes["n1"])
    members.close()
    with pytest.raises((OSError, EOFError)):
        answer(borrowed, 2.0)
    assert wait_until(lambda: not members._thread.is_alive(), 10.0)
