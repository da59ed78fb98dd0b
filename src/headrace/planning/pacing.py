"""How many bytes may be on their way to one receiver: many senders at once must not fill the queues before it.

What a transfer takes is measured, apart from what preparing takes, and compared with the least that one of its size
class has taken lately. Where it is more than twice that, others stand in the queue, and fewer bytes are let go; where
it is not, and the limit is what holds transfers back, more.

What senders still prepare is not on its way: of the bytes that were asked for, those are that share of the time that
transfers take of all (Little's law).

Links change, and so what a transfer takes at best is forgotten after a while. It does not show while transfers wait
for each other: so now and then few are let go, and it is found anew.
"""

from __future__ import annotations

_LESS, _MORE, _SLACK, _TIMES = 0.85, 1 / 4, 0.002, 2.0
"""What is left of the limit where transfers wait, and what each adds to it where they do not, of its bytes. (It is
some transfers before either shows.)"""
_LATEST = 1 / 4
"""The weight of one transfer in what those of its class take. (Single ones may wait for a processor.)"""
_WINDOW = 2048
"""Transfers after which what they take at best is found anew; it is known of the last one or two windows."""
_FINDING = 8
"""Transfers for which few are let go to find it."""
_LEFT = 0.7
"""What is left of the limit after that."""
_MEAN, _LEAST_SHARE = 1 / 16, 1 / 16
"""The weight of one transfer in what is known of all; and the share that is taken to be on its way, at least, as
those who prepare may be done at once."""


class Pace:
    """The limit for one receiver. Pure: it is told what was measured."""

    def __init__(self, least: int, most: int, first: int = 0) -> None:
        """``least``, ``most``: bytes between which the limit stays; ``first``: where it begins, if not there."""
        self._least, self._most = least, most
        self.limit = max(least, first)
        self._delays: dict[int, float] = {}
        """By size class: what a transfer takes; and the least that it did, in this window and the one before."""
        self._best: dict[int, float] = {}
        self._before: dict[int, float] = {}
        self._count = 0
        """Transfers of this window."""
        self._rest = 0
        """Transfers for which the limit is not changed again: those were under way when it was lowered."""
        self._after = 0
        """What it is after that, if it was lowered to find something out."""
        self._delay = self._held = 0.0
        """Lately: seconds of transfers, and of preparing what they brought, times bytes."""

    @property
    def share(self) -> float:
        """Of the bytes that were asked for and are not here, those that may be on their way."""
        if not self._held:
            return 1.0
        return max(_LEAST_SHARE, self._delay / (self._delay + self._held))

    def may_go(self, nbytes: int, in_flight: int) -> bool:
        """Whether so many bytes more may be asked for, where so many were. One transfer at a time always may."""
        return in_flight == 0 or (in_flight + nbytes) * self.share <= self.limit

    def arrived(self, nbytes: int, delay: float, in_flight: int, transfers: int, held: float = 0.0) -> None:
        """A transfer took so long. ``in_flight``: bytes that were asked for and not here as it was; ``transfers``:
        how many; ``held``: seconds for which it was prepared before."""
        if not delay > 0.0:
            return  # (clocks of two machines: it took as long as it did, and nobody knows how long that is)
        self._delay += _MEAN * (nbytes * delay - self._delay)
        self._held += _MEAN * (nbytes * held - self._held)
        kind = max(nbytes, 1).bit_length()
        before = self._delays.get(kind, delay)
        now = self._delays[kind] = before + _LATEST * (delay - before)
        self._best[kind] = min(self._best.get(kind, now), now)
        least = min(self._best[kind], self._before.get(kind, now))
        self._count += 1
        if self._count >= _WINDOW:
            self._before, self._best, self._count = self._best, {}, 0
            if self.limit > self._least:
                after = max(self._after, int(_LEFT * self.limit))
                self._lower(self._least, transfers + _FINDING)
                self._after = after
        elif self._rest:
            self._rest -= 1
            if not self._rest:
                self.limit, self._after = max(self.limit, self._after), 0
        elif now > _TIMES * least + _SLACK:
            self._lower(int(self.limit * _LESS), transfers)
        elif 2 * in_flight * self.share >= self.limit:
            self.limit = min(self._most, self.limit + max(1, int(_MORE * nbytes * self.share)))

    def _lower(self, limit: int, transfers: int) -> None:
        self.limit, self._rest, self._after = max(self._least, limit), max(0, transfers - 1), 0
