"""How long preparing takes by the number of threads that do it, and how many are worth having (Lobster 4.1).

More threads share the memory's bandwidth and the caches, so a sample takes longer the more are prepared at once; from
some number on, more threads give nothing. That number is the peak. There is a model for each class of sample sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from headrace.planning.threads.learned_curve import LearnedCurve
from headrace.planning.threads.piecewise import Point

_WITHIN = 0.02
"""Less throughput than the best by this share is as good, with fewer threads."""

_SPREAD = 1.5
"""So many times the least number of threads has to be known, too: what differs less differs by noise."""


def size_class(size: float) -> int:
    """Samples of one class differ in size by less than a factor of two."""
    return max(0, math.floor(math.log2(size))) if size >= 1 else 0


class PreparingModel:
    """Seconds per sample over the number of threads, for each class of sample sizes."""

    def __init__(self, profile: Mapping[float, Iterable[Point]] | None = None) -> None:
        """``profile``: points by the size of the samples that they were measured with, in bytes."""
        self._curves: dict[int, LearnedCurve] = {}
        for size, points in (profile or {}).items():
            self.fit(size, points)

    def fit(self, size: float, points: Iterable[Point]) -> None:
        """Takes points (threads, seconds per sample of each thread, weight) for all that is known of such samples."""
        self._curves[size_class(size)] = LearnedCurve(points)

    def observe(self, size: float, threads: float, seconds_per_sample: float) -> None:
        """Samples of about ``size`` bytes took a thread so long each, while so many threads prepared."""
        self._curves.setdefault(size_class(size), LearnedCurve()).observe(threads, seconds_per_sample)

    def seconds(self, size: float, threads: float) -> float:
        """Seconds that a sample takes its thread while so many prepare; 0 where nothing is known."""
        curve = self._nearest(size)
        return curve.at(max(1.0, threads)) if curve is not None else 0.0

    def throughput(self, size: float, threads: float) -> float:
        """Samples per second of so many threads together; 0 where nothing is known."""
        seconds = self.seconds(size, threads)
        return threads / seconds if seconds > 0 else 0.0

    def peak(self, size: float, most: int) -> int:
        """The least number of threads that gives all throughput there is to have with up to ``most``, but for 2 %.

        With one number of threads measured, or all close to each other, nothing can be said of others: then it is
        ``most``.
        """
        curve = self._nearest(size)
        if curve is None or curve.spread < _SPREAD:
            return max(1, most)
        rates = [count / curve.at(count) for count in range(1, max(1, most) + 1)]
        enough = (1 - _WITHIN) * max(rates)
        return next(count for count, rate in enumerate(rates, 1) if rate >= enough)

    def _nearest(self, size: float) -> LearnedCurve | None:
        wanted = size_class(size)
        known = [(abs(one - wanted), one) for one, curve in self._curves.items() if curve.thread_counts]
        return self._curves[min(known)[1]] if known else None
