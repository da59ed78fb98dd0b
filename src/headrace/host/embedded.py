"""The host inside a job: it runs when the loader asks for a batch, and needs no thread of its own.

Workers pull orders from the board, so nothing waits for this process while it trains. All that is left to do
here happens when a batch is asked for: hand freed slots to the coordinator, post its orders, read what workers
report, and replace those that died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import ATTEMPTS, Batch, Coordinator
from headrace.coordinate.messages import Failed, Order, OrderDone, Run, Spent, Threads
from headrace.core.errors import LoaderClosed, OutOfSharedMemory, WorkerDied
from headrace.core.forms import CACHEABLE, Form
from headrace.engine.board import CAPACITY, Board
from headrace.engine.worker import Task, rebuild
from headrace.host.slots import HostSlot, SlotPool
from headrace.host.workers import Worker, Workers

_RESTARTS = 8
"""Workers that may die in a row without any order being finished in between."""
_CHECK = 1.0
"""Seconds after which a wait looks around even if nothing happened."""


class Totals:
    """Sums over all finished orders."""

    def __init__(self) -> None:
        self.spent = Spent()
        self.orders = 0
        self.restarts = 0
        self.waited = 0.0
        """Seconds for which the job waited for a batch."""
        self.gil_held = -1.0

    def add(self, spent: Spent) -> None:
        """Count one order."""
        self.orders += 1
        total = self.spent
        total.fetch += spent.fetch
        total.decode += spent.decode
        total.augment += spent.augment
        total.wait_order += spent.wait_order
        total.wait_fetch += spent.wait_fetch
        total.wait_room += spent.wait_room
        total.fetched += spent.fetched
        total.fetched_bytes += spent.fetched_bytes
        if spent.gil_held >= 0:
            self.gil_held = spent.gil_held


class Host(Protocol):
    """What a loader needs of a host."""

    coordinator: Coordinator
    slots: SlotPool
    arena: Arena
    totals: Totals
    layout: bytes
    ahead: int
    spare: int
    bytes_for: Callable[[int], int] | None

    def next_batch(self, timeout: float | None) -> Batch | None:
        """The next batch in order; None when all that was fed is delivered. Raises TimeoutError."""
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


class _Base:
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
        self.totals = Totals()
        self.layout = b""
        """Put into every order where the layout was found out late."""
        self.bytes_for: Callable[[int], int] | None = None
        """Bytes of a slot for so many rows, where batches differ in size."""
        self.cache: tuple[int, int] | None = None
        """The arena's range for extents, if there is one."""
        self._spare: dict[Form, list[tuple[int, int]]] = {form: [] for form in CACHEABLE}
        self._owner = os.getpid()
        self._closed = False

    @property
    def closed(self) -> bool:
        """See ``Host``."""
        return self._closed

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
            self.arena.free(*self.cache)
        self.board.close()
        self.arena.close()

    def _credit(self) -> Iterator[tuple[HostSlot, list[Order]]]:
        """Slots with the orders drawn into them, as far as batches are wanted ahead."""
        while self.coordinator.outstanding < self.ahead and self._slot_is_due() and self._has_room():
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
                    self.slots.fit(slot, self.bytes_for(orders[0].rows))
                except OutOfSharedMemory:
                    self.close()  # the batch is drawn, and would be waited for in vain
                    raise
            for order in orders:
                order.slot_offset, order.slot_bytes, order.layout = slot.offset, slot.nbytes, self.layout
            yield slot, orders

    def _slot_is_due(self) -> bool:
        """Whether another batch may have a slot: there is a free one, or there are not yet as many as should be.

        A loop holds one batch while it works. One that keeps more has those beside what is prepared ahead.
        """
        self.slots.collect()
        most = self.ahead + self.spare + max(0, self.slots.leased - 1)
        return not self.coordinator.outstanding or self.slots.free > 0 or self.slots.count < most

    def close(self) -> None:
        """See ``Host``."""
        raise NotImplementedError

    def _has_room(self) -> bool:
        """Whether more orders can be posted."""
        return True

    def _finish(self, event: OrderDone) -> None:
        self.totals.add(event.spent)
        batch = self.coordinator.done(event)
        if batch is not None and event.slot_offset >= 0:
            assert isinstance(batch.slot, HostSlot)
            self.slots.replace(batch.slot, event.slot_offset, event.slot_bytes)
        self._note_full()
        self._free_abandoned()

    def _note_full(self) -> None:
        directory = self.coordinator.directory
        for form, budget in directory.budgets.items():
            # Nearly full is full: trying each further sample would cost more than its place is worth.
            if budget and self.board.cache_used(form) >= 0.999 * budget:
                directory.full(form)

    def _free_abandoned(self) -> None:
        for slot in self.coordinator.freed():
            assert isinstance(slot, HostSlot)
            self.slots.put_back(slot)


