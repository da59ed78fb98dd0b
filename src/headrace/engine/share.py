"""A worker's end of the shared cache: its memory, its reports to the host, and the host's fills.

The connection is the worker's own, so that what it publishes is open to all jobs at once, however long its own
job is busy elsewhere. It is made anew when the host was replaced; the memory of the one before stays mapped while
orders may still refer to it, and no longer: workers are the last to hold it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from headrace.cache.windows import Windows
from headrace.coordinate.messages import Order, OrderDone, encoder
from headrace.coordinate.protocol import PROTOCOL, Fill, Finished, Hello, Idle, Refused, Welcome, decode_reply
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.engine import wire
from headrace.engine.store import Grants

_TIMEVAL = struct.Struct("@ll")
_PATIENCE = 3.0
"""Seconds for which an order waits for the memory that it refers to, while this worker looks for its host."""
_BRIEFLY = 0.1
"""The same while there is a host: an order that refers to another one was drawn by one that is gone."""
_TOGETHER = 1 << 14
"""Rows that one report tells of: those of a whole batch may be millions."""
_FAREWELL = 2.0
"""Seconds for the store's own thread to end; one that still looks for a host ends a little later."""
_MEMORIES = 2
"""Hosts whose memory is kept: the present one's and that of the one before."""
_LINGER = 30.0
"""Seconds for which no order has referred to the memory of the one before, after which it is let go."""


