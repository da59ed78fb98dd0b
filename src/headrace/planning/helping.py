"""When a rank's orders are given to other nodes, and to whom. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_AHEAD = 4
"""Orders that a helper has at a time: those that it makes, and one to go on with."""


class Help:
    """Whether a rank's own workers need help.

    A loader that keeps up has at most one batch on its board that nobody has begun: the one for which a slot has just
    become free. Where more than that waits, the rank's own workers are behind.
    """

    def __init__(self, workers: int) -> None:
        """``workers``: processes of the rank's own."""
        self._workers = workers
        self._orders = 1
        """Of one batch."""
        self.rows = 16
        """Of one order."""
        self._seen: deque[int] = deque(maxlen=_AHEAD)

    def saw(self, rows: int, count: int) -> None:
        """An order of ``count`` of a batch's ``rows`` rows."""
        self._seen.append(count)
        self.rows = max(1, *self._seen)  # (the last order of a batch has what is left)
        self._orders = max(1, -(-rows // self.rows))

    def wanted(self, backlog: int) -> bool:
        """Whether one of so many orders that nobody has claimed should be made elsewhere."""
        return backlog > max(self._orders, self._workers)


class Yielding:
    """Whether a rank's own workers had better leave all orders to others, for a while. Found by trying: what a worker
    takes from the loop, and from who receives rows, no model knows.

    While help is wanted, both ways are tried in turn, and the one that had more orders claimed is kept for longer and
    longer, until the other is tried again.
    """

    _TRIAL, _SETTLING, _LONGEST = 1.5, 0.5, 24.0
    _BETTER = 1.05

    def __init__(self) -> None:
        self.yields = False
        self._kept, self._rate = False, 0.0
        """The way that is the better one, as far as is known, and orders a second that way."""
        self._begun = self._until = 0.0
        self._counted: tuple[float, int] | None = None
        self._stay = self._TRIAL

    def look(self, now: float, claimed: int, *, wanted: bool, helped: bool) -> bool:
        """``claimed``: orders that were ever claimed; ``wanted``: more of them wait than should; ``helped``: others
        are there to make them. Whether workers leave orders alone from now on."""
        if not helped or not (wanted or self.yields):
            self._start(now, yields=False)
            self._kept, self._stay = False, self._TRIAL
            return False
        if self._counted is None and now - self._begun >= self._SETTLING:
            self._counted = now, claimed
        if now < self._until or self._counted is None:
            return self.yields
        since, before = self._counted
        if now - since < self._SETTLING:
            return self.yields
        rate = (claimed - before) / (now - since)
        if self.yields == self._kept:
            self._rate = rate
            self._start(now, yields=not self.yields)
        elif rate > self._BETTER * self._rate:
            self._kept, self._rate, self._stay = self.yields, rate, self._TRIAL
            self._start(now, yields=self._kept, seconds=self._stay)
        else:
            # The other way is tried again after a time that grows.
            self._stay = min(self._LONGEST, 2 * self._stay)
            self._start(now, yields=self._kept, seconds=self._stay)
        return self.yields

    def _start(self, now: float, *, yields: bool, seconds: float = 0.0) -> None:
        self.yields, self._begun, self._counted = yields, now, None
        self._until = now + max(seconds, self._TRIAL)


class Few:
    """Orders that a worker has while others take some, too. How many: as many as keep it busy, and one to go on with;
    what it had claimed beyond these would wait here while others have nothing to do. And which: those that others get
    to when it is done with them; batches are handed out in order, and would wait for the slowest."""

    _MOST = 2.0
    _LATEST, _FORGET = 0.2, 0.05
    _MARGIN = 1.5

    def __init__(self) -> None:
        self._fetching = self._preparing = self._whole = 0.0

    def saw(self, fetching: float, preparing: float, whole: float) -> None:
        """Seconds of an order: to fetch and to prepare it, and from its claim to its end."""
        self._whole = max(whole, self._whole + self._FORGET * (whole - self._whole))
        weight = self._LATEST if self._preparing else 1.0
        self._fetching += weight * (fetching - self._fetching)
        self._preparing += weight * (preparing - self._preparing)

    def enough(self, under_way: int, threads: int) -> bool:
        """Whether so many orders are enough for so many threads that prepare. (While one is prepared, others are
        fetched: the more of them, the longer that takes.)"""
        each = 1.0 + (self._fetching / self._preparing if self._preparing else 0.0)
        return under_way > max(1, threads) * min(each, self._MOST)

    def skip(self, taken: float) -> int:
        """Orders that are left to others, who take so many a second."""
        return int(self._MARGIN * taken * self._whole)


def choose(helpers: Sequence[tuple[int, float]]) -> int | None:
    """The helper that an order goes to, by its place; None: all have enough to do.

    ``helpers``: of each, the orders that it has, and the seconds that one takes it.
    """
    free = [place for place, (orders, _) in enumerate(helpers) if orders < _AHEAD]
    if not free:
        return None
    return min(free, key=lambda place: ((helpers[place][0] + 1) * helpers[place][1], helpers[place][0]))
