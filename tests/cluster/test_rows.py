"""How rows come to a rank, over the wire and written by NIXL: the same holds for both, whoever is killed or stopped.

NIXL is large, and is installed for ``make test-slow`` alone (CONTRIBUTING.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.channel import wire
from headrace.cluster import nixl_rows
from headrace.cluster.members import TROUBLE
from headrace.cluster.messages import Grant, Rows, decode_reply, encode
from headrace.cluster.nixl_rows import NixlEnd, NixlReceiving, NoNixl, try_nixl
from headrace.cluster.rows import BESIDE, Receiving, WireReceiving
from headrace.core.errors import ProtocolError
from tests.cluster.nodes import needs_nixl
from tests.cluster.rows_driver import field

REPOSITORY = Path(__file__).parents[2]
LARGE = 32 << 20
SECONDS = 30.0
WAYS: dict[str, Callable[[wire.Wire], Receiving]] = {"wire": WireReceiving, "nixl": NixlReceiving}


class Ends:
    """A sender, in a process of its own, and the receiving end here."""

    def __init__(self, way: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.rows_driver", way],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        )
        assert self.process.stdout is not None
        port, certificate = json.loads(self.process.stdout.readline())
        self.connection = wire.connect_tls(("127.0.0.1", port), certificate, SECONDS)
        self.receiving = WAYS[way](self.connection)
        self.slots: dict[int, bytearray] = {}
        self.sizes: dict[int, list[int]] = {}
        self.places: dict[int, int] = {}

    def grant(self, number: int, sizes: list[int], wrong: str = "") -> None:
        """Grant room for fields of these sizes, in a slot."""
        self.sizes[number], self.slots[number] = sizes, bytearray(sum(sizes))
        place, land = self.receiving.room(number, sum(sizes))
        self.places[number] = place
        if land is not None:
            self.connection.send(encode(land), seconds=SECONDS)
        samples = np.array(sizes, np.int64).tobytes()
        self.connection.send(encode(Grant(number, wrong, 0, 0, 0, samples, place=place)), seconds=SECONDS)

    def take(self, seconds: float = SECONDS) -> int:
        """The next rows, into their slot; their number."""
        message, beside = self.connection.receive_message(seconds=seconds, body_limit=1 << 30)
        reply = decode_reply(message)
        assert isinstance(reply, Rows), reply
        number, at, views = reply.number, 0, []
        for nbytes in self.sizes[number]:
            views.append(memoryview(self.slots[number])[at : at + nbytes])
            at += nbytes
        self.receiving.take(number, beside, views, seconds)
        return number

    def check(self, number: int) -> None:
        """Whether a slot has what it should."""
        wanted = [field(number, place, nbytes).tobytes() for place, nbytes in enumerate(self.sizes[number])]
        assert self.slots[number] == b"".join(wanted)

    def begun(self, number: int) -> bool:
        """Whether something of a grant's rows has come."""
        end = self.receiving._end if isinstance(self.receiving, NixlReceiving) else None
        memory: Any = self.slots[number] if end is None else end.memory[self.places[number] :]
        return bool(memory[0])

    def close(self) -> None:
        self.connection.shut()
        self.receiving.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=[pytest.param("wire"), pytest.param("nixl", marks=needs_nixl)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("UCX_LOG_LEVEL", "fatal")  # (it has much to say of those who are killed)
    return str(request.param)


@pytest.fixture
def ends(way: str) -> Iterator[Ends]:
    made = Ends(way)
    yield made
    made.close()


def test_rows_are_those_that_were_sent(ends: Ends, way: str) -> None:
    drawn = np.random.default_rng(0)
    under_way = 0
    for number in range(1, 41):
        ends.grant(number, drawn.integers(1, 100_000, drawn.integers(1, 5)).tolist())
        under_way += 1
        while under_way > (number % 4):
            ends.check(ends.take())
            under_way -= 1
    written = [place for place in ends.places.values() if place != BESIDE]
    assert bool(written) == (way == "nixl")


def test_rows_grow(ends: Ends, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NIXL's memory grows with them; meanwhile, and beyond what it may take, they come over the wire."""
    monkeypatch.setattr(nixl_rows, "_MOST", 2_000_000)
    for number, nbytes in enumerate((3000, 100_000, 2_000_000), start=1):
        ends.grant(number, [nbytes])
        ends.grant(100 + number, [4 * nbytes])  # (of which the room is not, yet)
        for _ in range(2):
            ends.check(ends.take())
        assert (ends.places[number] == BESIDE) == (way == "wire")
        assert ends.places[100 + number] == BESIDE
    ends.grant(4, [2_000_001])
    ends.check(ends.take())
    assert ends.places[4] == BESIDE


@pytest.mark.parametrize("wrong", ["short", "beside", "nothing", "elsewhere"])
def test_what_was_not_granted_so_is_no_row(ends: Ends, way: str, wrong: str) -> None:
    ends.grant(1, [3000, 5])
    ends.check(ends.take())
    ends.grant(2, [3000, 5], wrong)
    if way == "wire" and wrong in ("beside", "elsewhere"):  # (which is how it is granted)
        ends.check(ends.take())
        return
    with pytest.raises(TROUBLE):
        ends.take(1.0)
    assert not any(ends.slots[2])


def test_rows_of_a_number_that_was_not_granted(ends: Ends) -> None:
    ends.grant(1, [3000])
    slot = bytearray(2999)
    with pytest.raises(ProtocolError):
        _, beside = ends.connection.receive_message(seconds=SECONDS, body_limit=1 << 30)
        ends.receiving.take(7, beside, [memoryview(slot)], SECONDS)
    assert not any(slot)


def interrupted(way: str, how: signal.Signals) -> Ends:
    """Ends of which the sender was killed, or stopped, in the middle of writing rows of number 2."""
    for _ in range(5):
        ends = Ends(way)
        ends.grant(1, [1000])
        ends.check(ends.take())
        ends.grant(2, [LARGE])
        done = threading.Event()

        def take(ends: Ends = ends, done: threading.Event = done) -> None:
            with contextlib.suppress(*TROUBLE):
                ends.take()
                done.set()

        thread = threading.Thread(target=take)
        thread.start()
        until = time.monotonic() + SECONDS
        while not ends.begun(2) and time.monotonic() < until:
            time.sleep(0.0005)
        ends.process.send_signal(how)
        if how == signal.SIGSTOP:
            time.sleep(0.2)  # (what the kernel has of it arrives)
            ends.connection.shut()
        thread.join(SECONDS + 5)
        assert not thread.is_alive()
        if not done.is_set():
            return ends
        ends.close()
    pytest.fail("rows are always there before anybody can be killed")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sender_that_ends_or_hangs_in_the_middle_of_it(way: str, how: signal.Signals) -> None:
    """Nothing comes after the receiving end was closed: the slot may be somebody else's by then."""
    ends = interrupted(way, how)
    slot = ends.slots[2]
    if way == "nixl":
        assert not any(slot[:: 1 << 12])
    ends.receiving.close()
    slot[:] = b"\xee" * len(slot)
    other = Ends(way)  # (its memory may be where that of the other was)
    try:
        other.grant(2, [LARGE])
        if how == signal.SIGSTOP:
            ends.process.send_signal(signal.SIGCONT)
        other.check(other.take())
        ends.process.wait(30)  # (it finds that nobody is there)
        assert slot.count(0xEE) == len(slot)
        other.check(2)
    finally:
        other.close()
        ends.close()


# -- NIXL itself -------------------------------------------------------------------------------------------------


def test_where_nixl_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "nixl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nixl", None)
    assert "pip install nixl" in try_nixl()
    with pytest.raises(NoNixl):
        NixlEnd()


def test_where_nixl_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no device")

    monkeypatch.setitem(sys.modules, "nixl", SimpleNamespace())
    made_up = SimpleNamespace(nixl_agent=fails, nixl_agent_config=lambda **_: None)
    monkeypatch.setitem(sys.modules, "nixl._api", made_up)
    assert try_nixl() == "NIXL does not start: RuntimeError: no device"


@needs_nixl
def test_memory_and_threads_go_with_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    counts = []
    for _ in range(4):
        end = NixlEnd()
        end.register(1 << 20)
        end.register(2 << 20)
        end.close()
        end.close()
        counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    assert counts[1] == counts[-1]


@needs_nixl
def test_room_where_nixl_fails_is_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise NoNixl("NIXL does not start: no device")

    monkeypatch.setenv("UCX_TLS", "tcp,self")
    ends = Ends("nixl")
    monkeypatch.setattr(nixl_rows.NixlEnd, "register", fails)
    try:
        with pytest.raises(NoNixl):
            ends.receiving.room(1, 10)
        ends.grant(1, [10, 20])
        ends.check(ends.take())
    finally:
        ends.close()
