"""How many more batches are kept ahead, so that the loop does not wait for a read that takes long.

Such a read holds up its own batch and no other. So what is ahead of the loop has to last for as long as it takes:
Little's law, with the slowest of a hundred batches in the place of the mean. How fast the loop takes batches is
judged by its fast steps, for in the others it may have waited for just that, or for another rank that has.

Where storage, or the line to it, is the limit, batches take longer the more of them are ahead, as they wait for each
other. To keep more ahead for that would make them take longer still, and bring nothing. So what they wait for each
other is left out (``Queueing``).
"""

from __future__ import annotations

from collections import deque
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
_PACE, _FASTER = 16, 2.0
"""Steps over which the loop's pace is taken, and how many times as fast it may become at once."""
_NEAR = 8
"""Batches before and after one that say how long batches take at that time."""
_FAR = 2.0
"""A batch that takes more than so many times as long as those has met a slow read."""
_BUSY = 2.0
"""Batches wait for each other if they take so many times as long as with none ahead beside the usual ones."""
_AGAIN, _SELDOM = 128, 4096
"""Batches after which it is looked whether they still do; and at most."""
_SAME = 0.85
"""With few ahead, batches that had waited for each other take less than this part of what they took."""


class Bridge:
    """Watches how long batches take to be fetched, and how fast they are taken."""

    def __init__(self) -> None:
        self._took, self._steps = CompletionTimes(), CompletionTimes()
        self._expected = CompletionTimes()
        """With what others have seen. (They are told what was seen here alone, or news would never grow old.)"""
        self._queueing = Queueing()
        self._lead = Lead()
        self._count = 0
        self._last: float | None = None
        self._pace, self._paced = 0.0, 0
        self._wanted = 0
        self.batches = 0
        """That are to be ahead beside the usual ones."""

    @property
    def slow(self) -> float:
        """Seconds that the slowest of a hundred batches took to be fetched, had it been alone."""
        return self._took.quantile(_HIGH)

    def leave_out(self) -> None:
        """What the loop does until it takes the next batch is no step of it."""
        self._last = None

    def taken(self, now: float, took: float, room: int, elsewhere: Callable[[], float] = float) -> int:
        """A batch was taken, and fetching it took so many seconds; see ``batches``. ``room``: batches that memory can
        be spared for. ``elsewhere``: says how ``slow`` it is for other ranks of this job, which read the same data:
        what one has met need not come as a surprise to all of them, one after the other."""
        if self._last is not None:
            step = now - self._last
            self._steps.observe(step)
            self._paced = min(
                _PACE + 3 * self.batches, self._paced + 1
            )  # (as many may come at once as are ahead)
            self._pace += (step - self._pace) / self._paced
        self._last = now
        took = self._queueing.without(took, self.batches)
        self._took.observe(took)
        self._expected.observe(took)
        self._count += 1
        if self._count % _EVERY == 0:
            news = elsewhere()
            if news > _ALIKE * self._expected.quantile(_HIGH):
                self._expected.observe(news)
            if self._count >= _FIRST:
                self._look(room)
        self.batches = self._queueing.allowed(max(0, min(self._wanted, room)))
        return self.batches

    def _look(self, room: int) -> None:
        # A loop that waits for every batch would take any number of them: what it could get is seen step by step. But
        # what storage brings one after the other is to be had in any case.
        pace = self._pace if self._queueing.busy else self._pace / _FASTER
        step = max(self._steps.quantile(_FAST), min(self._queueing.quick, pace))
        # (a batch that takes no longer than a step is what the usual ones are for)
        self._wanted = self._lead.look(self._expected, step, max(2, min(room, _DEEPEST))) - 2


class Queueing:
    """Tells what batches take from what they wait for each other.

    What they take is known from when none is ahead beside the usual ones, and from the least that was seen since. If
    all of them take longer, either they wait for each other, or storage has become slower. So, now and then, few are
    kept ahead for a while: if batches then take as long as before, it was storage. A single one that takes longer
    than those before and after it has met a slow read.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, bool]] = deque(maxlen=2 * _NEAR)
        """Seconds that batches took, and whether they had none but the usual ones beside them."""
        self.quick = 0.0
        """Seconds that a batch takes, of late, if it is one of the fast ones."""
        self._usual = self._alone = 0.0
        self._since = 0
        """Batches since more than the usual ones were ahead; less than 0 while there are such yet to come."""
        self._waiting, self._gap = 0, _AGAIN
        """Batches that have waited for each other, and how many may before it is looked at."""
        self._left, self._before = 0, 0.0
        """Batches for which few are kept ahead yet, and how long batches took before."""

    @property
    def busy(self) -> bool:
        """Batches wait for each other."""
        return self._usual > _BUSY * self._alone

    def allowed(self, batches: int) -> int:
        """Of so many that are to be ahead, those that may be so for now."""
        return int(batches * self._alone / self._usual / 2) if self._left else batches

    def without(self, took: float, batches: int) -> float:
        """Fetching a batch took so many seconds, with so many ahead beside the usual ones. Returns what it would have
        taken, had it not had to wait for others; or, as that is seen from those that come after it, what one would
        have that came a little earlier; 0 if there is none."""
        if took <= 0:
            return 0.0
        self._since = -batches if batches else self._since + 1
        alone = self._since > 0
        self._seen.append((took, alone))
        near = [seconds for seconds, _ in self._seen]
        self.quick = sorted(near)[len(near) // 4]
        self._usual = _middle(near[-_NEAR:])
        if self._since >= min(_NEAR, len(near)):
            self._alone = self._usual
        self._alone = min(self._alone or self._usual, self._usual)
        self._look(batches)
        if not alone and (len(near) < _NEAR or self._seen[-_NEAR][1]):
            return 0.0
        *before, one = near if alone else near[: 1 - _NEAR]
        usual = max(self._usual, _middle(before[-_NEAR:]))
        return one - (usual - self._alone) if one > _FAR * usual else one * self._alone / usual

    def _look(self, batches: int) -> None:
        if not self._left:
            self._waiting = self._waiting + 1 if self.busy and batches > 1 else 0
            if self._waiting >= self._gap:
                self._left, self._before, self._waiting = batches + 2 * _NEAR, self._usual, 0
            return
        self._left -= 1
        if self._left:
            return
        if self._usual > _SAME * self._before:
            self._alone, self._gap = self._usual, _AGAIN
        else:
            self._gap = min(_SELDOM, 2 * self._gap)


def _middle(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2] if seconds else 0.0
