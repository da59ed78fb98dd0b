"""A worker's end of the shared cache, against a host that the test plays itself."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.coordinate.messages import Order, OrderDone, Spent, encoder
from headrace.coordinate.protocol import Fill, Finished, Hello, Refused, Welcome, decode_request
from headrace.core.forms import Form
from headrace.engine import share, wire
from headrace.engine.share import SharedStore

SPAN = 1 << 16
INSTANCE = 77
GRANTS = np.array([(Form.DECODED, 128, 64), (Form.DECODED, 256, 64)], np.int64).tobytes()


def order(**options: int) -> Order:
    """Two rows of a draw, with a block for each."""
    terms = {"ticket": 5, "first": 8, "instance": INSTANCE, **options}
    return Order(1, 0, 0, 16, 8, 0, 0, 0, np.arange(2).tobytes(), grants=GRANTS, **terms)


class Host:
    """Listens where workers expect the host."""

    def __init__(self, path: Path) -> None:
        self._listener = wire.make_socket()
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(20)
        self.memory = os.memfd_create("cache")
        os.ftruncate(self.memory, SPAN)
        self.sock: socket.socket | None = None

    def greeted(self) -> Hello:
        """Take the next connection; what it says first."""
        if self.sock is not None:
            self.sock.close()
        self.sock, _ = self._listener.accept()
        self.sock.settimeout(10)
        hello = self.heard()
        assert isinstance(hello, Hello)
        return hello

    def heard(self) -> object:
        """The next message of the worker."""
        assert self.sock is not None
        received = wire.receive(self.sock)
        assert received is not None, "the worker hung up"
        return decode_request(received[0])

    def say(self, reply: Welcome | Refused | Fill, *fds: int) -> None:
        """Tell the worker."""
        assert self.sock is not None
        wire.send(self.sock, encoder.encode(reply), fds)

    def welcome(self, span: int = SPAN) -> None:
        """Let the worker in."""
        self.greeted()
        self.say(Welcome(INSTANCE, span), self.memory)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self._listener.close()
        os.close(self.memory)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "host.sock")
    yield made
    made.close()


@pytest.fixture
def open_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], SharedStore]]:
    monkeypatch.setattr(share, "_PATIENCE", 20.0)
    stores: list[SharedStore] = []

    def make() -> SharedStore:
        stores.append(SharedStore(str(tmp_path / "host.sock"), "token"))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def test_what_was_published_is_reported_with_the_rows_of_the_draw(
    host: Host, open_store: Callable[[], SharedStore]
) -> None:
    store = open_store()
    host.welcome()
    done = order()
    assert store.take(done, Form.DECODED, [64, 65]) == [128, None]
    store.extent(done, 128, 64)[:] = bytes(range(64))
    published = np.array([(0, Form.DECODED, 128, 64)], np.int64).tobytes()
    store.finished(done, OrderDone(1, [], published, Spent(decoded=2, fetched=1)))
    expected = np.array([(8, Form.DECODED, 128, 64)], np.int64).tobytes()
    assert host.heard() == Finished(5, 8, 2, expected, (0, 65, 0), Spent(decoded=2, fetched=1))
    assert os.pread(host.memory, 64, 128) == bytes(range(64))


def test_the_first_order_is_reported_too(
    host: Host, open_store: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order begins as soon as the host's memory is there. Its report must find the connection there as well, or
    its samples would count as being prepared for as long as the job lives."""
    mapped, over = threading.Event(), threading.Event()

    def slow_close(fds: list[int]) -> None:
        wire_close(fds)
        mapped.set()
        over.wait(5)  # whatever comes between the memory and the connection takes its time

    wire_close = wire.close_all
    monkeypatch.setattr(share.wire, "close_all", slow_close)
    store = open_store()
    host.welcome()
    first = order()
    assert store.take(first, Form.DECODED, [64]) == [128]
    assert mapped.wait(20)
    store.finished(first, OrderDone(1, []))
    over.set()
    assert host.heard() == Finished(5, 8, 2)


def test_extents_outside_of_the_cache_are_refused(host: Host, open_store: Callable[[], SharedStore]) -> None:
    store = open_store()
    host.welcome()
    assert len(store.extent(order(), 0, SPAN)) == SPAN
    for offset, nbytes in ((-1, 1), (0, SPAN + 1), (SPAN, 1), (0, -1), (1 << 62, 1)):
        with pytest.raises(ValueError, match="outside of the cache"):
            store.extent(order(), offset, nbytes)


