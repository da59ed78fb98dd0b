"""The host without workers: for debugging, and for those who ask for none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from headrace.cache.arena import Arena
from headrace.channel.channel import wait
from headrace.coordinate.coordinator import Batch, Coordinator
from headrace.coordinate.messages import Order, OrderDone
from headrace.engine.board import Board
from headrace.host.base import BaseHost
from headrace.host.client import SharedClient
from headrace.host.slots import SlotPool


class InlineHost(BaseHost):
    """A host without workers: orders run in the calling thread, when a batch is asked for."""

    def __init__(
        self,
        arena: Arena,
        board: Board,
        coordinator: Coordinator,
        slots: SlotPool,
        run: Callable[[Order], OrderDone],
        shared: SharedClient | None = None,
    ) -> None:
        super().__init__(arena, board, coordinator, slots, ahead=1)
        self._run = run
        self.shared = shared
        self.on_close: Callable[[], None] | None = None
        """Lets go what ``run`` holds."""

    def probe(self, order: Order, timeout: float | None) -> OrderDone:
        """See ``Host``."""
        return self._run(order)

    def next_batch(self, timeout: float | None) -> Batch | None:
        """See ``Host``."""
        self._check_usable()
        begun = time.perf_counter()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for _, orders in self._credit():
                for order in orders:
                    self._finish(self._run(order))
            batch = self.coordinator.take()
            if batch is not None or not self._waits_for_others(deadline):
                self.totals.waited += time.perf_counter() - begun
                return batch

    def _waits_for_others(self, deadline: float | None) -> bool:
        """Whether more is to come from a shared host; waits for it, and runs what it was that was waited for."""
        shared, coordinator = self.shared, self.coordinator
        if shared is None or not (coordinator.later or coordinator.outstanding):
            return False
        if shared.fileno() >= 0 and not shared.has_updates and not shared.has_draws:
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            wait(shared.fileno(), left)
        shared.pump()
        for drawn in shared.take_updates():
            for order in coordinator.release(drawn):
                slot = coordinator.slot_of(order.id)
                order.slot_offset, order.slot_bytes, order.layout = slot.offset, slot.nbytes, self.layout
                self._finish(self._run(order))
        return True

    def abandon(self) -> None:
        """See ``Host``."""
        if not self._closed and os.getpid() == self._owner:
            self.coordinator.abandon()
            if self.shared is not None:
                self.shared.drop()
            self._free_abandoned()

    def close(self) -> None:
        """See ``Host``."""
        if not self._closed and os.getpid() == self._owner:
            self._closed = True
            if self.shared is not None:
                self.shared.close()
            if self.on_close is not None:
                self.on_close()
            self._close_memory()
