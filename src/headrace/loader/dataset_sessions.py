"""Sessions of torch datasets in worker processes: map-style and iterable."""

from __future__ import annotations

import pickle
from typing import Any

from headrace.coordinate.coordinator import Draws
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE
from headrace.host.embedded import ProcessHost
from headrace.loader.depth import Depth
from headrace.loader.objects import ObjectTask, keys_of
from headrace.loader.sessions import SKIPPED, ErrorBook, Hosted, HostParts, collated_value, make_host
from headrace.loader.state import Mark
from headrace.loader.stateful import is_stateful

_PATIENCE = 10.0
"""Seconds to wait for what a worker says of its beginning. Without it, it is taken to begin as new ones do."""


def _depth(host: Any, ahead: int | None, workers: int) -> Depth | None:
    """What lets more batches be ahead if nobody said how many: up to as many as torch's loader has."""
    return Depth(host, most=2 * workers, hands=workers) if ahead is None else None


def _at_first(ahead: int | None, workers: int) -> int:
    """Batches ahead as a loader begins: one for each worker. (And one to go on with, once it is known that they are
    not large: with a loop that waits, none of those is waited for.)"""
    return max(2, workers) if ahead is None else max(1, ahead)


class ObjectSession(Hosted):
    """A torch dataset in worker processes: each batch is fetched and collated by one worker."""

    def __init__(
        self, task: ObjectTask, *, ahead: int | None, in_order: bool, context: Any, book: ErrorBook, pin: bool
    ) -> None:
        """``ahead``: batches that are prepared ahead; None: as many as are of use."""
        self._book = book
        self.host = make_host(
            HostParts.build(0, dict.fromkeys(CACHEABLE, 0)),
            rows=None,
            nbytes=0,
            ahead=_at_first(ahead, task.num_workers),
            in_order=in_order,
            workers=task.num_workers,
            task=task,
            context=context,
        )
        self._depth = _depth(self.host, ahead, task.num_workers)
        self._pins = pin

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        batch = self.host.next_batch(timeout)
        if batch is None:
            return None
        if self._depth is not None:
            self._depth.taken(nbytes=batch.slot.nbytes)
        return batch.drawn, self._pinned(collated_value(batch, self._book, self._lease, self._give_back))


class Reader:
    """What is known, in the job, of how far one worker's dataset is."""

    def __init__(self, start: Mark) -> None:
        self._start = start
        self._state = b""
        self._delivered, self._since = start.delivered, start.since
        self._replay = list(start.replay)
        self.begun = False
        """The worker has said with which state it began."""
        self.left = Mark()
        """As an epoch that ended has left the dataset."""

    def begin(self, state: bytes) -> None:
        """The dataset's state as the worker began: with the epoch, or where that was to go on."""
        self._state, self._since, self._replay = state, 0, []

    def deliver(self, state: bytes, keyed: tuple[int, Any] | None) -> None:
        """A batch of this worker was delivered, with its dataset's state after it, if that was taken.

        ``keyed``: the step and the keys of the batch, where it has keys.
        """
        self._delivered += 1
        if state:
            self._state, self._since, self._replay = state, 0, []
        elif keyed is None:
            self._since += 1
        else:
            self._replay.append(keyed)

    def mark(self) -> Mark:
        """As a state holds it."""
        start = self._start
        mark = Mark(delivered=self._delivered, since=self._since, replay=list(self._replay))
        if self._state:
            mark.dataset, mark.iterator, mark.over = pickle.loads(self._state)
        else:
            mark.dataset, mark.iterator, mark.over = start.dataset, start.iterator, start.over
            mark.ended = start.ended
        return mark


