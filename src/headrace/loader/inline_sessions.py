"""Sessions of torch datasets without workers: the loop itself reads and collates."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.coordinate.coordinator import Batch, Draws
from headrace.host.slots import HostSlot
from headrace.loader import global_random
from headrace.loader.device import DeviceFeed
from headrace.loader.objects import Stream, fetch, keys_of
from headrace.loader.pinning import pin_value
from headrace.loader.sessions import SKIPPED, ErrorBook
from headrace.loader.spec import LoaderSpec
from headrace.loader.state import Mark
from headrace.loader.stateful import dumps
from headrace.recipes.program import Fault
from headrace.sampling import Draw


class InlineSession:
    """A torch dataset without workers: fetched and collated by whoever asks."""

    looks_ahead = False
    ready = False
    feed: DeviceFeed | None = None
    """See ``Hosted``."""
    copies = 1

    def __init__(self, spec: LoaderSpec, book: ErrorBook, *, pins: bool) -> None:
        self._dataset, self._collate = spec.data.dataset, spec.data.collate_fn
        self._auto, self._book, self._pins = spec.batches.batched, book, pins
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
        return drawn, self._placed(self._collate(samples))

    def _placed(self, value: Any) -> Any:
        if self.feed is not None:
            return self.feed.send(value)
        return pin_value(value) if self._pins else value

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

    def __init__(self, spec: LoaderSpec, book: ErrorBook, *, pins: bool, resume: Mark | None) -> None:
        super().__init__(spec, book, pins=pins)
        self._batches = spec.batches
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
        size = self._batches.size if self._auto else None
        global_random.put_back(resume.generators)
        self._generators |= set(resume.generators)
        self._drawn = set()
        before = global_random.states()
        kept = global_random.pack(before, self._generators)
        self._mark = Mark(delivered=resume.delivered, since=resume.delivered, generators=kept)
        self._stream = Stream(self._dataset, size, drop_last=self._batches.drop_last, resume=resume)
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
        return self._draws.draw(), self._placed(value)

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
            return [Mark.left(mark.dataset, mark.iterator)]
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
