"""Where a loader stands: what it delivered, or what it was told to go on from."""

from __future__ import annotations

from typing import Any

from headrace.core.bits import Bits, put
from headrace.loader.ordering import Ordering, Place
from headrace.loader.seeds import Seeds
from headrace.loader.state import LoaderState, pack_seen
from headrace.sampling import Draw


class Progress:
    """A loader's progress, in this epoch and over all of them."""

    def __init__(self) -> None:
        self.epoch = 0
        """The one that the next iteration runs."""
        self.batches = self.samples = 0
        """Delivered in all epochs."""
        self._resume: LoaderState | None = None
        self._place: Place | None = None
        self._over: Place | None = None
        """Where the last epoch ended."""
        self._seen: Bits | None = None
        """Where a shared host draws: what was delivered of the present epoch."""

    def load(self, state: LoaderState) -> None:
        """Let the next iteration go on from ``state``."""
        self._resume, self._place, self._over = state, None, None
        self.epoch = state.epoch

    @property
    def untouched(self) -> bool:
        """Whether no epoch has begun and no state was loaded."""
        return self._resume is None and self._place is None and self._over is None

    def take_resume(self) -> LoaderState | None:
        """What the iteration that begins now goes on from, if anything was loaded."""
        resume, self._resume = self._resume, None
        return resume

    def begin(self, ordering: Ordering, resume: LoaderState | None, place: Place) -> None:
        """An epoch has begun, or goes on from ``resume``."""
        self.epoch = place.epoch + 1
        self._place, self._over = place, None
        if ordering.drawn_by_host:
            self._seen = ordering.seen(resume) or Bits.empty(ordering.samples)

    def deliver(self, place: Place, drawn: Draw) -> None:
        """A batch is handed to the user."""
        self.batches += 1
        self.samples += len(drawn.indices)
        if self._seen is not None and drawn.of_all_ranks is not None:
            put(self._seen.words, drawn.of_all_ranks)
        place.deliver(drawn)
        self._place, self._over = place, None

    def end(self, ordering: Ordering, place: Place) -> None:
        """An epoch was delivered to its end."""
        self._seen = Bits.empty(ordering.samples) if self._seen is not None else None
        self._place, self._over = None, place

    def plain(self, ordering: Ordering, seeds: Seeds) -> dict[str, Any]:
        """As ``state_dict`` gives it."""
        if self._place is None and self._resume is not None:
            return self._resume.plain()
        if self._place is None:
            over = self._over
            epoch = self.epoch if over is None else over.epoch + 1
            spec = ordering.spec
            return ordering.between(seeds.coming(spec), epoch, over, lambda: seeds.torch_after(spec)).plain()
        state = ordering.state(self._place)
        if self._seen is not None and state.position:
            state.seen = pack_seen(self._seen)
        return state.plain()
