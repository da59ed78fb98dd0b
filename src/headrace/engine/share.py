"""A worker's end of the shared cache: its memory, and what is told to the host of orders that are done.

The memory of a host that was replaced stays mapped while orders may still refer to it, and no longer: workers are the
last to hold it. A host whose memory cannot be shared (its channel carries none) is one without a cache: rows are
fetched from the source, and what they might have filled comes back with their report.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from headrace.cache.windows import Windows
from headrace.channel.channel import Dial
from headrace.coordinate.grants import Grants, reports
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.protocol import Finished, Idle, Welcome
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.engine.share_connection import ShareConnection
from headrace.engine.store import Room

_PATIENCE = 3.0
"""Seconds for which an order waits for the memory that it refers to, while this worker looks for its host."""
_BRIEFLY = 0.1
"""The same while there is a host: an order that refers to another one was drawn by one that is gone."""
_MEMORIES = 2
"""Hosts whose memory is kept: the present one's and that of the one before."""
_LINGER = 30.0
"""Seconds for which no order has referred to the memory of the one before, after which it is let go."""


class SharedStore:
    """Extents in the memory of a shared host. Threads of one worker share it."""

    def __init__(self, dial: Dial, token: str, patience: float = 60.0) -> None:
        """``dial``: reaches the host. ``patience``: seconds for which a host may take in nothing; then it is done
        without."""
        self._memories: dict[int, Windows | None] = {}
        """By host, the present one's last. None: it has none for us."""
        self._needed = 0.0
        """When an order last referred to the memory of the host before."""
        self._arrived = threading.Condition()
        self._grants: dict[tuple[int, int], Grants] = {}
        self.on_fill: Callable[[Order], None] | None = None
        """Takes a fill; called in the connection's own thread."""
        self._host = ShareConnection(dial, token, patience, self._map, self._fill)
        self._host.start()

    def _map(self, welcome: Welcome, fd: int | None) -> None:
        """Take in the memory of a new host."""
        memory = None
        if fd is not None:
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

    def _fill(self, order: Order) -> None:
        if self.on_fill is not None:
            self.on_fill(order)
        else:
            self._host.send(Finished(order.ticket, 0, order.rows))

    def idle(self) -> None:
        """This worker has nothing to do. (Without the host's memory it could do nothing for the cache.)"""
        self._let_go_of_old()
        with self._arrived:
            shares = next(reversed(self._memories.values()), None) is not None
        if shares:
            self._host.send(Idle())

    def close(self) -> None:
        """Leave, and let the memory go."""
        self._host.close()
        with self._arrived:
            self._memories.clear()
            self._arrived.notify_all()

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
                patience = _BRIEFLY if self._host.connected else _PATIENCE
                self._arrived.wait_for(lambda: instance in self._memories, patience)
                memory = self._memories.get(instance)
        if memory is None:
            raise ValueError("the memory of that host is not here")
        return memory

    def extent(self, order: Order, address: int, nbytes: int) -> memoryview:
        """See ``Store``. There is the arena alone: other tiers lie outside of it."""
        return self._memory(order.instance).view(address, nbytes)

    def take(self, order: Order, form: Form, sizes: Sequence[int]) -> list[Room | None]:
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
        room: list[Room | None] = []
        for address, size in zip(grants.take(form, sizes), sizes, strict=True):
            try:
                room.append(None if address is None else (address, self.extent(order, address, size)))
            except ValueError:  # it lies outside of the cache: no reason to lose the row
                room.append(None)
        return room

    def finished(self, order: Order, done: OrderDone) -> None:
        """See ``Store``."""
        grants = self._grants.pop((order.ticket, order.first), None)
        if order.ticket < 0:
            return
        if grants is not None:
            done.wanted = grants.largest_wanted
        for report in reports(order, done):
            self._host.send(report)
