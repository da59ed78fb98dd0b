"""How long a rank's batch takes to be fetched (Lobster, equation 1).

Bytes of each level, over what so many threads get of it per second. What is learned of a level is the time of one
thread for one byte: it stays the same with more threads where latency dominates, and grows with them where all share
one bandwidth. So it is a function with one bend, and threads over it saturate.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from headrace.planning.threads.learned_curve import LearnedCurve

_FADES = 0.9
"""Storage is busy with others, too: what was measured a while ago may not hold any more."""


class Level(enum.IntEnum):
    """Where the bytes of a sample lie, from the nearest to the farthest."""

    OWN = 0
    """In the node's own memory."""
    DISK = 1
    PEER = 2
    STORAGE = 3


class PerLevel(NamedTuple):
    """One number for each level: bytes, rows or seconds."""

    own: float = 0.0
    disk: float = 0.0
    peer: float = 0.0
    storage: float = 0.0


class LoadingTime:
    """What threads get from each level, learned as it is measured."""

    def __init__(self) -> None:
        self._curves = tuple(LearnedCurve(fades=_FADES, keeps_shape=False) for _ in Level)

    def observe(self, level: Level, threads: float, bytes_per_second: float) -> None:
        """So many threads together got so much from a level."""
        if bytes_per_second > 0:
            self._curves[level].observe(threads, threads / bytes_per_second)

    def known(self, level: Level) -> bool:
        """Whether anything was measured of a level."""
        return self._curves[level].thread_counts > 0

    def rate(self, level: Level, threads: float) -> float:
        """Bytes per second that so many threads together get from a level; 0 where nothing is known of any.

        A level that was never measured is taken for the nearest one that was, the slower one of two.
        """
        curve = self._nearest(level)
        return threads / curve.at(threads) if curve is not None and threads > 0 else 0.0

    def slowdown(self, level: Level, before: float, after: float) -> float:
        """How many times as long a read takes when the threads become ``after`` instead of ``before``."""
        curve = self._nearest(level)
        return curve.at(after) / curve.at(before) if curve is not None else 1.0

    def seconds(self, sizes: Sequence[float], threads: float) -> float:
        """Seconds until so many threads have fetched a batch with so many bytes of each level."""
        total = 0.0
        for level, size in zip(Level, sizes, strict=True):
            if size > 0:
                rate = self.rate(level, max(1.0, threads))
                total += size / rate if rate > 0 else 0.0
        return total

    def _nearest(self, level: Level) -> LearnedCurve | None:
        if self._curves[level].thread_counts:
            return self._curves[level]
        known = [(abs(one - level), -one) for one in Level if self._curves[one].thread_counts]
        return self._curves[-min(known)[1]] if known else None
