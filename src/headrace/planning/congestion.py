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
_MEAN = 1 / 8
"""What one answer counts in how much is in use: a call begins many requests at once, and has few left at its end."""
_ROUND = 32
"""Answers that are looked at together, at least."""
_LOW = 0.2
"""Of a round's answers, so many took no longer than what counts as its least: a single one may be fast by chance."""
_QUEUE, _FEW = 2.5, 8.0
"""Of requests that storage can work on at a time, so many times as many are under way; and that many in any case."""
_DRAIN = 64
"""Rounds after which it is looked again, for one of them, what an answer takes where none waits for others."""
_LONGEST_PAUSE = 0.5
_RESERVE = 0.5
"""Of the requests that may be under way, so many wait for their turn: what comes next is there when one ends."""


def crowded(waiting: int, limit: int) -> bool:
    """Whether enough requests wait for their turn, where so many may be under way."""
    return waiting >= max(1.0, _RESERVE * limit)


class Congestion:
    """The limit of one process at one bucket.

    A refusal cuts it, once for all requests that were under way together, by half of the share of answers that are
    refusals: where all are, it is soon 1; where a few are, because the bucket has a limit and it was just reached,
    hardly anything is lost. What had worked before is remembered, and forgotten slowly: after the last refusal the
    limit is back there in two seconds, whatever a request takes. From there on it is raised one by one, and in the
    beginning by half with each round.

    More requests at once than storage, and the line to it, can work on only wait for each other: all of them are late
    then, and what is needed first is no sooner there than the rest. How many those are follows from the answers a
    second and from what an answer takes if it need not wait; the limit is at most a few times that. What it takes is
    looked at again now and then, with so few under way for a moment that none has to wait.
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
        self._width = 0.0
        """Requests under way, of late."""
        self._round: list[float] = []
        """Seconds that answers took."""
        self._places = 0
        self._ceiling = math.inf
        """Requests beyond this would only wait for others."""
        self._least = self._fresh = math.inf
        """Seconds that an answer takes if it need not wait: known so far, and since it was looked at anew."""
        self._rounds = 0
        """Since then."""
        self._drained_from = 0.0
        """The limit before it was lowered for that; 0: it is not."""

    @property
    def limit(self) -> int:
        """Requests that may be under way."""
        return max(1, int(self._limit))

    def answered(self, now: float, seconds: float, under_way: int) -> None:
        """A request that took so long was answered, and no refusal; with it, so many were under way."""
        self._share -= _GAIN * self._share
        self._streak = 0
        self._width += _MEAN * (under_way - self._width) if self._width else under_way
        self._measure(now, seconds, under_way)
        passed, self._last = max(0.0, now - self._last), now
        if self._limit < self._worked:
            back = (_AIM * self._worked - self._limit) * (1.0 - math.exp(-passed / _BACK))
            self._limit = min(self._worked, self._limit + back)
        elif self._width >= _USED * self._limit and self._limit < self._ceiling:
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
        """Find out how many requests at once bring more answers, and not only longer queues."""
        self.usual += 0.1 * (seconds - self.usual) if self.usual else seconds
        self._round.append(seconds)
        self._places += under_way
        if len(self._round) < max(_ROUND, self._limit):
            return
        count, width = len(self._round), self._places / len(self._round)
        rate = self._places / max(sum(self._round), 1e-9)
        self._round.sort()
        low = self._round[int(_LOW * count)]
        self._round, self._places = [], 0
        self._rounds += 1
        self._fresh = min(self._fresh, low)
        self._least = min(self._least, low)
        if self._drained_from:
            self._limit, self._drained_from = max(self._limit, self._drained_from), 0.0
        elif width < _USED * self._limit:
            return  # nobody wants more, which says nothing about what storage could do
        self._ceiling = max(_FEW, _QUEUE * rate * self._least)
        if self._limit > self._ceiling:
            self._limit = self._worked = self._ceiling
        elif self._rounds >= _DRAIN:
            # (what it took before may not be true any more: storage may be further away than it was)
            self._least, self._fresh, self._rounds = self._fresh, math.inf, 0
            self._drained_from, self._limit = self._limit, max(1.0, self._limit / (2 * _QUEUE))
