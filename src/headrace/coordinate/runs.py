"""Runs of jobs whose order is known, on one line of time: their steps come at different paces."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.rank_future import Dues, RankFuture
from headrace.core.dues import FAR

_OF_GAP = 32
"""Of the mean time between two uses of a sample, so small a part makes no difference: the grain of times."""
_OFF = 8
"""Of that mean time, so large a part may a run be off before times are laid out anew."""
_LEAST = 1e-3
"""The share of all draws that a run has at least, so that one that stands still has a time, far away."""
_LONGEST = 1 << 30


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

    def times(self, future: RankFuture, due: Dues, *, by_epochs: bool) -> Dues:
        """When a rank of it uses samples. ``by_epochs``: all of an epoch at once."""
        steps = future.steps(due)
        if by_epochs:
            whole = max(1, future.known.steps)
            steps = (np.floor(steps / whole) + 0.5) * whole
        times = np.clip((steps - self._at) * self._each, 0, FAR - 1).astype(np.int32)
        times[due == FAR] = FAR
        return times


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
        if self.now > _LONGEST:
            return True
        far = self._samples // _OFF
        return (
            len(self._runs) > 1
            and self.now > far
            and any(abs(run.time - self.now) > far for run in self._runs)
        )


def soonest(times: Iterable[Dues], count: int) -> NDArray[np.int32]:
    """The first of several times, for each of ``count`` samples; ``FAR`` where there is none."""
    found = np.full(count, FAR, np.int32)
    for one in times:
        np.minimum(found, one, out=found)
    return found
