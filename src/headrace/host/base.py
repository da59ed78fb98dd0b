"""What all hosts share: credits, slots, finished orders, sums."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Batch, Coordinator
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import LoaderClosed, OutOfSharedMemory
from headrace.core.sparse import punch, resident
from headrace.engine.board import Board
from headrace.engine.store import Cache
from headrace.host.client import SharedClient
from headrace.host.slots import HostSlot, SlotPool
from headrace.planning import Spent

_SELDOM = 16
"""The cache's memory is looked at once in so many orders."""


class Totals:
    """Sums over all finished orders."""

    def __init__(self) -> None:
        self.spent = Spent()
        self.orders = 0
        self.restarts = 0
        self.waited = 0.0
        """Seconds for which the job waited for a batch."""

    def add(self, spent: Spent) -> None:
        """Count one order."""
        self.orders += 1
        self.spent.add(spent)

    @property
    def gil_held(self) -> float:
        """Share of the time for which user code held the interpreter lock; negative: not measured."""
        return self.spent.gil_held


class Host(Protocol):
    """What a loader needs of a host."""

    coordinator: Coordinator
    slots: SlotPool
    arena: Arena
    totals: Totals
    layout: bytes
    ahead: int
    spare: int
    shared: SharedClient | None
    bytes_for: Callable[[int], int] | None

    def next_batch(self, timeout: float | None) -> Batch | None:
        """The next batch in order; None when all that was fed is delivered. Raises TimeoutError."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the next batch is there. Waits for nothing."""
        ...

    def probe(self, order: Order, timeout: float | None) -> OrderDone:
        """Run one order of one sample outside of any batch (its id is negative). Raises TimeoutError."""
        ...

    def abandon(self) -> None:
        """Forget what was fed and not delivered."""
        ...

    def close(self) -> None:
        """Stop workers and free memory."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it is over with this host."""
        ...


class BaseHost(ABC):
    """Hands slots to the coordinator and takes note of what came of it; how orders run is left to others."""

    def __init__(
        self, arena: Arena, board: Board, coordinator: Coordinator, slots: SlotPool, ahead: int
    ) -> None:
        self.arena, self.board = arena, board
        self.coordinator, self.slots = coordinator, slots
        self.ahead = ahead
        """Batches in the making or waiting to be taken."""
        self.spare = 2
        """Slots beside those: the batch that the loop holds, and the one that it is being given. With 1 the two
        share, so while the loop works one batch fewer is ahead."""
        self.shared: SharedClient | None = None
        """The connection to a shared host, if draws come from there."""
        self.totals = Totals()
        self.layout = b""
        """Put into every order where the layout was found out late."""
        self.bytes_for: Callable[[int], int] | None = None
        """Bytes of a slot for so many rows, where batches differ in size."""
        self.cache: Cache | None = None
        """The memory of the job's own cache, if it has one."""
        self._owner = os.getpid()
        self._closed = False

    @property
    def closed(self) -> bool:
        """See ``Host``."""
        return self._closed

    @property
    def ready(self) -> bool:
        """See ``Host``."""
        return False

    def _check_usable(self) -> None:
        if self._closed:
            raise LoaderClosed("the loader was closed; make a new one, or a new iterator")
        if os.getpid() != self._owner:
            raise LoaderClosed(
                "this iterator belongs to the process that forked this one; make a new one here"
            )

    def _close_memory(self) -> None:
        self.slots.close()
        if self.cache is not None:
            # Others may hold it open: whatever this process forked. Its memory is free all the same.
            with contextlib.suppress(OSError):
                punch(self.cache.arena.fd, 0, self.cache.span)
            self.cache.arena.close()
        self.board.close()
        self.arena.close()

    def _credit(self) -> Iterator[tuple[HostSlot, list[Order]]]:
        """Slots with the orders drawn into them, as far as batches are wanted ahead."""
        while self._credit_is_due():
            slot = self.slots.acquire()
            try:
                orders = self.coordinator.credit(slot)
            except BaseException:  # of a sampler
                self.slots.put_back(slot)
                raise
            if orders is None:
                self.slots.put_back(slot)
                break
            if self.bytes_for is not None:
                try:
                    self.slots.fit(slot, self.bytes_for(self.coordinator.drawn_rows))
                except OutOfSharedMemory:
                    self.close()  # the batch is drawn, and would be waited for in vain
                    raise
            for order in orders:
                order.slot_offset, order.slot_bytes, order.layout = slot.offset, slot.nbytes, self.layout
            yield slot, orders

    def _credit_is_due(self) -> bool:
        """Whether another batch is wanted ahead, and can be had."""
        return self.coordinator.outstanding < self.ahead and self._slot_is_due() and self._has_room()

    def _slot_is_due(self) -> bool:
        """Whether another batch may have a slot: there is a free one, or there are not yet as many as should be.

        A loop holds one batch while it works. One that keeps more has those beside what is prepared ahead.
        """
        self.slots.collect()
        most = self.ahead + self.spare + max(0, self.slots.leased - 1)
        return not self.coordinator.outstanding or self.slots.free > 0 or self.slots.count < most

    @abstractmethod
    def close(self) -> None:
        """See ``Host``."""

    def _has_room(self) -> bool:
        """Whether more orders can be posted."""
        return True

    def _finish(self, event: OrderDone) -> None:
        self.totals.add(event.spent)
        batch = self.coordinator.done(event)
        if batch is not None and event.slot_offset >= 0:
            assert isinstance(batch.slot, HostSlot)
            self.slots.took(batch.slot, event.slot_offset, event.slot_bytes)
        self._give_memory_back()
        self._free_abandoned()

    def _give_memory_back(self) -> None:
        """If the machine holds more for the cache than its budget, let some of what is not filled go."""
        directory = self.coordinator.directory
        if self.cache is None or not isinstance(directory, Directory) or self.totals.orders % _SELDOM:
            return
        fd = self.cache.arena.fd
        # File systems that cannot punch holes keep the memory until its place is used again.
        with contextlib.suppress(OSError):
            for start, end in directory.pool.loose(resident(fd)):
                punch(fd, start, end)

    def _free_abandoned(self) -> None:
        for slot in self.coordinator.freed():
            assert isinstance(slot, HostSlot)
            self.slots.put_back(slot)
