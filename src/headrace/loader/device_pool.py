"""A job's end of a pool of images in the memory of a device, which it shares with other jobs on that device.

The host keeps the memory and says who may write where; images themselves, and where they lie, pass from job to job
through memory that all of them map. So a job needs the host to find new memory, and for nothing else: while there is
none, it goes on with what it has, and brings all of it along to the next.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from headrace.channel.asking import ask, greet
from headrace.channel.channel import Attached, Channel, Dial, Memory, receive_within, send_within
from headrace.coordinate.device_pools import chunk_bytes
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    Attach,
    Chunk,
    Hello,
    MoreRoom,
    NoMemory,
    Pool,
    Release,
    Reply,
    Request,
    Room,
    WantChunk,
    decode_reply,
)
from headrace.core.device_table import LONGEST, UNIT, DeviceTable, read_words, word_of
from headrace.core.errors import HostUnavailable, ProtocolError
from headrace.loader import device_cache
from headrace.loader.device_memory import DeviceMemory

_GREETING = 10.0
"""Seconds for a host to take this job in, and to say where there is room."""
_SOON, _LATE = 0.02, 2.0
"""Seconds between looks at what others have added: while they do, and while they do not."""
_PART = 1 << 20
"""Samples that are looked at, at a time."""
_BRIEFLY = 2.0
"""Seconds for which the first image waits for a pool: a host has been found by then, and answers in a moment."""
_FAREWELL = 5.0

Learn = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], None]


class PoolRooms:
    """Memory that all jobs have which share a device. See ``Rooms``."""

    def __init__(
        self,
        dial: Dial,
        token: str,
        memory: DeviceMemory,
        *,
        key: str,
        label: str,
        samples: int,
        budget: int,
        learn: Learn,
    ) -> None:
        """``key``: equal where images are. ``learn``: is told of what others have added, in a thread of its own."""
        self._dial, self._token, self._memory, self._learn = dial, token, memory, learn
        chunk = chunk_bytes(budget, memory.granularity)
        self.full = chunk == 0
        self._wanted = Attach(key, label[:512], samples, budget, max(chunk, 1))
        self._chunk = chunk
        """Bytes of each, once there is a pool."""
        self._table: DeviceTable | None = None
        self._table_fd = -1
        self._seen: NDArray[np.int64] = np.zeros(samples, np.int64)
        """Words of the table, as they were when last looked at."""
        self._at = 0
        self._fds: dict[int, int] = {}
        self._told: set[int] = set()
        """Chunks that the present host knows."""
        self._places: dict[int, torch.Tensor] = {}
        """Chunks that are mapped."""
        self._mine, self._used = 0, 0
        """Where this job writes; 0: nowhere. And bytes of it that are used."""
        self._channel: Channel | None = None
        self._sending = threading.Lock()
        self._said = threading.Condition()
        self._answer: Room | None = None
        self._closed, self._met = threading.Event(), threading.Event()
        self._patient = True
        """Whether a pool has not been waited for."""
        self._thread = threading.Thread(target=self._run, name="headrace-device", daemon=True)
        if chunk:
            self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether there is a host."""
        return self._channel is not None

    # -- what the thread that decodes does -----------------------------------------------------------------------

    def take(self, nbytes: int) -> device_cache.Room | None:
        """See ``Rooms``."""
        size = -(-nbytes // UNIT) * UNIT
        if self._patient:
            self._patient = False
            self._met.wait(_BRIEFLY)  # (all that is decoded before is decoded again)
        if self._table is None or size > self._chunk:
            return None
        if (not self._mine or self._used + size > self._chunk) and not self._next_chunk(size):
            return None
        self._used += size
        begin = self._used - size
        return device_cache.Room(self._places[self._mine][begin : begin + nbytes], self._mine, self._used)

    def _next_chunk(self, size: int) -> bool:
        """Find another chunk to write to, with so much room. Some that others began have little left."""
        while (room := self._ask_for_room()) is not None:
            if room.number < 0:
                self._mine, self.full = 0, True
                return False
            if not room.there and not self._make(room.number):
                return False
            if room.number not in self._places:  # (what was said before has been heard by now)
                return False
            assert self._table is not None
            self._mine, self._used = room.number, self._table.used(room.number)
            if self._used + size <= self._chunk:
                return True
        return False

    def _ask_for_room(self) -> Room | None:
        with self._said:
            self._answer = None
            channel = self._channel
            if channel is None or not self._send(WantChunk()):
                self.full = True  # (until there is a host)
                return None
            self._mine = 0  # (from now on somebody else may be told that it is free)
            self._said.wait_for(lambda: self._answer is not None or self._channel is not channel, _GREETING)
            return self._answer

    def _make(self, number: int) -> bool:
        try:
            fd = self._memory.create(self._chunk)
        except MemoryError:
            self.full = True
            self._send(NoMemory())
            return False
        try:
            self._keep(number, fd)
        except _Apart:
            self.full = True
            self._send(NoMemory())
            return False
        self._tell(number, writing=True)
        return True

    def _tell(self, number: int, *, writing: bool) -> None:
        """Hand a chunk to the host. Where there is none, the next one is told."""
        if self._send(Chunk(number, writing=writing), Memory(self._fds[number])):
            self._told.add(number)

    def has(self, sample: int) -> bool:
        """See ``Rooms``."""
        return self._table is not None and bool(self._table.words[sample])

    def tell(self, sample: int, room: device_cache.Room, height: int, width: int) -> None:
        """See ``Rooms``."""
        assert self._table is not None
        if max(height, width) > LONGEST:
            return
        # (another thread may have told of an image that lies behind it)
        self._table.use(room.chunk, max(room.end, self._table.used(room.chunk)))
        offset = room.end - -(-room.memory.numel() // UNIT) * UNIT
        self._seen[sample] = self._table.words[sample] = word_of(room.chunk, offset, height, width)

    def read_on(self, stream: Any) -> None:
        """See ``Rooms``. All of the device is waited for before any of it is let go."""

    def close(self) -> None:
        """See ``Rooms``."""
        self._closed.set()
        self._send(Release())
        with self._sending:
            if self._channel is not None:
                self._channel.shut()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL)
        if self._thread.is_alive():
            return  # (it holds what it uses)
        self._let_go()

    def _let_go(self) -> None:
        self._places.clear()
        self._memory.close()
        for fd in [*self._fds.values(), *([self._table_fd] if self._table_fd >= 0 else [])]:
            os.close(fd)
        self._fds, self._table, self._table_fd = {}, None, -1

    # -- what the thread that listens does -------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.02
        while not self._closed.is_set():
            try:
                channel = self._connect()
            except _Apart:
                self.full = True  # others have another pool by now; this one is read, and nobody adds to it
                return
            if channel is None:
                self._closed.wait(pause)
                pause = min(0.5, pause * 1.5)
                continue
            pause = 0.02
            try:
                with contextlib.suppress(OSError, ProtocolError, msgspec.MsgspecError):
                    self._listen(channel)
            except _Apart as error:
                warnings.warn(f"images on the device are not shared with other jobs: {error}", stacklevel=2)
                self.full = True
                self._closed.set()
            self._disconnect(channel)

    def _disconnect(self, channel: Channel) -> None:
        with self._said:
            with self._sending:
                self._channel = None
            self._said.notify_all()
        channel.close()

    def _connect(self) -> Channel | None:
        try:
            channel = self._dial(_GREETING)
        except (OSError, ProtocolError):
            return None
        try:
            _, attached = greet(channel, Hello(PROTOCOL, "device", os.getpid(), self._token), _GREETING)
            if attached is not None:
                attached.close()
            self._attach(channel)
        except (OSError, HostUnavailable, ProtocolError):
            channel.close()
            return None
        except BaseException:
            channel.close()
            raise
        return channel

    def _attach(self, channel: Channel) -> None:
        """Bring along what there is, and take in what others have."""
        beside = None if self._table is None else Memory(self._table_fd)
        reply, attached = ask(channel, self._wanted, _GREETING, beside)
        try:
            table = None if attached is None else attached.memory()
            if not isinstance(reply, Pool) or table is None:
                raise ProtocolError(f"the shared host said {type(reply).__name__}")
            if self._table is None:
                self._table = DeviceTable(table, self._wanted.samples)
                self._table_fd, self._wanted.pool, self._chunk = os.dup(table), reply.pool, reply.chunk
            elif reply.pool != self._wanted.pool:
                raise _Apart("their shared host has another pool")
        finally:
            if attached is not None:
                attached.close()
        with self._sending:
            if self._closed.is_set():
                raise ProtocolError("this job has left")
            self._told = set()
            self._channel = channel
        self.full = self._chunk == 0
        self._met.set()

    def _listen(self, channel: Channel) -> None:
        pause, looked = _SOON, time.monotonic()
        while True:
            for number in [one for one in list(self._fds) if one not in self._told]:
                self._tell(number, writing=number == self._mine)
            with contextlib.suppress(TimeoutError):
                received = receive_within(channel, max(0.0, looked + pause - time.monotonic()))
                if received is None:
                    return
                if self._hear(decode_reply(received[0]), received[1]):
                    pause = 0.0
            if time.monotonic() - looked >= pause:
                pause = _SOON if self._look() else min(_LATE, max(_SOON, pause * 1.5))
                looked = time.monotonic()

    def _hear(self, reply: Reply, attached: Attached | None) -> bool:
        """Take in what the host says; whether there may be images now that could not be found before."""
        try:
            fd = None if attached is None else attached.memory()
            if isinstance(reply, Chunk) and fd is not None:
                self._told.add(reply.number)
                if reply.number not in self._fds:
                    self._keep(reply.number, os.dup(fd))
                return True
            if isinstance(reply, MoreRoom):
                self.full = False
            elif isinstance(reply, Room):
                with self._said:
                    self._answer = reply
                    self._said.notify_all()
            return False
        finally:
            if attached is not None:
                attached.close()

    def _keep(self, number: int, fd: int) -> None:
        """Map a chunk, and keep its descriptor for the next host."""
        try:
            self._places[number] = self._memory.map(fd, self._chunk)
        except OSError as error:
            os.close(fd)
            raise _Apart(f"their memory cannot be mapped here ({error})") from None
        self._fds[number] = fd

    def _look(self) -> bool:
        """Learn of what others have added; whether there was anything, or there is more to look at."""
        assert self._table is not None
        words, first = self._table.words, self._at
        part = words[first : first + _PART].copy()
        fresh = np.flatnonzero(part != self._seen[first : first + _PART])
        self._at = 0 if first + _PART >= len(words) else first + _PART
        if len(fresh):
            chunks, offsets, sides = read_words(part[fresh])
            begins = np.zeros(1 << 16, np.int64)
            for number, memory in list(self._places.items()):
                begins[number] = memory.data_ptr()
            # (whoever made a chunk may be known here before the chunk is)
            fits = offsets + 3 * sides.prod(1) <= self._chunk
            known = (begins[chunks] != 0) & fits
            fresh, places = fresh[known], (begins[chunks] + offsets)[known]
            self._learn(fresh + first, places, sides[known])
            self._seen[first + fresh] = part[fresh]
        return len(fresh) > 0 or self._at > 0

    def _send(self, request: Request, beside: Memory | None = None) -> bool:
        with self._sending:
            if self._channel is None:
                return False
            try:
                send_within(self._channel, _GREETING, encoder.encode(request), beside)
            except OSError:
                self._channel.shut()
                return False
            return True


class _Apart(Exception):
    """This job and the others cannot share."""
