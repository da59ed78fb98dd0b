"""Rows that NIXL writes into the memory of the rank, for networks with RDMA. Nothing of it is encrypted.

What is written from afar cannot be called back: a helper that was given up may still write. So nothing is written
into slots. Each connection has memory of its own to land in, registered with a NIXL agent of its own; rows are copied
from there into the slot when the message that tells of them and the notification of their grant have both come. When
the connection ends, first that agent goes, and with it what others need to write there; then the memory. Neither
serves another connection.

Rows that do not fit where there is room come over the wire, as all do where NIXL is not to be had.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.channel.wire import Wire
from headrace.cluster.messages import Land
from headrace.cluster.rows import BESIDE, WireReceiving, WireSending
from headrace.core import environment
from headrace.core.errors import HeadraceError, ProtocolError
from headrace.core.layout import aligned
from headrace.core.sparse import PAGE

_PLACES = 4
"""Grants whose rows can be on their way by one connection."""
_MOST = 64 << 20
"""Bytes of one place."""
_NOTICE = struct.Struct("<qq")
"""A grant's number, and the bytes that were written for it."""
_PAUSE = 50e-6
"""Seconds between looks at something that is all but there."""
_PROGRESS, _IDLE = 0.002, 0.02
"""Seconds between looks at what is on its way, and whether anything is."""

Memory = NDArray[np.uint8]


class NoNixl(HeadraceError):
    """NIXL is not to be had; the message says why, and what to do about it."""


