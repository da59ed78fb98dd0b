"""The host without workers: for debugging, and for those who ask for none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Batch, Coordinator
from headrace.coordinate.messages import Order, OrderDone
from headrace.engine.board import Board
from headrace.host.base import BaseHost
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
    ) -> None:
        super().__init__(arena, board, coordinator, slots, ahead=1)
        self._run = run

    def probe(self, order: Order, timeout: float | None) -> OrderDone:
        """See ``Host``."""
        return self._run(order)

    def next_batch(self, timeout: float | None) -> Batch | None:
        """See ``Host``."""
        self._check_usable()
        begun = time.perf_counter()
        for _, orders in self._credit():
            for order in orders:
                self._finish(self._run(order))
        self.totals.waited += time.perf_counter() - begun
        return self.coordinator.take()

    def abandon(self) -> None:
        """See ``Host``."""
        if not self._closed and os.getpid() == self._owner:
            self.coordinator.abandon()
            self._free_abandoned()

    def close(self) -> None:
        """See ``Host``."""
        if not self._closed and os.getpid() == self._owner:
            self._closed = True
            self._close_memory()
