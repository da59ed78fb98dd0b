"""Where a loader stands: what it delivered, or what it was told to go on from."""

from __future__ import annotations

from typing import Any

from headrace.core.bits import Bits, put
from headrace.loader.ordering import Ordering
from headrace.loader.sessions import Session
from headrace.loader.state import LoaderState, pack_seen


class Progress:
    """A loader's progress, in this epoch and over all of them."""

    def __init__(self) -> None:
        self.epoch = 0
        """The one that the next iteration runs."""
        self.batches = self.samples = 0
        """Delivered in all epochs."""
        self._resume: LoaderState | None = None
        self._state: LoaderState | None = None
        self._seen: Bits | None = None
        """Where a shared host draws: what was delivered of the present epoch."""

    def load(self, state: LoaderState) -> None:
        """Let the next iteration go on from ``state``."""
        self._resume, self._state = state, None
        self.epoch = state.epoch

    def take_resume(self) -> LoaderState | None:
        """What the iteration that begins now goes on from, if anything was loaded."""
        resume, self._resume = self._resume, None
        return resume

    def begin(
        self, ordering: Ordering, resume: LoaderState | None, seed: int, epoch: int, session: Session
    ) -> None:
        """An epoch has begun, or goes on from ``resume``."""
        self.epoch = epoch + 1
        if resume is None:
            self._state = ordering.state(seed, epoch, 0, None)
        else:
            self._state = ordering.state(seed, epoch, resume.position, session)
        if ordering.drawn_by_host:
            self._seen = ordering.seen(resume) or Bits.empty(ordering.samples)

    def deliver(self, ordering: Ordering, seed: int, epoch: int, drawn: Any, session: Session) -> None:
        """A batch is handed to the user."""
        self.batches += 1
        self.samples += len(drawn.indices)
        if self._seen is not None:
            put(self._seen.words, drawn.whole)
        self._state = ordering.state(seed, epoch, drawn.position, session)

    def end(self, ordering: Ordering, seed: int | None, epoch: int) -> None:
        """An epoch was delivered to its end."""
        self._seen = Bits.empty(ordering.samples) if self._seen is not None else None
        self._state = ordering.state(seed, epoch + 1, 0, None)

    def plain(self, ordering: Ordering, seed: int | None) -> dict[str, Any]:
        """As ``state_dict`` gives it."""
        if self._state is None:
            return (self._resume or ordering.state(seed, self.epoch, 0, None)).plain()
        if self._seen is not None and self._state.position:
            self._state.seen = pack_seen(self._seen)
        return self._state.plain()
