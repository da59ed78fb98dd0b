"""A worker's end of the shared cache, against a host that the test plays itself."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.channel import unix
from headrace.channel.channel import Memory, receive_within, wait
from headrace.channel.unix import UnixChannel, UnixListener
from headrace.coordinate.messages import Order, OrderDone, encoder
from headrace.coordinate.protocol import Fill, Finished, Hello, Refused, Welcome, decode_request
from headrace.core.forms import Form
from headrace.engine import share
from headrace.engine.share import SharedStore
from headrace.planning import Spent
from tests.engine.rig import places

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
        self._listener = UnixListener(str(path), 8)
        self.memory = os.memfd_create("cache")
        os.ftruncate(self.memory, SPAN)
        self.channel: UnixChannel | None = None

    def accepted(self) -> UnixChannel:
        """The next one who connects."""
        assert wait(self._listener.fileno(), 20)
        channel = self._listener.accept()
        assert channel is not None
        return channel

    def greeted(self) -> Hello:
        """Take the next connection; what it says first."""
        if self.channel is not None:
            self.channel.close()
        self.channel = self.accepted()
        hello = self.heard()
        assert isinstance(hello, Hello)
        return hello

    def heard(self) -> object:
        """The next message of the worker."""
        assert self.channel is not None
        received = receive_within(self.channel, 20)
        assert received is not None, "the worker hung up"
        return decode_request(received[0])

    def say(self, reply: Welcome | Refused | Fill, memory: int | None = None) -> None:
        """Tell the worker."""
        assert self.channel is not None
        self.channel.send(encoder.encode(reply), None if memory is None else Memory(memory))

    def welcome(self, span: int = SPAN) -> None:
        """Let the worker in."""
        self.greeted()
        self.say(Welcome(INSTANCE, span), self.memory)

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
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
        stores.append(SharedStore(functools.partial(unix.connect, str(tmp_path / "host.sock")), "token"))
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
    assert places(store.take(done, Form.DECODED, [64, 65])) == [128, None]
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
        really_close(fds)
        mapped.set()
        over.wait(5)  # whatever comes between the memory and the connection takes its time

    really_close = unix.close_all
    monkeypatch.setattr(unix, "close_all", slow_close)
    store = open_store()
    host.welcome()
    first = order()
    assert places(store.take(first, Form.DECODED, [64])) == [128]
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
    assert host.channel is not None and receive_within(host.channel, 20) is None, "it has hung up"
    host.welcome()
    assert len(store.extent(order(), 0, SPAN)) == SPAN


def test_the_host_of_another_user_is_not_believed(
    host: Host, open_store: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = iter([os.geteuid() + 1])
    really = unix.peer_uid
    monkeypatch.setattr(
        unix,
        "peer_uid",
        lambda sock: (
            next(users, os.geteuid()) if threading.current_thread().name == "headrace-share" else really(sock)
        ),
    )
    open_store()
    with closing(host.accepted()) as channel:
        assert receive_within(channel, 20) is None, "not even a hello"
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


def test_a_host_whose_memory_cannot_be_shared_is_one_without_a_cache(
    host: Host, open_store: Callable[[], SharedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draws count, and what they might have filled comes back. Nobody waits for memory that does not come, nor
    offers to fill it."""
    store = open_store()
    host.greeted()
    host.say(Welcome(INSTANCE, SPAN))
    done = order()
    with pytest.raises(ValueError, match="not here"):
        store.extent(done, 128, 64)
    really, waits = store._arrived.wait_for, []
    monkeypatch.setattr(
        store._arrived, "wait_for", lambda test, limit: waits.append(test()) or really(test, limit)
    )
    with pytest.raises(ValueError, match="not here"):
        store.extent(done, 128, 64)
    assert store.take(done, Form.DECODED, [64, 64]) == [None, None]
    assert waits == [True, True]
    store.idle()
    store.finished(done, OrderDone(1, []))
    assert host.heard() == Finished(5, 8, 2)
