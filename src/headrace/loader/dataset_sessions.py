"""Sessions of torch datasets: map-style and iterable, with workers and without."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.coordinate.coordinator import Batch, Draws
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE
from headrace.host.slots import HostSlot
from headrace.loader.draws import EndlessDraws
from headrace.loader.objects import ObjectTask, Stream, fetch
from headrace.loader.pinning import pin_value
from headrace.loader.sessions import SKIPPED, ErrorBook, Hosted, HostParts, collated_value, make_host
from headrace.recipes.program import Fault


class ObjectSession(Hosted):
    """A torch dataset in worker processes: each batch is fetched and collated by one worker."""

    def __init__(
        self, task: ObjectTask, *, ahead: int, in_order: bool, context: Any, book: ErrorBook, pin: bool
    ) -> None:
        self._book = book
        self.host = make_host(
            HostParts.build(0, dict.fromkeys(CACHEABLE, 0)),
            rows=None,
            nbytes=0,
            ahead=max(1, ahead),
            in_order=in_order,
            workers=task.num_workers,
            task=task,
            context=context,
        )
        self._pins = pin

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        batch = self.host.next_batch(timeout)
        if batch is None:
            return None
        return batch.drawn, self._pinned(collated_value(batch, self._book, self._lease, self._give_back))


class IterableSession(Hosted):
    """An iterable dataset: every worker reads its own copy, and batches are taken from them in turn."""

    def __init__(
        self, task: ObjectTask, *, ahead: int, in_order: bool, context: Any, book: ErrorBook, pin: bool
    ) -> None:
        self._book = book
        self._workers = task.num_workers
        self._active = list(range(task.num_workers))
        self._turn = 0
        self._from: dict[int, int] = {}
        self._draws: EndlessDraws | None = None
        resume = task.resume or [(0, None)] * task.num_workers
        self.delivered: list[tuple[int, Any]] = list(resume)
        """Per worker: batches delivered, and its dataset's state after the last of them."""
        host = make_host(
            HostParts.build(0, dict.fromkeys(CACHEABLE, 0)),
            rows=None,
            nbytes=0,
            ahead=max(1, ahead),
            in_order=in_order,
            workers=task.num_workers,
            task=task,
            context=context,
            pinned_orders=True,
        )
        host.pick, host.on_done = self._pick, self._on_done
        self.host = host
        self._pins = pin

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        assert isinstance(draws, EndlessDraws)
        self._draws = draws
        # Whose turn it is follows from what each delivered: in each round, some had theirs and the rest not yet.
        counts = [count for count, _ in self.delivered]
        behind = max(counts) - 1
        self._turn = counts.index(behind) if behind in counts else 0
        self._active = list(range(self._workers))
        self.host.coordinator.feed(draws)

    def resume_at_start(self) -> None:
        """A new epoch begins at the beginning."""
        self.delivered = [(0, None)] * self._workers

    def _pick(self, order: Order) -> int:
        worker = self._active[self._turn % len(self._active)] if self._active else 0
        self._turn += 1
        self._from[order.step] = worker
        return worker

    def _on_done(self, worker: int, event: OrderDone) -> None:
        if event.exhausted and worker in self._active:
            at = self._active.index(worker)
            self._turn %= len(self._active)
            if at < self._turn:
                self._turn -= 1
            self._active.remove(worker)
            if not self._active and self._draws is not None:
                self._draws.over = True

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        while True:
            batch = self.host.next_batch(timeout)
            if batch is None:
                return None
            worker = self._from.pop(batch.drawn.step)
            done = batch.done
            if done is not None and done.exhausted and not done.error:
                self._give_back(batch)
                continue
            if done is not None:
                count, _ = self.delivered[worker]
                state = msgspec.json.decode(done.state) if done.state else None
                self.delivered[worker] = (count + 1, state)
            return batch.drawn, self._pinned(collated_value(batch, self._book, self._lease, self._give_back))


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
        keys = pickle.loads(drawn.keys) if getattr(drawn, "keys", b"") else drawn.indices.tolist()
        if not self._auto:
            samples = fetch(self._dataset, keys if getattr(drawn, "keys", b"") else keys[0], False)
        elif self._book.rule == "raise":
            samples = fetch(self._dataset, keys, True)
        else:
            samples = self._forgiving(drawn, keys)
            if samples is SKIPPED:
                return drawn, SKIPPED
        value = self._collate(samples)
        return drawn, pin_value(value) if self._pin else value

    def _forgiving(self, drawn: Any, keys: Sequence[Any]) -> Any:
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
        resume: tuple[int, Any],
    ) -> None:
        super().__init__(dataset, collate_fn, auto_collation=auto_collation, book=book, pin=pin)
        self._size, self._drop_last = batch_size, drop_last
        self._resume: tuple[int, Any] | None = resume
        self._stream: Stream | None = None
        self.delivered: list[tuple[int, Any]] = [resume]

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        super().begin(draws, following)
        skip, state = self._resume or (0, None)
        self.delivered = [(skip, state)]
        self._resume = None
        if state is not None and hasattr(self._dataset, "load_state_dict"):
            self._dataset.load_state_dict(state)
            skip = 0
        self._stream = Stream(self._dataset, self._size if self._auto else None, drop_last=self._drop_last)
        for _ in range(skip):
            self._stream.gather()

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """See ``Session``."""
        assert self._draws is not None and self._stream is not None
        samples, found = self._stream.gather()
        if not found:
            return None
        value = self._collate(samples)
        state = self._dataset.state_dict() if hasattr(self._dataset, "state_dict") else None
        self.delivered = [(self.delivered[0][0] + 1, state)]
        return self._draws.draw(), pin_value(value) if self._pin else value
