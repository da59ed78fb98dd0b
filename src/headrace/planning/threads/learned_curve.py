"""A piecewise linear function of the thread count that is learned from one measurement after the other.

Old measurements fade. A measurement far from what was expected is held back: alone it is an outlier. When the next
ones at that thread count agree, it is that count's. When the next ones are all far, everything takes longer now, or
less long. What was known of other thread counts then is scaled with it, where the shape of the function is the
machine's; or it is forgotten, where what changed may have changed the shape as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

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
"""How far what is known may go one way, before the function is fitted anew."""


class _Known(NamedTuple):
    """What is known of thread counts that are nearly the same."""

    threads: float
    seconds: float
    weight: float


def _group(threads: float) -> int:
    """Up to eight threads each number is one of its own, beyond that each fifth more."""
    return round(threads) if threads < 8.5 else round(8 + 4 * math.log2(threads / 8))


class LearnedCurve:
    """Seconds over the number of threads."""

    def __init__(
        self, points: Iterable[Point] = (), *, fades: float = 0.97, keeps_shape: bool = True
    ) -> None:
        """``fades``: what a measurement still weighs when the next one has come. ``keeps_shape``: whether other
        thread counts are scaled, and not forgotten, when everything takes longer."""
        self._fades, self._keeps_shape = fades, keeps_shape
        self._known: dict[int, _Known] = {}
        self._far: dict[int, list[tuple[float, float]]] = {}
        """Measurements that were not believed, the last ones of each count: threads and seconds."""
        self._run: list[tuple[float, float, float]] = []
        """Those since the last that was believed: threads, seconds, and how many times what was expected."""
        self._function: Piecewise | None = None
        self._drift = self._floor = self._at_most = 0.0
        self._least = self._most = 1.0
        self._saturated = False
        for threads, seconds, weight in points:
            if weight > 0 and seconds > 0 and threads > 0:
                self._take(max(1.0, threads), seconds, weight, fades=1.0)

    @property
    def thread_counts(self) -> int:
        """Of how many numbers of threads something is known."""
        return len(self._known)

    @property
    def spread(self) -> float:
        """How many times the least thread count of which something is known the largest one is."""
        counts = [one.threads for one in self._known.values()]
        return max(counts) / min(counts) if counts else 1.0

    def at(self, threads: float) -> float:
        """Seconds that are expected; 0 while nothing is known.

        Between what is known it is the fitted function. Below, it stays as it is at the least thread count. Above, it
        grows in proportion if throughput had come to its end there, and stays as it is if not: so long as nobody has
        tried, more threads are taken to do more.
        """
        if self._function is None:
            if not self._known:
                return 0.0
            self._fit()
        if threads <= self._most:
            return self._inside(threads)
        return self._at_most * (threads / self._most if self._saturated else 1.0)

    def observe(self, threads: float, seconds: float) -> None:
        """Something was measured with so many threads."""
        if not (0 < seconds < math.inf and 0 < threads < math.inf):
            return
        threads = max(1.0, threads)
        expected = self.at(threads)
        times = seconds / expected if expected > 0 else 1.0
        if 1 / _FAR < times < _FAR:
            self._run.clear()
            self._far.pop(_group(threads), None)
            self._take(threads, seconds, 1.0)
            return
        if self._run and (self._run[-1][2] > 1) != (times > 1):
            self._run.clear()
        self._run.append((threads, seconds, times))
        alone = self._far.setdefault(_group(threads), [])
        alone.append((threads, seconds))
        if len(self._run) >= _AGREE:
            self._change(self._run)
        elif len(alone) >= _AGREE:
            self._replace(alone)

    def _change(self, run: list[tuple[float, float, float]]) -> None:
        """Nothing is as expected any more; or all of this is about thread counts of which nothing is known."""
        counts = [threads for threads, _, _ in run]
        times = sorted(times for _, _, times in run)[len(run) // 2]
        low, high = min(counts) / _NEAR, max(counts) * _NEAR
        near = any(low <= known.threads <= high and known.weight >= 1 for known in self._known.values())
        more = max(counts) / self._most
        shared = more > 1 and 1 < times <= _EXPLAINED * more
        if self._keeps_shape and near:
            self._known = {
                at: known._replace(seconds=known.seconds * times) for at, known in self._known.items()
            }
        elif not self._keeps_shape and not shared:
            self._known = {}
        if not self._keeps_shape or not near:
            for threads, seconds, _ in run:
                self._take(threads, seconds, 1.0)
        self._function = None
        self._run = []
        self._far.clear()

    def _replace(self, alone: list[tuple[float, float]]) -> None:
        """One thread count is not what it was, and others are."""
        threads, seconds = sorted(alone, key=lambda one: one[1])[len(alone) // 2]
        group = _group(threads)
        self._known[group] = _Known(threads, seconds, float(len(alone)))
        self._function = None
        self._run = []
        del self._far[group]

    def _take(self, threads: float, seconds: float, weight: float, fades: float | None = None) -> None:
        left = self._fades if fades is None else fades
        known = {
            at: _Known(one.threads, one.seconds, one.weight * left)
            for at, one in self._known.items()
            if one.weight * left > _LIGHTEST
        }
        if len(known) < len(self._known):
            self._function = None
        at = _group(threads)
        before = known.get(at)
        if before is None:
            known[at] = _Known(threads, seconds, min(_HEAVIEST, weight))
            self._function = None
        else:
            part = weight / (before.weight + weight)
            mean = before.seconds + part * (seconds - before.seconds)
            count = before.threads + part * (threads - before.threads)
            known[at] = _Known(count, mean, min(_HEAVIEST, before.weight + weight))
            self._drift += mean / before.seconds - 1
            if abs(self._drift) > _STALE:
                self._function = None
        self._known = known

    def _fit(self) -> None:
        self._function = fit(Point(*one) for one in self._known.values())
        self._drift = 0.0
        counts = [one.threads for one in self._known.values()]
        self._least, self._most = min(counts), max(counts)
        self._floor = 0.25 * min(one.seconds for one in self._known.values())
        self._at_most = self._inside(self._most)
        fewer = self._most / _NEAR
        self._saturated = self._least <= fewer and self._at_most > self._inside(fewer) * _NEAR / _MORE

    def _inside(self, threads: float) -> float:
        assert self._function is not None
        return max(self._floor, self._function.at(max(threads, self._least)))
