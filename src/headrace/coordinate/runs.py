"""Runs of jobs whose order is known, on one line of time: their steps come at different paces."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.coordinate.rank_future import Dues, Ids, RankFuture
from headrace.core.dues import FAR
from headrace.eviction.reuse import LAST

_OF_GAP = 32
"""Of the mean time between two uses of a sample, so small a part makes no difference: the grain of times."""
_OFF = 8
"""Of that mean time, so large a part may a run be off before times are laid out anew."""
_LEAST = 1e-3
"""The share of all draws that a run has at least, so that one that stands still has a time, far away."""
_LONGEST = LAST // 2
"""Grains of time after which times are laid out anew in any case: numbers have an end."""


class Run:
    """Ranks of one job that are here, as far as their orders show that: they go on together."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankFuture] = {}
        """By the number of the rank as a job of the host."""
        self.drawn = 0
        """Samples drawn since times were laid out."""
        self.share = 0.0
        """Of all that is drawn; 0: not known yet."""
        self._at = self._each = 0.0
        """Where it was when times were laid out, and how long a step takes."""

    def has(self, rank: int) -> bool:
        """Whether one of its ranks has this number."""
        return any(future.told.rank == rank for future in self.ranks.values())

    @property
    def at(self) -> float:
        """The next step, as a mean over its ranks."""
        return sum(future.at for future in self.ranks.values()) / len(self.ranks)

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return next(iter(self.ranks.values())).known.steps

    @property
    def step(self) -> int:
        """Samples that its ranks draw in a step."""
        return sum(future.told.batch_size for future in self.ranks.values())

    def lay_out(self) -> None:
        """The time is 0 now."""
        self._at, self._each, self.drawn = self.at, self.step / self.share, 0

    @property
    def time(self) -> float:
        """Where it is now. It should be there at that time."""
        return (self.at - self._at) * self._each

    def times(self, futures: Iterable[RankFuture], samples: Ids, *, by_epochs: bool) -> Dues:
        """When some ranks of it use samples of their dataset. ``by_epochs``: all of an epoch at once."""
        dues: dict[int, Dues] = {}
        for future in futures:
            found, origin = future.due[samples], future.origin
            dues[origin] = np.minimum(dues[origin], found) if origin in dues else found
        return soonest((self._times(due, at, by_epochs) for at, due in dues.items()), len(samples))

    def _times(self, due: Dues, origin: int, by_epochs: bool) -> Dues:
        steps = due.astype(np.float64)
        if by_epochs:
            whole = self.steps
            steps += origin % whole
            steps //= whole
            steps *= whole
            steps += whole / 2 - origin % whole
        steps += origin - self._at
        steps *= self._each
        np.clip(steps, 0, FAR - 1, out=steps)
        steps[due == FAR] = FAR
        return steps.astype(np.int32)


class Line:
    """The time that all runs have in common: it counts the samples that are drawn.

    A run's next uses are as far away as it takes all runs together to get there, if each goes on at the pace that it
    had. Then the mean time between two uses of a sample is the number of samples, however many runs there are.
    """

    def __init__(self, runs: Iterable[Run], samples: int) -> None:
        """``samples``: of all datasets."""
        self._runs = list(runs)
        self._samples = samples
        self.now = 0
        self.grain = max(1, samples // _OF_GAP)
        drawn = sum(run.drawn for run in self._runs)
        before = [run.share for run in self._runs if run.share] or [1.0]
        usual = sum(before) / len(before)
        # What was drawn since the last time counts as much as what was known before, if it was that much.
        known = samples // _OFF + 1
        for run in self._runs:
            run.share = ((run.share or usual) * known + run.drawn) / (known + drawn)
        whole = sum(run.share for run in self._runs)
        for run in self._runs:
            run.share = max(_LEAST, run.share / whole)
            run.lay_out()

    def draw(self, run: Run, samples: int) -> None:
        """A run draws so many."""
        run.drawn += samples
        self.now += samples

    @property
    def is_off(self) -> bool:
        """Whether some run is so far from where it was to be that times have to be laid out anew. That takes a look
        at all samples, so it is not done before a part of so many were drawn."""
        if self.now > _LONGEST * self.grain or self.now > FAR // 2:
            return True
        far = self._samples // _OFF
        return (
            len(self._runs) > 1
            and self.now > far
            and any(abs(run.time - self.now) > far for run in self._runs)
        )


def soonest(times: Iterable[Dues], count: int) -> Dues:
    """The first of several times, for each of ``count`` samples; ``FAR`` where there is none."""
    found = np.full(count, FAR, np.int32)
    for one in times:
        np.minimum(found, one, out=found)
    return found