class SharedStore:
    """Extents in the memory of a shared host. Threads of one worker share it."""

    def __init__(self, path: str, token: str, patience: float = 60.0) -> None:
        """``patience``: seconds for which a host may take in nothing; then it is done without."""
        self._path, self._token, self._patience = path, token, patience
        self._sock: socket.socket | None = None
        self._sending = threading.Lock()
        self._memories: dict[int, Windows] = {}
        """By host, the present one's last."""
        self._needed = 0.0
        """When an order last referred to the memory of the host before."""
        self._arrived = threading.Condition()
        self._grants: dict[tuple[int, int], Grants] = {}
        self._closed = threading.Event()
        self.on_fill: Callable[[Order], None] | None = None
        """Takes a fill; called in the store's own thread."""
        self._thread = threading.Thread(target=self._run, name="headrace-share", daemon=True)
        self._thread.start()

    # -- the connection ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.02
        while not self._closed.is_set():
            sock = self._connect()
            if sock is None:
                self._closed.wait(pause)
                pause = min(0.5, pause * 1.5)
                continue
            pause = 0.02
            with contextlib.suppress(OSError, ProtocolError, msgspec.MsgspecError):
                self._listen(sock)
            with self._sending:
                self._sock = None
            sock.close()

    def _connect(self) -> socket.socket | None:
        try:
            sock = wire.make_socket()
        except OSError:  # no descriptor is left, for now
            return None
        try:
            sock.settimeout(10.0)
            sock.connect(self._path)
            if wire.peer_uid(sock) != os.geteuid():
                raise ProtocolError("the host is another user's")
            wire.widen(sock)
            wire.send(sock, encoder.encode(Hello(PROTOCOL, "worker", os.getpid(), self._token)))
            received = wire.receive(sock)
            if received is None:
                raise ProtocolError("the host closed the connection")
            data, fds = received
            try:
                welcome = decode_reply(data)
                if not isinstance(welcome, Welcome) or len(fds) != 1:
                    reason = welcome.reason if isinstance(welcome, Refused) else "no memory"
                    raise ProtocolError(f"the host did not take this worker: {reason}")
                sock.settimeout(None)
                # Reading may take for ever, but no thread of this worker may stand still because a host does.
                limit = _TIMEVAL.pack(int(self._patience), int(self._patience % 1 * 1e6))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                # First the connection, then the memory: an order that has found its memory is soon to be reported.
                with self._sending:
                    if self._closed.is_set():
                        raise ProtocolError("this worker has left")
                    self._sock = sock
                self._map(welcome, fds[0])
            finally:
                wire.close_all(fds)
        except (OSError, ProtocolError, msgspec.MsgspecError):
            with self._sending:
                self._sock = None
            sock.close()
            return None
        return sock

    def _map(self, welcome: Welcome, fd: int) -> None:
        if os.fstat(fd).st_size < welcome.span:
            raise ProtocolError("the cache is shorter than the host says")
        memory = Windows(fd, welcome.span)
        with self._arrived:
            self._memories.pop(welcome.instance, None)
            while len(self._memories) >= _MEMORIES:
                del self._memories[next(iter(self._memories))]
            self._memories[welcome.instance] = memory
            self._needed = time.monotonic()
            self._arrived.notify_all()

    def _listen(self, sock: socket.socket) -> None:
        while True:
            received = wire.receive(sock)
            if received is None:
                return
            wire.close_all(received[1])
            reply = decode_reply(received[0])
            if isinstance(reply, Fill):
                if self.on_fill is not None:
                    self.on_fill(reply.order)
                else:
                    self._send(Finished(reply.order.ticket, 0, reply.order.rows))

    def _send(self, event: Finished | Idle) -> None:
        data = encoder.encode(event)
        with self._sending:
            if self._sock is not None:
                try:
                    wire.send(self._sock, data)
                except OSError:
                    # What it was not told it would wait for: it has to see that this worker is gone.
                    with contextlib.suppress(OSError):
                        self._sock.shutdown(socket.SHUT_RDWR)
                    self._sock = None

    def idle(self) -> None:
        """This worker has nothing to do."""
        self._let_go_of_old()
        self._send(Idle())

    def close(self) -> None:
        """Leave, and let the memory go."""
        self._closed.set()
        with self._sending:
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL)
        with self._arrived:
            self._memories.clear()
            self._arrived.notify_all()

    # -- the store ---------------------------------------------------------------------------------------------

    def _let_go_of_old(self, instance: int | None = None) -> None:
        """Forget the memory of the host before, if no order has referred to it for a while. ``instance``: this one
        does refer to that host's."""
        with self._arrived:
            old = list(self._memories)[:-1]
            if instance in old:
                self._needed = time.monotonic()
            elif time.monotonic() - self._needed > _LINGER:
                for gone in old:
                    del self._memories[gone]

    def _memory(self, instance: int) -> Windows:
        memory = self._memories.get(instance)
        if len(self._memories) > 1:
            self._let_go_of_old(instance)
        if memory is None:
            with self._arrived:
                patience = _PATIENCE if self._sock is None else _BRIEFLY
                self._arrived.wait_for(lambda: instance in self._memories, patience)
                memory = self._memories.get(instance)
        if memory is None:
            raise ValueError("the memory of that host is not here")
        return memory

    def extent(self, order: Order, offset: int, nbytes: int) -> memoryview:
        """See ``Store``."""
        return self._memory(order.instance).view(offset, nbytes)

    def take(self, order: Order, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """See ``Store``."""
        if order.ticket < 0:
            return [None] * len(sizes)
        grants = self._grants.get((order.ticket, order.first))
        if grants is None:
            try:
                self._memory(order.instance)
            except ValueError:
                return [None] * len(sizes)
            grants = self._grants[order.ticket, order.first] = Grants(order.grants)
        return grants.take(form, sizes)

    def finished(self, order: Order, done: OrderDone) -> None:
        """See ``Store``."""
        grants = self._grants.pop((order.ticket, order.first), None)
        if order.ticket < 0:
            return
        rows = np.frombuffer(done.published, np.int64).reshape(-1, 4).copy()
        rows[:, 0] += order.first
        first, stop = order.first, order.first + len(order.indices) // 8
        wanted = (0, 0, 0) if grants is None else grants.largest_wanted
        while stop - first > _TOGETHER:
            mine = (rows[:, 0] >= first) & (rows[:, 0] < first + _TOGETHER)
            self._send(Finished(order.ticket, first, _TOGETHER, rows[mine].tobytes()))
            first += _TOGETHER
        self._send(
            Finished(
                order.ticket, first, stop - first, rows[rows[:, 0] >= first].tobytes(), wanted, done.spent
            )
        )
