"""How many more batches are kept ahead, so that the loop does not wait for a read that takes long.

Such a read holds up its own batch and no other. So what is ahead of the loop has to last for as long as it takes:
Little's law, with the slowest of a hundred batches in the place of the mean. How fast the loop takes batches is
judged by its fast steps, for in the others it may have waited for just that, or for another rank that has.
"""

from __future__ import annotations

from headrace.planning.threads.worker_count import CompletionTimes, Lead

_EVERY = 4
"""Batches between two looks."""
_FIRST = 16
"""Batches that have to be seen before anything is said of them."""
_FAST = 0.25
"""Of the loop's steps, this share is as fast, or faster."""
_DEEPEST = 64
"""Batches, at most, whatever memory there is: what has to be bridged for longer is no slow read."""


class Bridge:
    """Watches how long batches take to be fetched, and how fast they are taken."""

    def __init__(self) -> None:
        self._took, self._steps = CompletionTimes(), CompletionTimes()
        self._lead = Lead()
        self._count = 0
        self._last: float | None = None
        self.batches = 0
        """That are to be ahead beside the usual ones."""

    def taken(self, now: float, took: float, room: int) -> int:
        """A batch was taken, and fetching it took so many seconds; see ``batches``. ``room``: batches that memory can
        be spared for."""
        if self._last is not None:
            self._steps.observe(now - self._last)
        self._last = now
        self._took.observe(took)
        self._count += 1
        if self._count >= _FIRST and self._count % _EVERY == 0:
            most = max(2, min(room, _DEEPEST))
            # (a batch that takes no longer than a step is what the usual ones are for)
            self.batches = self._lead.look(self._took, self._steps.quantile(_FAST), most) - 2
        return max(0, min(self.batches, room))