class ProcessHost(_Base):
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
        pinned_orders: bool = False,
    ) -> None:
        """``pinned_orders``: batch n goes to worker n modulo workers, and to no other (iterable datasets)."""
        super().__init__(arena, board, coordinator, slots, ahead)
        self._workers = Workers(task, context, arena, board)
        self._positions: dict[int, int] = {}
        self._pinned: dict[int, int] | None = {} if pinned_orders else None
        self._barren = 0
        self._answer: OrderDone | None = None
        self._late: Exception | None = None
        """What a sampler raised while a batch was in hand."""
        self._probed = HostSlot(0, 0)
        self._threads = 0
        """As told to the workers; 0: nothing was."""
        self.pick: Callable[[Order], int] | None = None
        """For pinned orders: the worker that an order goes to."""
        self.on_done: Callable[[int, OrderDone], None] | None = None
        try:
            for worker_id in range(workers):
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

    def set_threads(self, count: int) -> None:
        """How many threads prepare in each worker."""
        self._threads = count
        for worker in self.workers:
            self._workers.send(worker, Threads(count))

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
            if self.coordinator.outstanding == 0:
                return None
            left = _CHECK if deadline is None else min(_CHECK, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            self._pump(left)

    def _has_room(self) -> bool:
        # Half of the ring is kept for what has to be posted again when workers die.
        return not self._positions or self.board.room(min(self._positions.values())) > CAPACITY // 2

    def fill(self) -> None:
        """Post orders for all the batches that are wanted ahead."""
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
        if self._pinned is not None:
            assert self.pick is not None
            for order in orders:
                target = self.pick(order)
                self._pinned[order.id] = target
                self._workers.send(self._workers.all[target], Run(order))
            return 0
        for order, place in zip(orders, self.slots.write_orders(slot, orders), strict=True):
            self._positions[order.id] = self.board.post(order.id, *place)
        return len(orders)

    def _pump(self, timeout: float) -> str:
        """Read what workers report and replace those that died; how the last of those ended, if any."""
        events, dead = self._workers.wait(timeout)
        for worker, event in events:
            if isinstance(event, OrderDone):
                self._barren = 0
                self._positions.pop(event.order, None)
                if self._pinned is not None:
                    self._pinned.pop(event.order, None)
                if event.order < 0:
                    self._answer = event
                    continue
                if self.on_done is not None:
                    self.on_done(worker.id, event)
                self._finish(event)
            elif isinstance(event, Failed):
                error = rebuild(event.error)
                self.close()
                raise error
        how = ""
        for worker in dead:
            how = self._replace(worker)
        return how

    def _replace(self, worker: Worker) -> str:
        """A worker died: give its orders to others and start another in its place. Returns how it ended."""
        self._workers.bury(worker)
        how = worker.how_it_ended()
        self.totals.restarts += 1
        if self._pinned is not None:
            self.close()
            raise WorkerDied(
                f"DataLoader worker exited unexpectedly: {how}. What an iterable dataset had read in it is lost, "
                "so the epoch cannot go on. Load a state_dict() into a new loader to go on from there."
            )
        lost = [(o, at) for o, at in self._positions.items() if self.board.claimer(at) == worker.ticket]
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
        """What a dead worker had taken and not reported is free again."""
        for form, (offset, nbytes) in self.board.taken(position).items():
            if form is None:
                self.arena.adopt(nbytes)
                self.arena.free(offset, nbytes)
            else:
                self._spare[form].append((offset, nbytes))
        for form, spare in self._spare.items():
            if spare and self.board.offer_spare(form, *spare[-1]):
                spare.pop()

    def abandon(self) -> None:
        """See ``Host``. Orders that no worker has begun are taken back."""
        if self._closed or os.getpid() != self._owner:
            return
        for order_id in self.coordinator.abandon():
            position = self._positions.get(order_id)
            if position is not None and self.board.cancel(position):
                del self._positions[order_id]
                self.coordinator.done(OrderDone(order_id, []))
        self._free_abandoned()

    def close(self) -> None:
        """See ``Host``."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._workers.stop(patience=3.0)
        self._close_memory()


class InlineHost(_Base):
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
