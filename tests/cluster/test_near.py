"""Jobs that leave their order to the host take what nodes have read, while nodes read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.cluster import fetching, joining, members
from headrace.cluster import near as near_module
from headrace.cluster.members import Members, ask, members_of
from headrace.cluster.memory import PoolMemory
from headrace.cluster.messages import Ahead, Arrived, Came, Want
from headrace.cluster.near import Teller
from headrace.cluster.pooled import define
from headrace.coordinate.protocol import Identities, Joined
from headrace.planning import peers
from headrace.sources.source import Source
from tests.cluster.nodes import Servers, forget_members, make_files, write_photos
from tests.host.conftest import place
from tests.host.test_service import Caller, host, identities, terms
from tests.loader.helpers import wait_until

__all__ = ["host", "place"]

PHOTOS, SAMPLES = 64, 120


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    monkeypatch.setattr(peers, "_SLACK", 60.0)  # (files here are faster than any node)
    made = Servers(tmp_path, count=2)
    yield made
    forget_members()
    made.close()


def known(servers: Servers, source: Source) -> Members:
    """The servers, which know the dataset."""
    found = members_of(servers.nodes["n0"].socket)
    for node in servers.nodes.values():
        define(found, node, servers.pool(source))
    return found


def came(found: Members, servers: Servers, name: str, source: Source, since: int = 0) -> Arrived:
    with found.lent(servers.nodes[name]) as connection:
        reply, _ = ask(connection, Came(source.fingerprint(), since), 5.0)
    assert isinstance(reply, Arrived)
    return reply


def samples(arrived: Arrived) -> list[int]:
    return np.frombuffer(arrived.samples, np.int64).tolist()


# -- what servers say -----------------------------------------------------------------------------------------


def test_a_server_says_what_has_come_and_whether_more_does(servers: Servers, tmp_path: Path) -> None:
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    nothing = came(found, servers, "n0", source)
    assert (nothing.count, nothing.samples, nothing.more) == (0, b"", False)
    gate = Gate(servers, source)
    with found.lent(servers.nodes["n0"]) as connection:
        ask(connection, Ahead(source.fingerprint(), 0, 0), 5.0)
    assert came(found, servers, "n0", source).more
    gate.open()
    assert wait_until(lambda: not came(found, servers, "n0", source).more)
    all_of_it = came(found, servers, "n0", source)
    held = servers.servers["n0"].memory.describe()[source.fingerprint()][1]
    assert all_of_it.count == held == len(set(samples(all_of_it))) > 30
    rest = came(found, servers, "n0", source, since=held - 5)
    assert samples(rest) == samples(all_of_it)[-5:] and rest.count == held


def test_a_server_that_does_not_know_a_dataset_is_asked_on_at_no_cost(
    servers: Servers, tmp_path: Path
) -> None:
    """It may not be able to list it, and others read for hours: a connection and a line of its log each time would be
    tens of thousands."""
    source = make_files(tmp_path / "files", SAMPLES)
    found = members_of(servers.nodes["n0"].socket)
    define(found, servers.nodes["n0"], servers.pool(source))
    round_ = near_module._Round(source.fingerprint(), found, threading.Event())
    assert round_._look() == (False, True)
    with found.lent(servers.nodes["n1"]) as before:
        pass
    for _ in range(3):
        assert round_._look() == (False, True)
    with found.lent(servers.nodes["n1"]) as after:
        pass
    assert after is before and not servers.log
    # It has heard of the dataset meanwhile.
    define(found, servers.nodes["n1"], servers.pool(source))
    servers.servers["n1"].memory.keep(source.fingerprint(), 3, bytes(10))
    round_._look()
    assert round_._untold == [np.array([3]).tobytes()]


@pytest.mark.parametrize(("shared", "reads"), [(True, fetching._READS), (False, fetching._READS_AHEAD)])
def test_what_jobs_are_given_as_it_comes_is_read_by_as_many_as_what_they_ask_for(
    servers: Servers, tmp_path: Path, shared: bool, reads: int
) -> None:
    """They wait for it, and ask for nothing else meanwhile: where each read takes long, few of them would be all."""
    source = make_files(tmp_path / "files", 600)
    found = known(servers, source)
    dataset = servers.servers["n0"]._datasets._datasets[source.fingerprint()]
    read, over = dataset.source.read_many, threading.Event()
    inside: list[int] = []

    def held_up(indices: Any) -> Any:
        inside.append(len(indices))
        if len(inside) > 1:  # (the first one shows how large samples are)
            over.wait(60)
        return read(indices)

    dataset.source.read_many = held_up  # type: ignore[method-assign]
    with found.lent(servers.nodes["n0"]) as connection:
        ask(connection, Ahead(source.fingerprint(), 0, 0, shared=shared), 5.0)
    assert wait_until(lambda: len(inside) == 1 + reads)
    assert not shared or set(inside) == {1}, "who asks for one by name waits for no others"
    over.set()
    assert wait_until(lambda: not came(found, servers, "n0", source).more)


def test_what_was_let_go_is_read_again_for_jobs_that_say_the_same(servers: Servers, tmp_path: Path) -> None:
    """Jobs of one epoch each, one after the other: each says that it begins the first."""
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    server, ahead = servers.servers["n0"], Ahead(source.fingerprint(), 0, 0, shared=True)

    def begin() -> None:
        with found.lent(servers.nodes["n0"]) as connection:
            ask(connection, ahead, 5.0)
        assert wait_until(lambda: not came(found, servers, "n0", source).more)

    begin()
    read = samples(came(found, servers, "n0", source))
    with found.lent(servers.nodes["n0"]) as connection:
        ask(
            connection,
            Want(source.fingerprint(), np.array(read).tobytes()),
            5.0,
            body_limit=1 << 20,
        )
    begin()
    assert samples(came(found, servers, "n0", source)) == read, "nothing is read twice"
    # Nobody uses it, and the memory goes to another dataset.
    assert wait_until(lambda: not server.memory._held[source.fingerprint()].reading)
    server.memory._empty(source.fingerprint())
    begin()
    assert sorted(samples(came(found, servers, "n0", source))) == sorted(read)


def test_memory_tells_what_came_since_and_that_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PoolMemory(16 << 10)
    try:
        for name in ("one", "two"):
            memory.open(name, 40)
        for sample in (5, 3, 8):
            assert memory.keep("one", sample, bytes(3000))
        assert memory.came("one", 0, 2) == (2, np.array([5, 3]).tobytes(), True)
        assert memory.came("one", 2, 2) == (3, np.array([8]).tobytes(), True)
        while memory.keep("one", 20 + memory.describe()["one"][1], bytes(3000)):
            pass
        count, _, room = memory.came("one", 3, 99)
        assert count == memory.describe()["one"][1] and not room
        # The dataset goes for another: who asks on is told what comes from then on.
        monkeypatch.setattr("headrace.cluster.memory._QUIET", -1.0)
        assert memory.keep("two", 1, bytes(3000))
        assert memory.came("one", count, 99)[:2] == (count, b"")
        assert memory.keep("one", 7, bytes(3000))
        assert memory.came("one", count, 99)[:2] == (count + 1, np.array([7]).tobytes())
        assert memory.came("one", 0, 99)[:2] == (count + 1, np.array([7]).tobytes())
        # It was forgotten, and is there anew.
        assert {memory.forget(), memory.forget()} == {"one", "two"}
        memory.open("one", 40)
        assert memory.keep("one", 9, bytes(3000))
        assert memory.came("one", count, 99)[:2] == (1, np.array([9]).tobytes())
    finally:
        memory.close()


# -- what the host is told ------------------------------------------------------------------------------------


class Gate:
    """Lets servers read so many times, a few samples each, and no more until it is opened wider."""

    def __init__(self, servers: Servers, source: Source, reads: int = 0) -> None:
        self._passes = threading.Semaphore(reads)
        self._wide = False
        self.read: list[int] = []
        """Samples that were."""
        self._servers, self._reads, self._over = servers, reads, list[None]()
        for server in servers.servers.values():
            dataset = server._datasets._datasets[source.fingerprint()]
            dataset.source.read_many = self._gated(dataset.source.read_many)  # type: ignore[method-assign]

    def _gated(self, read: Any) -> Any:
        def gated(indices: Any) -> Any:
            if not self._wide:
                self._passes.acquire(timeout=60)
            out = read(indices)
            self.read.extend(indices)
            self._over.append(None)
            return out

        return gated

    def wait(self) -> int:
        """Until all that may be read is held: so many samples."""
        assert wait_until(lambda: len(self._over) == self._reads)
        assert wait_until(lambda: self._servers.fetched == len(self.read))
        return len(self.read)

    def open(self) -> None:
        self._wide = True
        self._passes.release(1000)


def read_ahead(found: Members, servers: Servers, source: Source) -> None:
    for node in servers.nodes.values():
        with found.lent(node) as connection:
            ask(connection, Ahead(source.fingerprint(), 0, 0), 5.0)


def test_the_host_is_told_until_nodes_have_read_what_they_have_room_for(
    host: Any, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_module, "_PAUSE", 0.01)
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    gate = Gate(servers, source, reads=8)
    read_ahead(found, servers, source)
    teller = Teller(source.fingerprint(), found)
    thread = threading.Thread(target=teller.run)
    thread.start()
    near = host.commons._nearby._near
    read = gate.wait()
    assert not near, "nobody has come who uses the dataset"
    with closing(Caller("job", "token")) as job:
        terms_of_job = terms("token", SAMPLES)
        terms_of_job.dataset = source.fingerprint()
        assert job.ask(terms_of_job) == Joined(True)
        assert job.ask(Identities(), identities(SAMPLES).tobytes()) == Joined(False)
        assert wait_until(lambda: source.fingerprint() in near)
        assert wait_until(lambda: near[source.fingerprint()].bits.count() == read)
        gate.open()
        thread.join(30)
        assert not thread.is_alive() and not near, "all is there: it makes no difference any more"


def test_another_host_is_told_all_of_it(
    host: Any, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_module, "_PAUSE", 0.01)
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    gate = Gate(servers, source, reads=6)
    read_ahead(found, servers, source)
    teller = Teller(source.fingerprint(), found)
    thread = threading.Thread(target=teller.run)
    near = host.commons._nearby._near
    terms_of_job = terms("token", SAMPLES)
    terms_of_job.dataset = source.fingerprint()
    with closing(Caller("job", "token")) as job:
        assert job.ask(terms_of_job) == Joined(True)
        assert job.ask(Identities(), identities(SAMPLES).tobytes()) == Joined(False)
        thread.start()
        read = gate.wait()
        assert wait_until(lambda: source.fingerprint() in near)
        assert wait_until(lambda: near[source.fingerprint()].bits.count() == read)
        # As if it were another one: it knows nothing, and the connection has ended.
        near.clear()
        for connection in set(host.switchboard.connections.values()):
            if connection.role == "near":
                connection.channel.shut()
        assert wait_until(lambda: source.fingerprint() in near)
        assert wait_until(lambda: near[source.fingerprint()].bits.count() == read)
    teller.close()
    thread.join(30)
    assert not thread.is_alive()
    gate.open()
    assert wait_until(lambda: servers.fetched == SAMPLES)


def test_a_host_that_has_lost_it_is_told_again_and_a_few_at_a_time(
    host: Any, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forgets what somebody told who said nothing for a while, as one who was stopped."""
    monkeypatch.setattr(near_module, "_PAUSE", 0.01)
    monkeypatch.setattr(near_module, "MOST_NEARER", 7)
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    gate = Gate(servers, source, reads=6)
    read_ahead(found, servers, source)
    teller = Teller(source.fingerprint(), found)
    thread = threading.Thread(target=teller.run)
    nearby = host.commons._nearby
    name = source.fingerprint()
    sizes: list[int] = []
    hear = nearby.hear

    def heard(event: Any) -> None:
        sizes.append(len(event.samples) // 8)
        hear(event)

    monkeypatch.setattr(nearby, "hear", heard)
    terms_of_job = terms("token", SAMPLES)
    terms_of_job.dataset = name
    with closing(Caller("job", "token")) as job:
        assert job.ask(terms_of_job) == Joined(True)
        assert job.ask(Identities(), identities(SAMPLES).tobytes()) == Joined(False)
        read = gate.wait()
        thread.start()
        for _ in range(2):
            assert wait_until(lambda: name in nearby._near)
            assert wait_until(lambda: nearby._near[name].bits.count() == read)
            nearby._near.pop(name)
        assert wait_until(lambda: name in nearby._near and nearby._near[name].count == read)
        assert max(sizes) == 7, "others are not kept waiting by one who tells much"
        gate.open()
        thread.join(30)
        assert not thread.is_alive() and not nearby._near


def test_a_node_that_does_not_answer_is_left_out(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would cost all others a second, again and again, and the host would take who tells it for gone."""
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    asked: list[str] = []

    def ask_some(connection: Any, request: Any, seconds: float) -> Any:
        asked.append(connection.name)
        if connection.name == asked[0]:
            raise TimeoutError("it says nothing")
        return Arrived(0, b"", True), None

    monkeypatch.setattr(near_module, "ask", ask_some)
    round_ = near_module._Round(source.fingerprint(), found, threading.Event())
    for _ in range(3):
        assert round_._look() == (True, True)
    assert len(asked) == 4, "one of the two is asked on"


def test_one_answer_that_does_not_come_is_not_the_end_of_it(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that reads goes on reading while it has no time to say so. It may be the only one that does."""
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    silent: set[str] = set()
    reads = servers.nodes["n0"]

    def ask_some(connection: Any, request: Any, seconds: float) -> Any:
        if silent:
            raise TimeoutError("it says nothing")
        return Arrived(0, b"", connection.name == names[0]), None

    with found.lent(reads) as connection:
        names = [connection.name]
    monkeypatch.setattr(near_module, "ask", ask_some)
    round_ = near_module._Round(source.fingerprint(), found, threading.Event())
    assert round_._look() == (True, True)
    silent.add("all")
    assert round_._look() == (True, True), "it does not answer"
    assert round_._look() == (True, True), "it is not asked"
    monkeypatch.setattr(near_module, "_LEFT", -1.0)
    round_ = near_module._Round(source.fingerprint(), found, threading.Event())
    silent.clear()
    assert round_._look() == (True, True)
    silent.add("all")
    assert round_._look() == (False, True), "but not for ever"


def test_a_loader_that_is_closed_in_the_middle_of_a_round_says_nothing(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not asked all nodes. That no more comes would be news to other jobs."""
    source = make_files(tmp_path / "files", SAMPLES)
    found = known(servers, source)
    said: list[object] = []
    over = threading.Event()
    round_ = near_module._Round(source.fingerprint(), found, over)

    def ask_one(node: Any) -> Any:
        over.set()
        return Arrived(0, b"", False)

    monkeypatch.setattr(round_, "_ask", ask_one)
    monkeypatch.setattr(round_, "_say", said.append)
    round_.run()
    assert not said


# -- what comes of it -----------------------------------------------------------------------------------------


def recipe(folder: Path) -> hr.Recipe:
    paths = sorted(folder.glob("*.jpg"))
    return hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(48)],
    )


@pytest.mark.parametrize("cache", ["1MiB", "64MiB"])
def test_a_job_begins_with_what_has_been_read_and_misses_nothing(
    place: Path, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    """Storage stops after about 30 samples: these are given out before anything is waited for."""
    path = servers.nodes["n0"].socket
    monkeypatch.setattr(joining, "ray_node", lambda: "n0")
    monkeypatch.setattr(joining, "find_members", lambda **_: (path, members.members_of(path)))
    (tmp_path / "photos").mkdir()
    write_photos(tmp_path / "photos", PHOTOS)
    data = recipe(tmp_path / "photos")
    known(servers, data.source)
    gate = Gate(servers, data.source, reads=2 + 7)
    with hr.DataLoader(
        data, batch_size=2, shuffle=True, num_workers=1, share="ray", cache=cache, seed=0
    ) as loader:
        iterator = iter(loader)
        count = gate.wait() // 2 * 2
        first = [target for _ in range(count // 2) for target in next(iterator)[1].tolist()]
        read = set()
        for server in servers.servers.values():
            _, came_in, _ = server.memory.came(data.source.fingerprint(), 0, PHOTOS)
            read |= set(np.frombuffer(came_in, np.int64).tolist())
        assert len(read) - 1 <= count and set(first) <= read
        gate.open()
        rest = [target for batch in iterator for target in batch[1].tolist()]
        assert sorted(first + rest) == list(range(PHOTOS))
        assert sorted(target for batch in loader for target in batch[1].tolist()) == list(range(PHOTOS))
    assert servers.fetched == PHOTOS


@pytest.mark.parametrize("ends", ["closed", "collected"])
def test_nobody_tells_of_a_loader_that_is_gone(
    place: Path, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """While nodes still read: it might be hours until they have all."""
    path = servers.nodes["n0"].socket
    monkeypatch.setattr(joining, "ray_node", lambda: "n0")
    monkeypatch.setattr(joining, "find_members", lambda **_: (path, members.members_of(path)))
    (tmp_path / "photos").mkdir()
    write_photos(tmp_path / "photos", PHOTOS)
    data = recipe(tmp_path / "photos")
    known(servers, data.source)
    gate = Gate(servers, data.source, reads=2 + 7)

    def tellers() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "headrace-expect"]

    loader = hr.DataLoader(data, batch_size=2, shuffle=True, num_workers=1, share="ray", cache="1MiB", seed=0)
    iterator = iter(loader)
    gate.wait()
    next(iterator)
    assert tellers()
    if ends == "closed":
        loader.close()
    del loader, iterator
    gc.collect()
    assert wait_until(lambda: not tellers())
    gate.open()
    assert wait_until(lambda: servers.fetched == PHOTOS)