class AssignedSession(Hosted):
    """A dataset whose place, or state, lives in each worker: batches go to the workers in turn."""

    host: ProcessHost

    def __init__(
        self,
        task: ObjectTask,
        *,
        ahead: int | None,
        in_order: bool,
        context: Any,
        book: ErrorBook,
        pin: bool,
        last: int = -1,
    ) -> None:
        """``last``: the worker that delivered last, where an epoch goes on. ``ahead``: see ``ObjectSession``."""
        self._book = book
        self._iterable, self._auto, self._in_order = task.iterable, task.auto_collation, in_order
        self._stateful = is_stateful(task.dataset)
        self._workers = task.num_workers
        self._active = set(range(self._workers))
        self._busy = [0] * self._workers
        self._picked = self.last = last
        self._from: dict[int, int] = {}
        self._open: set[int] = set()
        self._draws: Any = None
        self._readers = [Reader(mark) for mark in task.resume or [Mark()] * self._workers]
        host = make_host(
            HostParts.build(0, dict.fromkeys(CACHEABLE, 0)),
            rows=None,
            nbytes=0,
            ahead=_at_first(ahead, task.num_workers),
            in_order=in_order,
            workers=task.num_workers,
            task=task,
            context=context,
            assigned_orders=True,
        )
        self._depth = _depth(host, ahead, task.num_workers)
        host.pick, host.on_done = self._pick, self._on_done
        self.host = host
        self._pins = pin

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        self._draws = draws
        self._active = set(range(self._workers))
        self._busy = [0] * self._workers
        self._picked = self.last
        self._open.clear()  # what comes of an epoch that was left says nothing about this one
        self._from.clear()
        if self._depth is not None:
            self._depth.begin()
        self.host.coordinator.feed(draws)

    def start_over(self) -> None:
        """A new epoch begins, in the same workers."""
        self._readers = [Reader(mark) for mark in self.marks(between=True)]
        self.last = -1

    def marks(self, *, between: bool = False) -> list[Mark]:
        """Where each worker is; ``between`` epochs, where it will be as the next one begins."""
        if self._stateful and not between and not self.closed:
            # Those that have not delivered yet are about to say how they began.
            self.host.wait(lambda: all(reader.begun for reader in self._readers), _PATIENCE)
        marks = [reader.mark() for reader in self._readers]
        if not between:
            return marks
        if self._iterable:
            return [reader.left for reader in self._readers]
        return [Mark(replay=mark.replay, dataset=mark.dataset) for mark in marks]

    def _pick(self, order: Order) -> int:
        turns = [(self._picked + turn) % self._workers for turn in range(1, self._workers + 1)]
        active = [worker for worker in turns if worker in self._active] or [0]
        # Where order does not matter, no worker has to wait for a slower one.
        worker = active[0] if self._in_order else min(active, key=self._busy.__getitem__)
        self._picked = worker
        self._busy[worker] += 1
        self._open.add(order.id)
        self._from[order.step] = worker
        return worker

    def _on_done(self, worker: int, event: OrderDone) -> None:
        if event.order not in self._open:
            return
        self._open.discard(event.order)
        self._busy[worker] -= 1
        reader = self._readers[worker]
        if event.start:
            reader.begin(event.start)
        reader.begun = True
        if event.exhausted:
            self._active.discard(worker)
            if not self._active:
                self._draws.over = True

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        while True:
            batch = self.host.next_batch(timeout)
            if batch is None:
                return None
            worker = self._from.pop(batch.drawn.step)
            reader, done = self._readers[worker], batch.done
            assert done is not None
            if done.exhausted and not done.error:
                if done.has_state:
                    left = collated_value(batch, self._book, self._lease, self._give_back)
                    own, iterator, _ = pickle.loads(left)
                    reader.left = Mark.left(own, iterator)
                else:
                    self._give_back(batch)
                continue
            if self._depth is not None:
                self._depth.taken(nbytes=batch.slot.nbytes)
            keyed = None if self._iterable else (batch.drawn.step, keys_of(batch.drawn, self._auto))
            self.last = worker
            state = b""
            try:
                value = collated_value(batch, self._book, self._lease, self._give_back)
                if done.has_state and value is not SKIPPED:
                    value, state = value
            finally:
                reader.deliver(state, keyed)
            return batch.drawn, self._pinned(value)
