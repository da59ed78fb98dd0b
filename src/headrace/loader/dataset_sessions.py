"""Sessions of torch datasets in worker processes: map-style and iterable."""

from __future__ import annotations

import pickle
from typing import Any

from headrace.coordinate.coordinator import Draws
from headrace.coordinate.messages import Order, OrderDone
from headrace.core import environment
from headrace.core.forms import CACHEABLE
from headrace.host.embedded import ProcessHost
from headrace.loader.depth import HostDepth
from headrace.loader.objects import ObjectTask, keys_of
from headrace.loader.sessions import SKIPPED, ErrorBook, Hosted, HostParts, make_host
from headrace.loader.spec import LoaderSpec
from headrace.loader.state import Mark
from headrace.loader.stateful import is_stateful
from headrace.loader.worker_tuning import WorkerTuning

_PATIENCE = 10.0
"""Seconds to wait for what a worker says of its beginning. Without it, it is taken to begin as new ones do."""


class ObjectSession(Hosted):
    """A torch dataset in worker processes: each batch is fetched and collated by one worker."""

    def __init__(
        self, spec: LoaderSpec, task: ObjectTask, book: ErrorBook, *, pins: bool, assigned: bool = False
    ) -> None:
        """``assigned``: it matters which worker is given which batch."""
        super().__init__(book, pins=pins)
        workers, ahead = task.num_workers, spec.work.ahead
        self.host = make_host(
            HostParts.build(0, dict.fromkeys(CACHEABLE, 0)),
            rows=None,
            nbytes=0,
            # At first one for each worker. (And one to go on with, once it is known that they are not large: with a
            # loop that waits, none of those is waited for.)
            ahead=max(2, workers) if ahead is None else ahead,
            in_order=spec.order.in_order,
            workers=workers,
            task=task,
            context=spec.work.context,
            assigned_orders=assigned,
        )
        self._depth = HostDepth(self.host, most=2 * workers, hands=workers) if ahead is None else None
        """Lets more batches be ahead if nobody said how many: up to as many as torch's loader has."""
        chosen = not (spec.work.own_number or assigned or environment.fixed_staff())
        self._tuning = (
            WorkerTuning(self.host, workers) if chosen and isinstance(self.host, ProcessHost) else None
        )

        self._workers = workers

    @property
    def processes(self) -> int:
        """Processes that run the dataset."""
        return self._workers if self._tuning is None else self._tuning.workers

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        batch = self.host.next_batch(timeout)
        if batch is None:
            return None
        if self._depth is not None:
            self._depth.taken(nbytes=batch.slot.nbytes)
        if self._tuning is not None:
            workers = self._tuning.taken()
            if self._depth is not None:
                self._depth.hands_are(workers)
        return batch.draw, self._placed(self._collated(batch))


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


class AssignedSession(ObjectSession):
    """A dataset whose place, or state, lives in each worker: batches go to the workers in turn."""

    looks_ahead = False  # (a dataset moves on with what it is asked for)
    ready = False  # (a batch counts as handed out as it is taken)
    host: ProcessHost

    def __init__(
        self, spec: LoaderSpec, task: ObjectTask, book: ErrorBook, *, pins: bool, last: int = -1
    ) -> None:
        """``last``: the worker that delivered last, where an epoch goes on."""
        super().__init__(spec, task, book, pins=pins, assigned=True)
        self._iterable, self._auto = task.iterable, task.auto_collation
        self._in_order = spec.order.in_order
        self._stateful = is_stateful(task.dataset)
        self._workers = task.num_workers
        self._active = set(range(self._workers))
        self._busy = [0] * self._workers
        self._picked = self.last = last
        self._from: dict[int, int] = {}
        self._open: set[int] = set()
        self._draws: Any = None
        self._readers = [Reader(mark) for mark in task.resume or [Mark()] * self._workers]
        self.host.pick, self.host.on_done = self._pick, self._on_done

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
            worker = self._from.pop(batch.draw.step)
            reader, done = self._readers[worker], batch.done
            assert done is not None
            if done.exhausted and not done.error:
                if done.has_state:
                    left = self._collated(batch)
                    own, iterator, _ = pickle.loads(left)
                    reader.left = Mark.left(own, iterator)
                else:
                    self._give_back(batch)
                continue
            if self._depth is not None:
                self._depth.taken(nbytes=batch.slot.nbytes)
            keyed = None if self._iterable else (batch.draw.step, keys_of(batch.draw, self._auto))
            self.last = worker
            state = b""
            try:
                value = self._collated(batch)
                if done.has_state and value is not SKIPPED:
                    value, state = value
            finally:
                reader.deliver(state, keyed)
            return batch.draw, self._placed(value)
