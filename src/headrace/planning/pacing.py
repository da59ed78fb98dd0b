"""How many bytes may be on their way to one receiver: many senders at once must not fill the queues before it.

What a transfer takes is measured, apart from what preparing takes, and compared with the least that one of its size
class has taken lately. Where it is more than twice that, others stand in the queue, and fewer bytes are let go; where
it is not, and the limit is what holds transfers back, more.
"""

from __future__ import annotations

_LESS, _SLACK, _TIMES = 0.7, 0.002, 2.0
_DRIFT = 1.002
"""By so much the least delay of a class grows with every transfer: links change."""


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

    def may_go(self, nbytes: int, in_flight: int) -> bool:
        """Whether so many bytes more may be asked for. One transfer at a time always may."""
        return in_flight == 0 or in_flight + nbytes <= self.limit

    def arrived(self, nbytes: int, delay: float, in_flight: int, transfers: int) -> None:
        """A transfer took so long. ``in_flight``: bytes that were under way with it; ``transfers``: how many."""
        kind = max(nbytes, 1).bit_length()
        usual = min(self._delays.get(kind, delay) * _DRIFT, delay)
        self._delays[kind] = usual
        if self._rest:
            self._rest -= 1
        elif delay > _TIMES * usual + _SLACK:
            self.limit = max(self._least, int(self.limit * _LESS))
            self._rest = max(0, transfers - 1)
        elif 2 * in_flight >= self.limit:
            self.limit = min(self._most, self.limit + nbytes)
