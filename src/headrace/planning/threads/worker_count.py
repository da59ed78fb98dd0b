"""How many workers one rank wants (DLCache, algorithm 2), and how many batches in the making (Little's law)."""

from __future__ import annotations

import math

_FINE = 8
"""Parts into which each doubling of seconds is cut: what is read back is up to 9 % too large."""
_FADES = 0.5 ** (1 / 256)
"""What a batch counts when the next one has come: half after 256 batches."""
_HIGH = 0.99
"""So many of the batches are to be there in time."""
_QUIET = 64
"""Looks in a row that would do with fewer batches, before there are fewer."""


def wanted(
    fetch_seconds: float, request_seconds: float, cores: int, memory_per_worker: float, memory_limit: float
) -> int:
    """Workers that keep up with a loop that asks for a batch every so many seconds, where a batch takes one of them
    ``fetch_seconds``, preparing included: within the cores and the memory there is, and at least one."""
    if fetch_seconds <= 0:
        return 1
    count = fetch_seconds / request_seconds if request_seconds > 0 else math.inf
    workers = max(1, cores) if count >= cores else max(1, math.ceil(count))
    if memory_per_worker > 0 and memory_per_worker * workers > memory_limit:
        workers = math.floor(max(0.0, memory_limit) / memory_per_worker)
    return max(1, workers)


class CompletionTimes:
    """Seconds from a batch's being asked for to its being complete: how they are distributed, the latest first."""

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self._total = 0.0
        self._unit = 1.0
        """What the next one weighs: growing weights are old ones fading, without touching them."""

    def observe(self, seconds: float) -> None:
        """A batch is complete."""
        if not (seconds > 0 and math.isfinite(seconds)):
            return
        part = math.ceil(_FINE * math.log2(max(seconds, 1e-9)))
        self._counts[part] = self._counts.get(part, 0.0) + self._unit
        self._total += self._unit
        self._unit /= _FADES
        if self._unit > 1e9:
            light = 1e-6 * self._unit
            self._counts = {part: count / self._unit for part, count in self._counts.items() if count > light}
            self._total = math.fsum(self._counts.values())
            self._unit = 1.0

    def quantile(self, share: float) -> float:
        """Seconds within which such a share of the batches was complete; 0 while there is none."""
        left = (1 - share) * self._total
        for part in sorted(self._counts, reverse=True):
            left -= self._counts[part]
            if left < 0:
                return float(2.0 ** (part / _FINE))
        return float(2.0 ** (min(self._counts) / _FINE)) if self._counts else 0.0


def batches_ahead(times: CompletionTimes, request_seconds: float, most: int) -> int:
    """Batches to have in the making, so that a loop that takes one every so many seconds seldom waits."""
    slow = times.quantile(_HIGH)
    if slow <= 0:
        return 1
    count = slow / request_seconds if request_seconds > 0 else math.inf
    return max(1, most) if count >= most - 1 else max(1, min(most, math.ceil(count) + 1))


class Lead:
    """How many batches a rank keeps in the making: more at once, and fewer when that was enough for long."""

    def __init__(self, first: int = 1) -> None:
        self.ahead = max(1, first)
        self._enough: list[int] = []

    def look(self, times: CompletionTimes, request_seconds: float, most: int) -> int:
        """Another look, such as after each batch; batches to have in the making from now on."""
        wanted = batches_ahead(times, request_seconds, most)
        if wanted >= min(self.ahead, most):
            self.ahead = wanted
            self._enough.clear()
            return self.ahead
        self._enough.append(wanted)
        if len(self._enough) >= _QUIET:
            self.ahead = max(self._enough)
            self._enough.clear()
        return min(self.ahead, max(1, most))