class NixlEnd:
    """A NIXL agent, and memory of it that is registered. Any call may raise NoNixl."""

    def __init__(self) -> None:
        environment.quiet_nixl()
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            raise NoNixl(
                f"NIXL is not installed ({error}); install it on every node with: pip install nixl"
            ) from None
        with _said("does not start"):
            # (a thread of NIXL's own would keep a CPU busy, for each connection)
            config = nixl_agent_config(backends=["UCX"], enable_prog_thread=False)
            self._agent: Any = nixl_agent(f"headrace-{os.urandom(8).hex()}", config)
        self.memory: Memory = np.empty(0, np.uint8)
        self._registered: Any = None

    def register(self, nbytes: int) -> None:
        """Have so many bytes of memory that NIXL may read and write, in the place of what there was."""
        self._deregister()
        memory: Memory = np.frombuffer(mmap.mmap(-1, aligned(max(1, nbytes), PAGE)), np.uint8)
        with _said("cannot register memory"):
            whole = self._agent.get_reg_descs([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
            self._registered = self._agent.register_memory(whole)
        self.memory = memory

    def _deregister(self) -> None:
        if self._registered is not None:
            self._agent.deregister_memory(self._registered)
            self._registered = None

    @property
    def address(self) -> int:
        """Of the memory."""
        return int(self.memory.ctypes.data)

    def metadata(self) -> bytes:
        """What others need to write into the memory."""
        with _said("says nothing of itself"):
            return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes) -> str:
        """Learn of another end, by what it says of itself; its name."""
        with _said("does not know the other end"):
            found = self._agent.add_remote_agent(metadata)
        return found.decode() if isinstance(found, bytes) else str(found)

    def write(self, other: str, nbytes: int, address: int, notice: bytes, seconds: float) -> None:
        """Write the first bytes of the memory to an address of another end; it gets a notice when they are there."""
        with _said("cannot write"):
            mine = self._agent.get_xfer_descs([(self.address, nbytes, 0)], "DRAM")
            theirs = self._agent.get_xfer_descs([(address, nbytes, 0)], "DRAM")
            handle = self._agent.initialize_xfer("WRITE", mine, theirs, other, notice)
            until = time.monotonic() + seconds
            try:
                state = self._agent.transfer(handle)
                while state == "PROC":
                    if time.monotonic() > until:
                        raise TimeoutError("the other end takes nothing in")
                    time.sleep(_PAUSE)
                    state = self._agent.check_xfer_state(handle)
            finally:
                # (of one that was not done, this is the end, too; what is left of it goes with the agent)
                with contextlib.suppress(Exception):
                    handle.release()
        if state != "DONE":
            raise NoNixl(f"NIXL cannot write: {state}")

    def notices(self) -> list[bytes]:
        """Those that have come since this was last asked."""
        with _said("does not tell what has come"):
            return [one for some in self._agent.get_new_notifs().values() for one in some]

    def close(self) -> None:
        """End it: nobody writes into the memory any more, which is let go after that."""
        if self._agent is not None:
            with contextlib.suppress(Exception):
                self._deregister()
            self._agent = None
        self.memory = np.empty(0, np.uint8)


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """NIXL's own errors, which are many, as one of headrace's."""
    try:
        yield
    except (NoNixl, OSError):
        raise
    except Exception as error:
        raise NoNixl(f"NIXL {what}: {type(error).__name__}: {error}") from None


def try_nixl() -> str:
    """Whether there is NIXL here: why not, or nothing."""
    try:
        NixlEnd().close()
    except NoNixl as error:
        return str(error)
    return ""


class NixlReceiving:
    """See ``Receiving``: rows are written into memory of this connection's, and copied into the slot."""

    def __init__(self, connection: Wire) -> None:
        self._connection, self._wire = connection, WireReceiving(connection)
        self._lock = threading.Lock()
        self._end: NixlEnd | None = None
        self._place = 0
        """Bytes of each place."""
        self._free: list[int] = []
        self._granted: dict[int, int] = {}
        """By the number of the grant: its place. No number comes twice, so nobody takes one grant's rows for
        another's."""
        self._told: dict[int, int] = {}
        """Grants of which a notice has come, and the bytes that were written."""
        self._closed = False
        connection.meanwhile = self._look
        self.tried, self.proved = False, False
        """Whether rows were to come so, and whether any have."""

    def room(self, number: int, nbytes: int) -> tuple[int, Land | None]:
        """See ``Receiving``. Raises NoNixl."""
        with self._lock:
            if self._closed or not 0 < nbytes <= _MOST:
                return BESIDE, None
            land = None
            if nbytes > self._place:
                if self._granted:  # (larger ones find room when those are there)
                    return BESIDE, None
                try:
                    land = self._make_land(nbytes)
                except NoNixl:
                    self._closed = True  # (to it; the rest comes over the wire)
                    raise
            if not self._free:
                return BESIDE, None
            place = self._granted[number] = self._free.pop()
            self.tried = True
            return place, land

    def _make_land(self, nbytes: int) -> Land:
        """Memory to land in, with places for rows of that size; what there was before is gone first."""
        self._end_land()
        end = NixlEnd()
        try:
            place = aligned(min(_MOST, 2 * nbytes), PAGE)
            end.register(place * _PLACES)
            land = Land(end.metadata(), end.address)
        except BaseException:
            end.close()
            raise
        self._end, self._place = end, place
        self._free = [place * at for at in range(_PLACES)]
        return land

    def _end_land(self) -> None:
        if self._end is not None:
            self._end.close()
        self._end, self._place, self._free = None, 0, []
        self._told.clear()

    def take(self, number: int, beside: int, into: Sequence[memoryview], seconds: float) -> None:
        """See ``Receiving``."""
        with self._lock:
            place, end = self._granted.get(number), self._end
        if place is None or end is None:
            self._wire.take(number, beside, into, seconds)
            return
        if beside:
            raise ProtocolError(f"{self._connection.name} sent rows beside a message that were to be written")
        if self._wait(number, seconds) != sum(map(len, into)):
            raise ProtocolError(f"{self._connection.name} wrote rows of another size")
        at = place
        for view in into:
            view[:] = memoryview(end.memory.data)[at : at + len(view)]
            at += len(view)
        with self._lock:
            del self._granted[number]
            self._free.append(place)
            self.proved = True

    def _wait(self, number: int, seconds: float) -> int:
        """Until a grant's rows were written; their bytes."""
        until = time.monotonic() + seconds
        while True:
            self._look()
            if number in self._told:
                return self._told.pop(number)
            if time.monotonic() > until:
                raise TimeoutError(f"{self._connection.name} told of rows that did not come")
            time.sleep(_PAUSE)

    def _look(self) -> float:
        """See what has come; seconds until this is worth doing again. Where NIXL has no RDMA, it is what makes rows
        arrive."""
        with self._lock:
            if not self._granted or self._end is None:
                return _IDLE
            for notice in self._end.notices():
                if len(notice) != _NOTICE.size:
                    raise ProtocolError(f"{self._connection.name} sent what is no notice")
                told, nbytes = _NOTICE.unpack(notice)
                if told in self._granted:
                    self._told[told] = nbytes
        return _PROGRESS

    def close(self) -> None:
        """See ``Receiving``."""
        self._connection.meanwhile = None
        with self._lock:
            self._closed = True
            self._granted.clear()
            self._end_land()
        self._wire.close()


class NixlSending:
    """See ``Sending``: rows are gathered in memory that is registered, and written by one transfer."""

    def __init__(self, connection: Wire, land: Land) -> None:
        """Raises NoNixl."""
        self._connection, self._wire, self._land = connection, WireSending(connection), land
        self._end = NixlEnd()
        self._broken = False
        """A write did not end, and may still read the memory: nothing else is put there."""
        try:
            self._other = self._end.meet(land.metadata)
        except BaseException:
            self._end.close()
            raise

    def send(self, number: int, place: int, message: bytes, rows: Sequence[Any], seconds: float) -> None:
        """See ``Sending``. Raises NoNixl."""
        if place == BESIDE:
            self._wire.send(number, place, message, rows, seconds)
            return
        if self._broken:
            raise NoNixl("NIXL could not write before")
        pieces = [memoryview(one).cast("B") for one in rows]
        nbytes = sum(map(len, pieces))
        if self._end.memory.nbytes < nbytes:
            self._end.register(2 * nbytes)
        memory, at = memoryview(self._end.memory.data), 0
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)
        # (what lies outside of the memory that the other end told of, NIXL refuses)
        notice = _NOTICE.pack(number, nbytes)
        self._broken = True
        self._end.write(self._other, nbytes, self._land.base + place, notice, seconds)
        self._broken = False
        self._connection.send(message, seconds=seconds)

    def end(self) -> None:
        """Write nothing any more; the connection stays."""
        self._end.close()

    def close(self) -> None:
        """See ``Sending``."""
        self.end()
        self._wire.close()
