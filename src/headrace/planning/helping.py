"""When a rank's orders are given to other nodes, and to whom. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice

from headrace.core.random import key
from headrace.planning.rendezvous import key_of

MOST_LINES = 512
"""Helpers that a rank is connected to, at most."""
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


class Way(Enum):
    """Who makes a rank's orders while help is wanted."""

    BOTH = "both"
    OTHERS = "others"
    """Its own workers leave all of them to others: whoever receives rows needs the processor more."""
    OWN = "own"
    """None is given away: to receive rows would take its own workers as much as to make them."""


class Division:
    """How a rank's orders are divided between its own workers and others. Found by trying: what a worker takes from
    the loop, and from who receives rows, no model knows.

    While help is wanted, it is tried in turn to let both make some, and to let only one of them; what had more rows
    claimed is kept for longer and longer, until the other is tried again. Which one of them alone may be the better
    way follows from what receiving a row takes of the processor, and what making it here does.
    """

    _TRIAL, _SETTLING, _WITHOUT, _LONGEST = 1.5, 0.5, 6.0, 24.0
    _BETTER = 1.05
    _COSTLY, _STILL = 1 / 3, 1 / 4
    """A row whose receiving takes more than this share of what making it takes is no great help; or, where none is
    given away for that, the second."""

    def __init__(self) -> None:
        self.way = Way.BOTH
        self._kept, self._rate = Way.BOTH, 0.0
        """The way that is the best one, as far as is known, and rows a second that way."""
        self._begun = self._until = 0.0
        self._counted: tuple[float, int] | None = None
        self._stay = self._TRIAL

    def look(
        self, now: float, claimed: int, *, wanted: bool, helped: bool, making: float = 0.0, receiving: float = 0.0
    ) -> Way:  # fmt: skip
        """``claimed``: rows that were ever claimed; ``wanted``: more of them wait than should; ``helped``: others
        are there to make them; ``making``, ``receiving``: CPU seconds that a row takes here, made here or made
        elsewhere, as far as that is known. Who makes orders from now on."""
        costly = 0.0 < (self._STILL if self._kept is Way.OWN else self._COSTLY) * making < receiving
        other = Way.OWN if costly else Way.OTHERS
        if not helped or (self._kept is Way.OWN and not costly) or not (wanted or self._is_alone):
            self._start(now, Way.BOTH)
            self._kept, self._stay = Way.BOTH, self._TRIAL
            return self.way
        if not wanted and Way.OWN in (self.way, self._kept):
            if self.way is not Way.OWN or now >= self._until:
                # They keep up by themselves, and nothing is better than that.
                self._kept = Way.OWN
                self._start(now, Way.OWN, self._stay)
            return self.way
        if self._counted is None and now - self._begun >= self._SETTLING:
            self._counted = now, claimed
        if now < self._until or self._counted is None:
            return self.way
        since, before = self._counted
        if now - since < self._SETTLING:
            return self.way
        rate = (claimed - before) / (now - since)
        if self.way is self._kept:
            self._rate = rate
            self._start(now, other if self._kept is Way.BOTH else Way.BOTH)
        elif rate > self._rate * (1 / self._BETTER if self.way is Way.OWN else self._BETTER):
            # (what others do is not for nothing)
            # (what they were seen to do without help, they will do for a while)
            self._kept, self._rate = self.way, rate
            self._stay = self._WITHOUT if self.way is Way.OWN else self._TRIAL
            self._start(now, self._kept, self._stay)
        else:
            # The other way is tried again after a time that grows.
            self._stay = min(self._LONGEST, 2 * self._stay)
            self._start(now, self._kept, self._stay)
        return self.way

    @property
    def _is_alone(self) -> bool:
        return self.way is not Way.BOTH or self._kept is Way.OWN

    def _start(self, now: float, way: Way, seconds: float = 0.0) -> None:
        self.way, self._begun, self._counted = way, now, None
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


class Reach:
    """How many helpers a rank is connected to: few, and twice as many as long as all of these have enough to do while
    help is wanted; half as many where it has not been wanted for long. Each costs both ends a connection and a
    thread, and the helper has to list the dataset."""

    FIRST = 16
    _SHORT, _COMING, _CALM = 1.0, 10.0, 30.0

    def __init__(self) -> None:
        self.many = self.FIRST
        """So many, at most."""
        self._short: float | None = None
        """Since when there have been too few."""
        self._wanted: float | None = None
        """When help was last wanted, or it was last made fewer."""

    def look(self, now: float, *, wanted: bool, free: bool, lines: int, coming: int) -> int:
        """``wanted``: more orders wait than the rank's own workers get to; ``free``: some helper could take one all
        the time; ``lines``: helpers that it is connected to; ``coming``: of these, of whom it is not known yet what
        they do. So many it may be connected to from now on."""
        if wanted or self._wanted is None:
            self._wanted = now
        elif now - self._wanted >= self._CALM:
            self.many, self._wanted = max(self.FIRST, self.many // 2), now
        if not wanted or free or lines < self.many:
            self._short = None
        elif self._short is None:
            self._short = now
        elif now - self._short >= (self._COMING if coming else self._SHORT):
            # (who is coming may be all that is needed; or may never come)
            self.many, self._short = min(MOST_LINES, 2 * self.many), None
        return self.many


def in_order(who: str, nodes: Mapping[str, Sequence[str]]) -> list[str]:
    """The helpers of all nodes in the order in which a rank connects to them. ``nodes``: of each node, its helpers.

    Each rank has another order, in which each helper is as likely to come early as any other, and those of one node
    come as far from each other as may be. Where a node or a helper comes or goes, all others stay in order.
    """
    number = key_of(who)
    places: list[tuple[float, str]] = []
    for node, helpers in nodes.items():
        drawn = key(number, key_of(node)) / 2**64
        mixed = sorted(helpers, key=lambda one: (key(number, key_of(one)), one))
        places += [((place + drawn) / len(mixed), one) for place, one in enumerate(mixed)]
    return [one for _, one in sorted(places)]


def to_connect(order: Iterable[str], many: int, lines: Collection[str], rest: Container[str]) -> list[str]:
    """Whom to connect to, beside those that there are ``lines`` to: the first that do not ``rest``, so that there are
    not more than ``many``."""
    others = (one for one in order if one not in lines and one not in rest)
    return list(islice(others, max(0, many - len(lines))))


def choose(helpers: Sequence[tuple[int, float]]) -> int | None:
    """The helper that an order goes to, by its place; None: all have enough to do.

    ``helpers``: of each, the orders that it has, and the seconds that one takes it.
    """
    free = [place for place, (orders, _) in enumerate(helpers) if orders < _AHEAD]
    if not free:
        return None
    return min(free, key=lambda place: ((helpers[place][0] + 1) * helpers[place][1], helpers[place][0]))