def test_without_the_hosts_memory_nothing_is_cached(
    host: Host, open_store: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    host.welcome()
    store.extent(order(), 0, 1)
    waits: list[float | None] = []
    really = store._arrived.wait_for
    monkeypatch.setattr(
        store._arrived, "wait_for", lambda test, limit: waits.append(limit) or really(test, 0)
    )
    other = order(instance=INSTANCE + 1)
    assert store.take(other, Form.DECODED, [64, 64]) == [None, None]
    with pytest.raises(ValueError, match="not here"):
        store.extent(other, 0, 1)
    assert store.take(order(ticket=-1), Form.DECODED, [64]) == [None]
    assert set(waits) == {share._BRIEFLY} and share._BRIEFLY < 1, "that host is gone: another is here"


def test_memory_that_is_shorter_than_promised_is_not_mapped(
    host: Host, open_store: Callable[[], SharedStore]
) -> None:
    """To touch what lies beyond a file's end would kill the worker."""
    store = open_store()
    host.welcome(SPAN + 1)
    assert host.sock is not None and wire.receive(host.sock) is None, "it has hung up"
    host.welcome()
    assert len(store.extent(order(), 0, SPAN)) == SPAN


def test_the_host_of_another_user_is_not_believed(
    host: Host, open_store: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = iter([os.geteuid() + 1])
    monkeypatch.setattr(share.wire, "peer_uid", lambda sock: next(users, os.geteuid()))
    open_store()
    sock, _ = host._listener.accept()
    with sock:
        sock.settimeout(20)
        assert wire.receive(sock) is None, "not even a hello"
    host.welcome()


def test_a_worker_that_is_refused_comes_back_and_one_whose_host_is_replaced_too(
    host: Host, open_store: Callable[[], SharedStore]
) -> None:
    store = open_store()
    assert host.greeted().job == "token"
    host.say(Refused("its job is not known here", True))
    host.welcome()
    store.extent(order(), 0, 1)
    host.greeted()  # after its connection was closed
    host.say(Welcome(INSTANCE + 1, SPAN), host.memory)
    assert len(store.extent(order(instance=INSTANCE + 1), 0, 1)) == 1
    assert len(store.extent(order(), 0, 1)) == 1, "orders may still refer to the memory of the one before"


def holders(fd: int) -> int:
    """How often this process has mapped a file."""
    return Path("/proc/self/maps").read_text().count(f" {os.fstat(fd).st_ino} ")


@pytest.mark.parametrize("idle", [True, False])
def test_the_memory_of_a_host_that_is_gone_is_let_go(
    host: Host, open_store: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """Else a dead host's whole cache would stay in memory beside that of the one that took its place."""
    store = open_store()
    host.welcome()
    view = store.extent(order(), 0, 4)
    before, host.memory = host.memory, os.memfd_create("cache of the next one")
    os.ftruncate(host.memory, SPAN)
    host.greeted()
    host.say(Welcome(INSTANCE + 1, SPAN), host.memory)
    present = order(instance=INSTANCE + 1)
    store.extent(present, 0, 1)
    assert holders(before) == holders(host.memory) == 1, "some orders may not be done"
    monkeypatch.setattr(share, "_LINGER", -1.0)
    store.extent(order(), 0, 1)
    if idle:
        store.idle()
    else:
        store.extent(present, 0, 1)
    assert holders(before) == 1 and bytes(view) == bytes(4), "somebody looks at it"
    del view
    assert holders(before) == 0 and holders(host.memory) == 1
    with pytest.raises(ValueError, match="not here"):
        store.extent(order(), 0, 1)
    assert len(store.extent(present, 0, 1)) == 1
    store.close()
    assert holders(host.memory) == 0
    os.close(before)


@pytest.mark.parametrize("takes", [True, False])
def test_fills_are_taken_or_given_up(host: Host, open_store: Callable[[], SharedStore], takes: bool) -> None:
    store = open_store()
    fills: list[int] = []
    done = threading.Event()

    def fill(asked: Order) -> None:
        fills.append(asked.ticket)
        done.set()

    store.on_fill = fill if takes else None
    host.welcome()
    store.extent(order(), 0, 1)
    host.say(Fill(Order(9, 0, 0, 3, 0, 0, 0, 0, b"", ticket=9, fill=True)))
    if takes:
        assert done.wait(20) and fills == [9]
    else:
        assert host.heard() == Finished(9, 0, 3)
