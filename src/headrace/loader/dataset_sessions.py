"""Sessions of torch datasets: map-style and iterable, with workers and without."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.coordinate.coordinator import Batch, Draws
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE
from headrace.host.embedded import ProcessHost
from headrace.host.slots import HostSlot
from headrace.loader import global_random
from headrace.loader.depth import Depth
from headrace.loader.objects import ObjectTask, Stream, fetch, keys_of
from headrace.loader.pinning import pin_value
from headrace.loader.sessions import SKIPPED, ErrorBook, Hosted, HostParts, collated_value, make_host
from headrace.loader.state import Mark
from headrace.loader.stateful import dumps, is_stateful
from headrace.recipes.program import Fault
from headrace.sampling import Draw

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


def _left(dataset: Any, iterator: Any) -> Mark:
    """Where a reader is after an epoch that ended."""
    kept = dataset is not None or iterator is not None
    return Mark(ended=kept, dataset=dataset, iterator=iterator)


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
                    reader.left = _left(own, iterator)
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


class InlineSession:
    """A torch dataset without workers: fetched and collated by whoever asks."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        *,
        auto_collation: bool,
        book: ErrorBook,
        pin: bool,
    ) -> None:
        self._dataset, self._collate = dataset, collate_fn
        self._auto, self._book, self._pin = auto_collation, book, pin
        self._draws: Draws | None = None
        self.closed = False

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        self._draws = draws

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        assert self._draws is not None
        drawn: Any = self._draws.draw()
        if drawn is None:
            return None
        keys = keys_of(drawn, self._auto)
        if not self._auto:
            samples = fetch(self._dataset, keys, False)
        elif self._book.rule == "raise":
            samples = fetch(self._dataset, keys, True)
        else:
            samples = self._forgiving(drawn, keys)
            if samples is SKIPPED:
                return drawn, SKIPPED
        value = self._collate(samples)
        return drawn, pin_value(value) if self._pin else value

    def _forgiving(self, drawn: Draw, keys: Sequence[Any]) -> Any:
        batch = Batch(0, drawn, HostSlot(0, 0))
        samples: list[Any] = []
        for row, key in enumerate(keys):
            try:
                samples.append(self._dataset[key])
            except Exception as error:
                fault = Fault.of(error)
                batch.faults.append((row, fault.reason, fault.traceback))
                samples.append(SKIPPED)
        bad = self._book.note(batch)
        good = [sample for row, sample in enumerate(samples) if row not in bad]
        if not good:
            return SKIPPED
        if self._book.rule == "substitute":
            return [good[row % len(good)] if row in bad else s for row, s in enumerate(samples)]
        return good

    def rest(self) -> None:
        """See ``Session``."""

    def abandon(self) -> None:
        """See ``Session``."""
        self._draws = None

    def close(self) -> None:
        """See ``Session``."""
        self.closed = True


class InlineIterableSession(InlineSession):
    """An iterable dataset without workers."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        *,
        auto_collation: bool,
        book: ErrorBook,
        pin: bool,
        batch_size: int | None,
        drop_last: bool,
        resume: Mark | None,
    ) -> None:
        super().__init__(dataset, collate_fn, auto_collation=auto_collation, book=book, pin=pin)
        self._size, self._drop_last = batch_size, drop_last
        self._resume = resume
        self._stream: Stream | None = None
        self._mark = Mark()
        self._generators: set[str] = set()
        """Those of the process that the dataset draws from, as far as the last epoch showed."""
        self._drawn: set[str] = set()
        """Those that it has drawn from in this one."""
        self._first = False
        """Whether the first batch of an epoch is to come, which shows from which."""

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        super().begin(draws, following)
        resume, self._resume = self._resume or Mark(), None
        size = self._size if self._auto else None
        global_random.put_back(resume.generators)
        self._generators |= set(resume.generators)
        self._drawn = set()
        before = global_random.states()
        kept = global_random.pack(before, self._generators)
        self._mark = Mark(delivered=resume.delivered, since=resume.delivered, generators=kept)
        self._stream = Stream(self._dataset, size, drop_last=self._drop_last, resume=resume)
        self._first = not (resume.delivered or self._stream.stateful)  # (a state of its own is enough)
        if self._first:
            self._note_generators(before)

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        assert self._draws is not None and self._stream is not None
        before = global_random.states() if self._first else {}
        samples, found = self._stream.gather()
        if self._first:
            self._first = False
            self._note_generators(before)
        if not found:
            return None
        value = self._collate(samples)
        self._mark.delivered += 1
        self._mark.since += 1
        return self._draws.draw(), pin_value(value) if self._pin else value

    def _note_generators(self, before: dict[str, Any]) -> None:
        """See which were drawn from since ``before``: an epoch that is read again draws from them again."""
        drawn = set(global_random.moved(before, global_random.states())) - self._drawn
        self._mark.generators |= global_random.pack(before, drawn)
        self._drawn |= drawn
        self._generators |= drawn

    def next_generators(self, torch_after: Callable[[], torch.Tensor]) -> dict[str, Any]:
        """The process' own as the next epoch will find them. ``torch_after``: torch's, once its seed is drawn."""
        if not self._generators:
            return {}
        found = global_random.states()
        if "torch" in self._generators:
            found["torch"] = torch_after()
        return global_random.pack(found, self._generators)

    def marks(self, *, between: bool = False) -> list[Mark]:
        """Where the dataset is: asked for only now, as nothing is read ahead. See ``AssignedSession``."""
        mark, stream = self._mark, self._stream
        if between:
            (mark,) = self.marks()
            return [_left(mark.dataset, mark.iterator)]
        if stream is not None and stream.stateful:
            own, iterator, over = pickle.loads(dumps(stream.states()))
            mark = Mark(delivered=mark.delivered, over=over, dataset=own, iterator=iterator)
        return [mark]

    def abandon(self) -> None:
        """See ``Session``."""
        super().abandon()
        (self._mark,) = self.marks()
        self._stream = None  # its iterator must not outlive the epoch

    def close(self) -> None:
        """See ``Session``."""
        if not self.closed:
            self.abandon()
        super().close()
