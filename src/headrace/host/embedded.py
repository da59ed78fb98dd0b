"""The host inside a job: it runs when the loader asks for a batch, and needs no thread of its own.

Workers pull orders from the board, so nothing waits for this process while it trains. All that is left to do
here happens when a batch is asked for: hand freed slots to the coordinator, post its orders, read what workers
report, and replace those that died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import ATTEMPTS, Batch, Coordinator
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import FILLED, Failed, Order, OrderDone, Ready, Run, Threads
from headrace.core.errors import OutOfSharedMemory, WorkerDied
from headrace.engine.board import CAPACITY, Board
from headrace.engine.worker import AGENT, Task, rebuild
from headrace.host.base import BaseHost
from headrace.host.client import SharedClient
from headrace.host.slots import HostSlot, SlotPool
from headrace.host.workers import Worker, Workers

_RESTARTS = 8
"""Workers that may die in a row without any order being finished in between."""
_CHECK = 1.0
"""Seconds after which a wait looks around even if nothing happened."""


class ProcessHost(BaseHost):
    """A host whose workers are processes."""

    def __init__(
        self,
        arena: Arena,
        board: Board,
        coordinator: Coordinator,
        slots: SlotPool,
        *,
        ahead: int,
        task: Task,
        workers: int,
        context: Any,
        assigned_orders: bool = False,
        shared: SharedClient | None = None,
        agent: bool = False,
    ) -> None:
        """``assigned_orders``: batch n goes to worker n modulo workers, and to no other (iterable datasets).
        ``shared``: the connection to a shared host, if draws come from there. ``agent``: there is a worker more,
        which has orders made elsewhere."""
        super().__init__(arena, board, coordinator, slots, ahead)
        self.shared = shared
        self._workers = Workers(task, context, arena, board, shared)
        self._positions: dict[int, int] = {}
        self._assigned: dict[int, int] | None = {} if assigned_orders else None
        self._barren = 0
        self._answer: OrderDone | None = None
        self._late: Exception | None = None
        """What a sampler raised while a batch was in hand."""
        self._probed = HostSlot(0, 0)
        self._threads = 0
        """As told to the workers; 0: nothing was."""
        self.pick: Callable[[Order], int] | None = None
        """For assigned orders: the worker that an order goes to."""
        self.on_done: Callable[[int, OrderDone], None] | None = None
        try:
            for worker_id in range(AGENT if agent else 0, workers):
                self._start(worker_id)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[Worker]:
        """The workers that are alive, as far as known."""
        return [self._workers.all[worker_id] for worker_id in sorted(self._workers.all)]

    def add_worker(self) -> None:
        """One more process."""
        self._start(max(self._workers.all, default=-1) + 1)

    def _start(self, worker_id: int) -> None:
        worker = self._workers.start(worker_id)
        if self._threads:
            self._workers.send(worker, Threads(self._threads))

    def probe(self, order: Order, timeout: float | None) -> OrderDone:
        """See ``Host``. A sample that kills its workers has a fault."""
        self._check_usable()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._answer = None
        how = ""
        for _ in range(ATTEMPTS):
            if order.id not in self._positions:  # else an earlier call ran out of time, and waiting goes on
                self._probed = self.slots.acquire()
                ((area, start, length),) = self.slots.write_orders(self._probed, [order])
                self._positions[order.id] = self.board.post(order.id, area, start, length)
                self.board.wake(1)
            while self._answer is None and order.id in self._positions:
                left = _CHECK if deadline is None else min(_CHECK, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                how = self._pump(left) or how
            self.slots.put_back(self._probed)
            if self._answer is not None:
                return self._answer
        return OrderDone(order.id, [(0, f"preparing it killed the worker ({how})", "")])

    def wait(self, until: Callable[[], bool], timeout: float) -> None:
        """Read what workers report until something is known, or they have nothing left to report."""
        deadline = time.monotonic() + timeout
        while not until() and self.coordinator.open_orders and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._pump(min(_CHECK, left))

    def set_threads(self, count: int) -> None:
        """How many threads prepare in each worker."""
        self._threads = count
        for worker in self.workers:
            self._workers.send(worker, Threads(count))

    @property
    def ready(self) -> bool:
        """See ``Host``."""
        if self._closed or self._late is not None:
            return False
        self._pump(0)
        return self.coordinator.has_whole

    def next_batch(self, timeout: float | None) -> Batch | None:
        """See ``Host``."""
        self._check_usable()
        if self._late is not None:
            late, self._late = self._late, None
            raise late
        deadline = None if timeout is None else time.monotonic() + timeout
        self._pump(0)
        begun = time.perf_counter()
        while True:
            batch = self.coordinator.take()
            self._fill_after(batch)
            if batch is not None:
                self.totals.waited += time.perf_counter() - begun
                return batch
            if self.coordinator.outstanding == 0 and not self.coordinator.later:
                return None
            left = _CHECK if deadline is None else min(_CHECK, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            self._pump(left)

    def _has_room(self) -> bool:
        # Half of the ring is kept for what has to be posted again when workers die.
        if self._positions and self.board.room(min(self._positions.values())) <= CAPACITY // 2:
            return False
        return not self._awaits_sizes()

    def fill(self) -> None:
        """Post orders for all the batches that are wanted ahead."""
        if self.coordinator.later and self.shared is not None and self.shared.awaits_draw:
            return
        posted = 0
        try:
            for slot, orders in self._credit():
                try:
                    posted += self._post(slot, orders)
                except OutOfSharedMemory:
                    self.close()
                    raise
        finally:
            if not self._closed:
                self.board.wake(posted)

    def _awaits_sizes(self) -> bool:
        """Whether orders had better wait until it is known how large a cached sample is: of those posted before, most
        of the rows would find no room. There is work for everybody meanwhile."""
        directory = self.coordinator.directory
        return (
            len(self._positions) >= 2 * len(self._workers.all)
            and isinstance(directory, Directory)
            and directory.unsure
        )

    def _fill_after(self, batch: Batch | None) -> None:
        """Fill. Whatever goes wrong must not cost the batch that is about to be handed out."""
        try:
            self.fill()
        except OutOfSharedMemory:
            # With batches on their way, or on loan, there will be room again.
            if self._closed or (batch is None and not self.coordinator.outstanding):
                raise
        except Exception as error:
            if batch is None or self._closed:
                raise
            self._late = error

    def _post(self, slot: HostSlot, orders: list[Order]) -> int:
        if self._assigned is not None:
            assert self.pick is not None
            for order in orders:
                target = self.pick(order)
                self._assigned[order.id] = target
                self._workers.send(self._workers.all[target], Run(order))
            return 0
        for order, place in zip(orders, self.slots.write_orders(slot, orders), strict=True):
            self._positions[order.id] = self.board.post(order.id, *place, rows=len(order.indices) // 8)
        return len(orders)

    def _pump(self, timeout: float) -> str:
        """Read what workers report and replace those that died; how the last of those ended, if any."""
        if self.shared is not None and self._tend(self.shared):
            timeout = 0.0
        # What the shared host says is looked for above; it is waited for only where nothing else is to be done.
        urgent = self.shared is not None and (self.coordinator.later or self.coordinator.held)
        also = self.shared.fileno() if self.shared is not None and urgent else -1
        events, dead = self._workers.wait(timeout, also)
        for worker, event in events:
            if isinstance(event, OrderDone):
                self._barren = 0
                self._positions.pop(event.order, None)
                if self._assigned is not None:
                    self._assigned.pop(event.order, None)
                if event.order == FILLED:
                    self.totals.add(event.spent)
                    continue
                if event.order < 0:
                    self._answer = event
                    continue
                if self.on_done is not None:
                    self.on_done(worker.id, event)
                self._finish(event)
            elif isinstance(event, Ready):
                worker.ready = True
            elif isinstance(event, Failed):
                error = rebuild(event.error)
                self.close()
                raise error
        how = ""
        for worker in dead:
            how = self._replace(worker)
        return how

    def _tend(self, shared: SharedClient) -> bool:
        """Take in what the shared host said; whether there was anything that others wait for."""
        shared.pump()
        posted = 0
        for drawn in shared.take_updates():
            for order in self.coordinator.release(drawn):
                slot = self.coordinator.slot_of(order.id)
                assert isinstance(slot, HostSlot)
                order.slot_offset, order.slot_bytes, order.layout = slot.offset, slot.nbytes, self.layout
                posted += self._post(slot, [order])
        self.board.wake(posted)
        return posted > 0 or (self.coordinator.later and shared.has_draws and self._credit_is_due())

    def _replace(self, worker: Worker) -> str:
        """A worker died: give its orders to others and start another in its place. Returns how it ended."""
        self._workers.bury(worker)
        how = worker.how_it_ended()
        self.totals.restarts += 1
        why = worker.why_it_never_began(self._workers.method)
        if why:
            self.close()
            raise WorkerDied(f"DataLoader worker exited unexpectedly: {why}")
        if self._assigned is not None:
            self.close()
            raise WorkerDied(
                f"DataLoader worker exited unexpectedly: {how}. What an iterable dataset had read in it is lost, "
                "so the epoch cannot go on. Load a state_dict() into a new loader to go on from there."
            )
        lost = [(o, at) for o, at in self._positions.items() if self.board.claimer(at) == worker.claimer]
        # With orders in hand its death tells something, and each order dies only so often.
        self._barren = 0 if lost else self._barren + 1
        if self._barren > _RESTARTS + len(self._workers.all):
            self.close()
            raise WorkerDied(
                f"DataLoader worker exited unexpectedly: {how}, and {self._barren} workers in a row died without "
                "finishing anything. Is there enough memory? See the system log, or try num_workers=0."
            )
        posted = 1  # the dead worker may have taken a wake-up with it
        for order_id, position in lost:
            del self._positions[order_id]
            self._reclaim(position)
            if order_id < 0:
                continue
            slot = self.coordinator.slot_of(order_id)
            try:
                orders = self.coordinator.lost(order_id, how, alone=self.board.was_alone(position))
            except WorkerDied:
                self.close()
                raise
            if orders:
                assert isinstance(slot, HostSlot)
                for order in orders:
                    order.layout = self.layout
                posted += self._post(slot, orders)
        self._free_abandoned()
        self._start(worker.id)
        self.board.wake(posted)
        return how

    def _reclaim(self, position: int) -> None:
        """What a dead worker had taken of the arena and not reported is free again."""
        offset, nbytes = self.board.grown(position)
        if nbytes:
            self.slots.reclaim(offset, nbytes)

    def abandon(self) -> None:
        """See ``Host``. Orders that no worker has begun are taken back."""
        if self._closed or os.getpid() != self._owner:
            return
        for order_id in self.coordinator.abandon():
            position = self._positions.get(order_id)
            if position is not None and self.board.cancel(position):
                del self._positions[order_id]
                self.coordinator.cancelled(order_id)
        if self.shared is not None:
            self.shared.drop()
        self._free_abandoned()

    def close(self) -> None:
        """See ``Host``."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        if self.shared is not None:
            self.shared.close()
        self._workers.stop(patience=3.0)
        self._close_memory()
