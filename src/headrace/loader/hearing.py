"""Which epoch a loader runs next, as trainers tell its samplers or its dataset."""

from __future__ import annotations

from typing import Any

from headrace.loader.own_order import Told, is_news, pass_on, told_by
from headrace.loader.state import LoaderState


class Hearing:
    """Listens to what is told. ``samplers`` are asked for each time: a trainer may put others in their place."""

    def __init__(self, told: Told, samplers: tuple[Any, ...]) -> None:
        self.told = told
        self._times, self._epochs = told.times, told_by(*samplers)
        self._behind = 0
        """By how many epochs a trainer counts less than a state that was loaded."""
        self._after: int | None = None
        """After a state was loaded, until somebody tells an epoch: the last one that ran."""

    @property
    def first(self) -> int:
        """The epoch that a loader begins with that nobody told anything since it was made."""
        return max((self.told.following, *map(int, self._epochs)))

    def follow(
        self, resume: LoaderState | None, samplers: tuple[Any, ...]
    ) -> tuple[int, LoaderState | None] | None:
        """The epoch to run and what it goes on from, if somebody told one since last time.

        ``resume``: the state that was loaded for the iteration at hand.
        """
        told = self._news(samplers)
        if told is None:
            return None
        after, self._after = self._after, None
        if resume is None:
            if after is not None and told <= after:
                self._behind = after + 1 - told  # somebody counts from its own start
            return told + self._behind, None
        if told > resume.epoch:
            self._behind = 0
            return told, None  # (the state is of the end of an epoch before)
        # Somebody counts from its own start, and the state is from before.
        self._behind = resume.epoch - told
        return resume.epoch, resume

    def begin(self, epoch: int, samplers: tuple[Any, ...], *, foreign: bool) -> None:
        """The loader begins ``epoch``. ``foreign``: by the order of ``samplers``, who may count from elsewhere."""
        self.told.begin(epoch)
        if self._after is not None:
            self._after = epoch
        if self._behind and foreign:
            self._pass_on(epoch, samplers)

    def begun(self, samplers: tuple[Any, ...]) -> None:
        """It has begun: what samplers say of themselves now is no news."""
        self._epochs = told_by(*samplers)

    def resumed(self, epoch: int) -> None:
        """The loader goes on in ``epoch``, from a state, and nobody has told anything."""
        self._after = epoch

    def tell(self, epoch: int, samplers: tuple[Any, ...], *, foreign: bool) -> None:
        """The loader itself was told, so whatever others counted counts no more."""
        self._behind, self._after = 0, None
        self.told.tell(epoch)
        self._times = self.told.times
        if foreign:
            self._pass_on(epoch, samplers)

    def _pass_on(self, epoch: int, samplers: tuple[Any, ...]) -> None:
        pass_on(epoch, *samplers)
        self._times, self._epochs = self.told.times, told_by(*samplers)

    def _news(self, samplers: tuple[Any, ...]) -> int | None:
        """The epoch that was told since last time, if one was."""
        (times, before), epochs = (self._times, self._epochs), told_by(*samplers)
        self._times, self._epochs = self.told.times, epochs
        if self.told.times != times:
            return self.told.epoch
        if len(epochs) != len(before):
            return max(epochs, default=None)
        return next((now for now, old in zip(epochs, before, strict=True) if is_news(now, old)), None)
