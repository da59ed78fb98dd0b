"""How many requests a process has under way at a bucket: as many as bring more, and fewer while it refuses some.

Decisions only. Times are passed in, and so is luck: numbers between 0 and 1 that keep many processes from doing the
same thing at the same moment.
"""

from __future__ import annotations

import math

START = 16.0
"""Requests at once before anything is known."""
_GAIN = 1 / 16
"""What one answer counts in the share of refusals."""
_BACK, _AIM = 0.5, 1.02
"""Seconds in which two thirds of the way back to (a little more than) what had worked are gone: 95% of it takes three
times that, and all of it four times."""
_REMEMBER, _FORGET = 20.0, 20.0
"""Seconds of trouble in which what had worked is not doubted; and then, after which half of it is believed in."""
_GAP = 5.0
"""Seconds without a cut after which the trouble is over."""
_LEAST_CUT = 0.05
_USED = 0.75
"""The part of the limit that has to be in use before more is tried: what is not used proves nothing."""
_ROUND = 32
"""Answers that are looked at together, at least."""
_WIDER, _GAIN_AT_LEAST = 1.15, 0.3
"""Of so many times more requests at once, at least this part has to show in answers a second."""
_DOUBTS = 2
"""Times in a row that more requests brought nothing, before no more are tried."""
_FASTER, _AGAIN = 1.25, 30.0
"""More are tried again when there are so many times the answers a second; or after so many seconds, some more."""
_LONGEST_PAUSE = 0.5


class Congestion:
    """The limit of one process at one bucket.

    A refusal cuts it, once for all requests that were under way together, by half of the share of answers that are
    refusals: where all are, it is soon 1; where a few are, because the bucket has a limit and it was just reached,
    hardly anything is lost. What had worked before is remembered, and forgotten slowly: after the last refusal the
    limit is back there in two seconds, whatever a request takes. From there on it is raised one by one, and in the
    beginning by half with each round, as long as that brings more answers a second, and not just slower ones.
    """

    def __init__(self, most: int) -> None:
        """``most``: requests at once that are allowed in any case."""
        self._most = float(most)
        self._limit = min(START, self._most)
        self._worked = self._limit
        self._share = 0.0
        """Of answers that are refusals, of late."""
        self._streak = 0
        """Refusals since the last answer that was none."""
        self._cut = self._trouble = -math.inf
        """When the limit was last cut, and when that began."""
        self._last = math.inf
        self._fast = True
        self.usual = 0.0
        """Seconds that an answer takes, of late."""
        self._answers, self._seconds, self._places = 0, 0.0, 0
        self._round = _ROUND
        self._width = self._rate = 0.0
        """Requests at once and answers a second, in the round that others are compared with."""
        self._doubts = 0
        self._enough = False
        """More requests at once would only wait longer."""
        self._held = 0.0
        """Since when."""

    @property
    def limit(self) -> int:
        """Requests that may be under way."""
        return max(1, int(self._limit))

    def answered(self, now: float, seconds: float, under_way: int) -> None:
        """A request that took so long was answered, and no refusal; with it, so many were under way."""
        self._share -= _GAIN * self._share
        self._streak = 0
        self._measure(now, seconds, under_way)
        passed, self._last = max(0.0, now - self._last), now
        if self._limit < self._worked:
            back = (_AIM * self._worked - self._limit) * (1.0 - math.exp(-passed / _BACK))
            self._limit = min(self._worked, self._limit + back)
        elif under_way >= _USED * self._limit and not self._enough:
            self._limit += 0.5 if self._fast else 1.0 / self._limit
        self._limit = min(self._limit, self._most)
        self._worked = max(self._worked, self._limit)

    def refused(self, now: float, begun: float, luck: float) -> None:
        """A request that was begun at ``begun`` was refused, dropped, or not answered."""
        self._share += _GAIN * (1.0 - self._share)
        self._streak += 1
        self._fast = False
        self._last = now
        if begun < self._cut:
            return  # it was under way with others for which the limit was cut
        if now - self._cut > _GAP:
            self._trouble = now
        elif now - self._trouble > _REMEMBER:
            # It is not trouble then, but what the bucket takes now.
            self._worked = max(self._limit, self._worked * 0.5 ** ((now - self._cut) / _FORGET))
        self._limit = max(1.0, self._limit * (1.0 - max(_LEAST_CUT, self._share / 2) * (0.8 + 0.4 * luck)))
        self._cut = now

    def pause(self, luck: float) -> float:
        """Seconds for which nothing new is asked for: where nothing but refusals comes, and few are under way."""
        if self._streak < 2 or self._limit >= 2.0:
            return 0.0
        return min(_LONGEST_PAUSE, 0.01 * 2.0 ** min(self._streak, 16)) * (0.5 + 0.5 * luck)

    def _measure(self, now: float, seconds: float, under_way: int) -> None:
        """Find out whether more requests at once bring more answers, or only longer queues."""
        self.usual += 0.1 * (seconds - self.usual) if self.usual else seconds
        self._answers += 1
        self._seconds += seconds
        self._places += under_way
        if self._answers < self._round:
            return
        width, rate = self._places / self._answers, self._places / max(self._seconds, 1e-9)
        self._answers, self._seconds, self._places = 0, 0.0, 0
        self._round = max(_ROUND, self.limit)
        if self._enough:
            if rate > _FASTER * self._rate or now - self._held > _AGAIN:
                self._enough, self._doubts = False, _DOUBTS - 1
                self._width, self._rate = width, rate
        elif width >= _WIDER * self._width:
            wider = width / self._width - 1.0 if self._width else 0.0
            none = self._rate > 0.0 and rate / self._rate - 1.0 < _GAIN_AT_LEAST * wider
            self._doubts = self._doubts + 1 if none else 0
            self._enough = self._doubts >= _DOUBTS
            self._width, self._rate, self._held = width, max(rate, self._rate), now
