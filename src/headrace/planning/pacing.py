"""How many bytes may be on their way to one receiver: many senders at once must not fill the queues before it.

What a transfer takes is measured, apart from what preparing takes, and compared with the least that one of its size
class has taken lately. Where it is more than twice that, others stand in the queue, and fewer bytes are let go; where
it is not, and the limit is what holds transfers back, more.

What senders still prepare is not on its way: of the bytes that were asked for, those are that share of the time that
transfers take of all (Little's law), and at times twice as much.
"""

from __future__ import annotations

_LESS, _SLACK, _TIMES = 0.7, 0.002, 2.0
_DRIFT = 1.002
"""By so much the least delay of a class grows with every transfer while the limit is at its least: links change.
(With a higher one it would grow by what it is to find: transfers that wait for each other.)"""
_MEAN, _BURSTS, _LEAST_SHARE = 1 / 16, 2.0, 1 / 8
"""The weight of one transfer in what is known of all; how much more than on average is on its way at times, as those
who prepare may be done at once; and the share that is taken to be, at least."""


class Pace:
    """The limit for one receiver. Pure: it is told what was measured."""

    def __init__(self, least: int, most: int, first: int = 0) -> None:
        """``least``, ``most``: bytes between which the limit stays; ``first``: where it begins, if not there."""
        self._least, self._most = least, most
        self.limit = max(least, first)
        self._delays: dict[int, float] = {}
        """By size class: the least delay."""
        self._rest = 0
        """Transfers for which the limit is not lowered again: those were under way when it was."""
        self._delay = self._held = 0.0
        """Lately: seconds of transfers, and of preparing what they brought, times bytes."""

    @property
    def share(self) -> float:
        """Of the bytes that were asked for and are not here, those that may be on their way."""
        if not self._held:
            return 1.0
        return min(1.0, max(_LEAST_SHARE, _BURSTS * self._delay / (self._delay + self._held)))

    def may_go(self, nbytes: int, in_flight: int) -> bool:
        """Whether so many bytes more may be asked for, where so many were. One transfer at a time always may."""
        return in_flight == 0 or (in_flight + nbytes) * self.share <= self.limit

    def arrived(self, nbytes: int, delay: float, in_flight: int, transfers: int, held: float = 0.0) -> None:
        """A transfer took so long. ``in_flight``: bytes that were asked for and not here as it was; ``transfers``:
        how many; ``held``: seconds for which it was prepared before."""
        self._delay += _MEAN * (nbytes * delay - self._delay)
        self._held += _MEAN * (nbytes * held - self._held)
        kind = max(nbytes, 1).bit_length()
        drift = _DRIFT if self.limit == self._least else 1.0
        usual = min(self._delays.get(kind, delay) * drift, delay)
        self._delays[kind] = usual
        if self._rest:
            self._rest -= 1
        elif delay > _TIMES * usual + _SLACK:
            self.limit = max(self._least, int(self.limit * _LESS))
            self._rest = max(0, transfers - 1)
        elif 2 * in_flight * self.share >= self.limit:
            self.limit = min(self._most, self.limit + nbytes)
