"""How many more batches are kept ahead, so that the loop does not wait for a read that takes long.

Such a read holds up its own batch and no other. So what is ahead of the loop has to last for as long as it takes:
Little's law, with the slowest of a hundred batches in the place of the mean. How fast the loop takes batches is
judged by its fast steps, for in the others it may have waited for just that, or for another rank that has.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.planning.threads.worker_count import CompletionTimes, Lead

_EVERY = 4
"""Batches between two looks."""
_FIRST = 16
"""Batches that have to be seen before anything is said of them."""
_FAST = 0.25
"""Of the loop's steps, this share is as fast, or faster."""
_HIGH = 0.99
"""Of the batches, this share is to be there in time."""
_ALIKE = 1.25
"""What others say is news if it is so many times as long as what was seen here."""
_DEEPEST = 64
"""Batches, at most, whatever memory there is: what has to be bridged for longer is no slow read."""


class Bridge:
    """Watches how long batches take to be fetched, and how fast they are taken."""

    def __init__(self) -> None:
        self._took, self._steps = CompletionTimes(), CompletionTimes()
        self._expected = CompletionTimes()
        """With what others have seen. (They are told what was seen here alone, or news would never grow old.)"""
        self._lead = Lead()
        self._count = 0
        self._last: float | None = None
        self.batches = 0
        """That are to be ahead beside the usual ones."""

    @property
    def slow(self) -> float:
        """Seconds that the slowest of a hundred batches took to be fetched."""
        return self._took.quantile(_HIGH)

    def taken(self, now: float, took: float, room: int, elsewhere: Callable[[], float] = float) -> int:
        """A batch was taken, and fetching it took so many seconds; see ``batches``. ``room``: batches that memory can
        be spared for. ``elsewhere``: says how ``slow`` it is for other ranks of this job, which read the same data:
        what one has met need not come as a surprise to all of them, one after the other."""
        if self._last is not None:
            self._steps.observe(now - self._last)
        self._last = now
        self._took.observe(took)
        self._expected.observe(took)
        self._count += 1
        if self._count % _EVERY:
            return max(0, min(self.batches, room))
        news = elsewhere()
        if news > _ALIKE * self._expected.quantile(_HIGH):
            self._expected.observe(news)
        if self._count >= _FIRST:
            most = max(2, min(room, _DEEPEST))
            # (a batch that takes no longer than a step is what the usual ones are for)
            self.batches = self._lead.look(self._expected, self._steps.quantile(_FAST), most) - 2
        return max(0, min(self.batches, room))
