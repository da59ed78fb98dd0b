"""How much of the decoding is left to a device that trains, too.

With a share of the rows left to it, the processors have fewer to prepare, and the device has more to do beside
training: batches come at the pace of whichever of the three is slowest. No model knows what training loses by it, so
it is tried: a larger share where the loop waits for batches, else a smaller one (also where it waits because the
device has too much to do). What does not pay is taken back, and is not tried again for a while; where two are as
good, the device gets the smaller share.
"""

from __future__ import annotations

_STEP = 1 / 8
"""By how much the share is changed."""
_LEAST = 1 / 32
"""Changes that are smaller than this are not worth a try."""
_WAITS = 0.02
"""The part of its time for which a loop waits that is short of batches."""
_GAIN = 0.01
"""A larger share has to bring so much more, by parts of the pace."""
_LOSS = 0.005
"""A smaller one may cost so much."""
_SETTLING = 1
"""Measurements after a change that say nothing: batches were prepared ahead of it."""
_HOLD = 8
"""Measurements for which what did not pay is not tried again; twice as many each time, up to:"""
_LONGEST = 128


class DeviceShare:
    """Finds the share, by measurements of the loop."""

    def __init__(self) -> None:
        self.share = 0.0
        """Of the rows that are left to the device, as far as they can be."""
        self._from: float | None = None
        """The share that is gone back to if the present one does not pay; None: nothing is tried now."""
        self._pace = 0.0
        """Rows in a second, before the trial."""
        self._step = _STEP
        self._settling = 0
        self._now = 0
        self._again = {True: 0, False: 0}
        """When a larger share (True) or a smaller one may be tried."""
        self._hold = {True: _HOLD, False: _HOLD}

    def note(self, rows: float, seconds: float, waited: float) -> float:
        """What the loop got since the last time: rows, in so many seconds, for so many of which it waited. Returns
        the share from now on."""
        self._now += 1
        if self._settling:
            self._settling -= 1
            return self.share
        pace = rows / seconds if seconds > 0 else 0.0
        short = waited > _WAITS * seconds
        if self._from is None or self._pays(pace):
            self._pace = pace
            if not (short and self._try(larger=True)):
                self._try(larger=False)
        return self.share

    def _try(self, *, larger: bool) -> bool:
        """Try another share, if there is one that may be better."""
        share = min(1.0, self.share + self._step) if larger else max(0.0, self.share - self._step)
        if share == self.share or self._now < self._again[larger]:
            return False
        self._from, self.share, self._settling = self.share, share, _SETTLING
        return True

    def _pays(self, pace: float) -> bool:
        """Whether the share that is tried is kept; else it is what it was."""
        assert self._from is not None
        larger = self.share > self._from
        before, self._from = self._from, None
        if pace >= self._pace * (1 + _GAIN if larger else 1 - _LOSS):
            self._hold[larger] = _HOLD
            return True
        self.share, self._settling = before, _SETTLING
        if self._step / 2 >= _LEAST:
            self._step /= 2
        else:
            self._step = _STEP
            self._again[larger] = self._now + self._hold[larger]
            self._hold[larger] = min(2 * self._hold[larger], _LONGEST)
        return False
