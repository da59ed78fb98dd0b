"""A piecewise linear function of the thread count that is learned from one measurement after the other.

Old measurements fade. A measurement far from what was expected is held back: alone it is an outlier. When others
agree, it is the first news of a thread count, or everything takes longer now, or less long. What was known of other
thread counts then is scaled with it, where the shape of the function is the machine's; or it is forgotten, where what
changed may have changed the shape as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.planning.threads.piecewise import Piecewise, Point, fit

_HEAVIEST = 30.0
"""The weight of one thread count, at most: a profile does not outweigh for ever what is measured now."""
_LIGHTEST = 0.05
"""What weighs less is forgotten."""
_FAR = 1.3
"""A measurement so many times as large as expected, or as small, is not believed at once."""
_AGREE = 3
"""Such measurements in a row that are believed."""
_EXPLAINED = 1.2
"""A thread takes longer in proportion to their number where they share something, and so many times that at most."""
_NEAR = 1.5
"""Thread counts up to so many times as large, or as small, say what one may expect."""
_MORE = 1.15
"""Where half as many threads again give less than so many times the throughput, it has come to its end."""
_STALE = 0.01
"""How much a fitted function may be off, in the mean, before it is fitted anew."""


class LearnedCurve:
    """Seconds over the number of threads."""

    def __init__(
        self, points: Iterable[Point] = (), *, fades: float = 0.97, keeps_shape: bool = True
    ) -> None:
        """``fades``: what a measurement still weighs when the next one has come. ``keeps_shape``: whether other
        thread counts are scaled, and not forgotten, when everything takes longer."""
        self._fades, self._keeps_shape = fades, keeps_shape
        self._known: dict[int, tuple[float, float]] = {}
        """For each number of threads: seconds, and their weight."""
        self._far: list[tuple[int, float, float]] = []
        """The last measurements that were not believed: threads, seconds, and how many times what was expected."""
        self._function: Piecewise | None = None
        self._drift = self._floor = self._at_most = 0.0
        self._least = self._most = 1
        self._saturated = False
        for threads, seconds, weight in points:
            if weight > 0 and seconds > 0:
                self._take(max(1, round(threads)), seconds, weight)

    @property
    def thread_counts(self) -> int:
        """Of how many numbers of threads something is known."""
        return len(self._known)

    @property
    def spread(self) -> float:
        """How many times the least thread count of which something is known the largest one is."""
        return max(self._known) / min(self._known) if self._known else 1.0

    def at(self, threads: float) -> float:
        """Seconds that are expected; 0 while nothing is known.

        Between what is known it is the fitted function. Below, it stays as it is at the least thread count. Above, it
        grows in proportion if throughput had come to its end there, and stays as it is if not: so long as nobody has
        tried, more threads are taken to do more.
        """
        if not self._known:
            return 0.0
        if self._function is None:
            self._fit()
        if threads <= self._most:
            return self._inside(threads)
        return self._at_most * (threads / self._most if self._saturated else 1.0)

    def _fit(self) -> None:
        self._function = fit(Point(count, *rest) for count, rest in self._known.items())
        self._drift = 0.0
        self._least, self._most = min(self._known), max(self._known)
        self._floor = 0.25 * min(seconds for seconds, _ in self._known.values())
        self._at_most = self._inside(self._most)
        fewer = self._most / _NEAR
        self._saturated = self._least <= fewer and self._at_most > self._inside(fewer) * _NEAR / _MORE

    def _inside(self, threads: float) -> float:
        assert self._function is not None
        return max(self._floor, self._function.at(max(threads, self._least)))

    def observe(self, threads: float, seconds: float) -> None:
        """Something was measured with so many threads."""
        if not (seconds > 0 and threads > 0 and math.isfinite(seconds) and math.isfinite(threads)):
            return
        count = max(1, round(threads))
        if not self._known:
            self._take(count, seconds, 1.0)
            return
        expected = self.at(count)
        times = seconds / expected
        if 1 / _FAR < times < _FAR:
            self._far.clear()
            self._take(count, seconds, 1.0)
            return
        if self._far and (self._far[-1][2] > 1) != (times > 1):
            self._far.clear()
        self._far.append((count, seconds, times))
        if len(self._far) >= _AGREE:
            self._believe()

    def _believe(self) -> None:
        """Measurements far from what was expected agree with each other."""
        far, self._far = self._far, []
        counts = [count for count, _, _ in far]
        times = sorted(times for _, _, times in far)[len(far) // 2]
        low, high = min(counts) / _NEAR, max(counts) * _NEAR
        near = any(low <= known <= high and weight >= 1 for known, (_, weight) in self._known.items())
        more = max(counts) / self._most
        shared = more > 1 and 1 < times <= _EXPLAINED * more
        if self._keeps_shape and near:
            self._known = {
                count: (seconds * times, weight) for count, (seconds, weight) in self._known.items()
            }
        elif not self._keeps_shape and not shared:
            self._known = {}
        if not self._keeps_shape or not near:
            for count, seconds, _ in far:
                self._take(count, seconds, 1.0)
        self._function = None

    def _take(self, count: int, seconds: float, weight: float) -> None:
        fades = self._fades
        known = {n: (s, w * fades) for n, (s, w) in self._known.items() if w * fades > _LIGHTEST}
        before = known.get(count)
        if before is None:
            known[count] = seconds, min(_HEAVIEST, weight)
            self._function = None
        else:
            total = before[1] + weight
            mean = (before[0] * before[1] + seconds * weight) / total
            known[count] = mean, min(_HEAVIEST, total)
            self._drift += abs(mean / before[0] - 1)
            if self._drift > _STALE:
                self._function = None
        if len(known) < len(self._known):
            self._function = None
        self._known = known
