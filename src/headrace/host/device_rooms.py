"""Memory of devices that jobs share, as the host has it: descriptors that it keeps and hands on.

The driver keeps memory for as long as anybody has a descriptor of it or has mapped it. So nobody's death takes it
from those who read it; and when the last of them is gone, the host lets its descriptors go, and the memory is free.
The host itself uses no device.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.channel.channel import Attached, Memory, wait
from headrace.coordinate.device_pools import DevicePool
from headrace.coordinate.protocol import (
    Attach,
    Chunk,
    MoreRoom,
    NoMemory,
    Pool,
    Release,
    Request,
    Room,
    WantChunk,
)
from headrace.core.device_table import check_table, make_table, next_chunk
from headrace.core.errors import ProtocolError
from headrace.host.connections import MOST_CHUNKS, Connection
from headrace.host.control import DeviceStatus
from headrace.host.switchboard import Switchboard

_GRACE = 2.0
"""Seconds after the end of a process for which nobody goes on where it wrote: its device may be behind."""


@dataclass(eq=False)
class _Shared:
    """A pool, and what is kept of it."""

    key: str
    label: str
    number: int
    samples: int
    table: int
    pool: DevicePool
    fds: dict[int, int] = field(default_factory=dict)
    """By number of the chunk."""
    there: dict[int, Connection] = field(default_factory=dict)
    gone: bool = False

    def close(self) -> None:
        self.gone = True
        for fd in (self.table, *self.fds.values()):
            os.close(fd)


@dataclass(eq=False)
class _Ending:
    """Somebody who left and may still write."""

    shared: _Shared
    member: int
    token: str
    process: int
    """A descriptor that tells of its end,"""
    since: float | None = None
    """and when it did."""


class DeviceRooms:
    """All pools of a host."""

    def __init__(self, switchboard: Switchboard, clock: Callable[[], float] = time.monotonic) -> None:
        self._switchboard, self._clock = switchboard, clock
        self._pools: dict[str, _Shared] = {}
        self._of: dict[int, _Shared] = {}
        """By member."""
        self._last = 0
        self._processes: dict[int, int] = {}
        """By member: a descriptor that tells of its end; -1: there is none."""
        self._ending: list[_Ending] = []

    def welcome(self, connection: Connection) -> None:
        """Somebody has come who shares the memory of a device."""
        self._last += 1
        connection.member = self._last
        process = connection.channel.watch()
        self._processes[self._last] = os.dup(process) if process >= 0 else -1

    def handle(self, connection: Connection, request: Request, attached: Attached | None) -> None:
        """Somebody said something. What this raises ends the connection."""
        member = connection.member
        if isinstance(request, Attach):
            self._attach(connection, request, attached)
            return
        shared = self._of.get(member)
        if shared is None:
            raise ProtocolError(f"{type(request).__name__} from a device that is in no pool")
        if isinstance(request, WantChunk):
            found = None if self._count() >= MOST_CHUNKS else shared.pool.want(member)
            self._switchboard.reply(connection, Room(-1) if found is None else Room(*found))
        elif isinstance(request, Chunk):
            self._chunk(shared, connection, request, attached)
        elif isinstance(request, NoMemory):
            shared.pool.failed(member)
        elif isinstance(request, Release):
            shared.pool.done(member)
        else:
            raise ProtocolError(f"{type(request).__name__} from a device")
        self._tell_of_room(shared)

    def _attach(self, connection: Connection, request: Attach, attached: Attached | None) -> None:
        if connection.member in self._of:
            raise ProtocolError("a second pool")
        shared = self._pools.get(request.key)
        if shared is None:
            shared = self._pools[request.key] = self._make(request, attached)
        if shared.samples != request.samples:
            raise ProtocolError("a pool of the same name has another number of samples")
        for before in [one for one in shared.there.values() if one.token == connection.token]:
            self._switchboard.drop(before)
        if shared.gone:  # (it was there alone)
            raise ProtocolError("its connection before was only now given up")
        self._of[connection.member] = shared
        shared.pool.attach(connection.member, request.budget)
        self._come_back(shared, connection)
        shared.there[connection.member] = connection
        table = Memory(shared.table)
        self._switchboard.reply(connection, Pool(shared.number, shared.pool.chunk), table)
        for number, fd in shared.fds.items():
            self._switchboard.reply(connection, Chunk(number), Memory(fd))
        self._tell_of_room(shared)

    def _come_back(self, shared: _Shared, connection: Connection) -> None:
        """If it was there before, and lost its connection, it goes on where it wrote."""
        ending, self._ending = self._ending, []
        for one in ending:
            if one.shared is shared and one.token == connection.token and one.since is None:
                shared.pool.come_back(one.member, connection.member)
                os.close(one.process)
            else:
                self._ending.append(one)

    @staticmethod
    def _make(request: Attach, attached: Attached | None) -> _Shared:
        """A pool; if somebody has one from a host before, that one."""
        given = attached.memory() if request.pool and attached is not None else None
        if given is not None:
            check_table(given, request.samples)
            table, number = os.dup(given), request.pool
        else:
            table, number = make_table(request.samples), secrets.randbits(47) + 1
        pool = DevicePool(request.chunk, lambda: next_chunk(table))
        return _Shared(request.key, request.label, number, request.samples, table, pool)

    def _chunk(
        self, shared: _Shared, connection: Connection, chunk: Chunk, attached: Attached | None
    ) -> None:
        fd = None if attached is None else attached.memory()
        if fd is None:
            raise ProtocolError("a chunk without memory")
        member, number = connection.member, chunk.number
        if not shared.pool.made(member, number):
            if self._count() >= MOST_CHUNKS:
                raise ProtocolError("there are too many chunks")
            if not shared.pool.offer(member, number, writing=chunk.writing):
                return
        shared.fds[number] = os.dup(fd)
        for other in [one for one in shared.there.values() if one is not connection]:
            self._switchboard.reply(other, Chunk(number), Memory(shared.fds[number]))

    def farewell(self, connection: Connection) -> None:
        """Somebody is gone."""
        process = self._processes.pop(connection.member, -1)
        shared = self._of.pop(connection.member, None)
        if shared is not None:
            del shared.there[connection.member]
            if not shared.there:
                shared.close()
                del self._pools[shared.key]
            elif shared.pool.leave(connection.member) and process >= 0:
                self._ending.append(_Ending(shared, connection.member, connection.token, process))
                process = -1
        if process >= 0:
            os.close(process)

    def look(self) -> None:
        """See whose process has ended. To be called now and then."""
        now, ending, self._ending = self._clock(), self._ending, []
        for one in ending:
            if one.since is None and (one.shared.gone or wait(one.process, 0)):
                one.since = now
            if one.since is None or (not one.shared.gone and now - one.since < _GRACE):
                self._ending.append(one)
                continue
            os.close(one.process)
            one.shared.pool.done(one.member)
            self._tell_of_room(one.shared)

    @property
    def waits(self) -> bool:
        """Whether somebody's end is waited for."""
        return bool(self._ending)

    def _tell_of_room(self, shared: _Shared) -> None:
        for connection in [shared.there[member] for member in shared.pool.take_hopeful()]:
            self._switchboard.reply(connection, MoreRoom())

    def _count(self) -> int:
        return sum(len(shared.fds) for shared in self._pools.values())

    def describe(self) -> list[DeviceStatus]:
        """How they stand."""
        return [
            DeviceStatus(
                shared.label,
                len(shared.there),
                len(shared.fds) * shared.pool.chunk,
                shared.pool.budget,
            )
            for shared in self._pools.values()
        ]

    def close(self) -> None:
        """Let all of it go."""
        for one in self._ending:
            os.close(one.process)
        for process in self._processes.values():
            if process >= 0:
                os.close(process)
        for shared in self._pools.values():
            shared.close()
        self._ending, self._processes, self._pools, self._of = [], {}, {}, {}
