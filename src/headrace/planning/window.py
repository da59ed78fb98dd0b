"""How an order is fetched: how many reads and orders at once, when a read is tried again, and when it is given up.

Decisions only. Times are passed in, and so is luck: numbers between 0 and 1 that keep many readers from asking at the
same moment.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDEST, UNTOLD = 128, 32
"""Reads at once of a worker, at most, where storage is slow; and while nobody has worked out how many it needs."""
ORDERS = 16
"""Orders that a worker fetches at once, at most. What it has claimed, no other worker can take."""
_BESIDE = 7
"""Orders beside an order that are fetched at the same time, at most, before it is read in more parts."""
_SPARE = 1.5
"""Reads at once for each that would just keep up with preparing."""
_BRIEF = 5e-3
"""Seconds of reading that are not worth a thread's while."""
_STARVED = 0.1
"""Seconds after which those who wait for bytes have another order begun beside the one that does not come."""
_STARVED_BEHIND = 1.0
"""The same where requests wait for their turn: another order would wait as well, unless it needs none."""
_DOUBTS = 3
"""Times that a read is tried again after an error that may be the sample's own."""
_OPEN = 3
"""Attempts at one sample that may hang at the same time."""
_SLACK = 10.0
"""A read that takes so many times as long as others do may hang."""


# -- how many at once ------------------------------------------------------------------------------------------


def width(read: float, prepare: float) -> int:
    """Reads at once that keep up with preparing, given the seconds that each takes for one sample."""
    return max(1, min(WIDEST, math.ceil(_SPARE * read / max(prepare, 1e-6))))


def parts(width: int, backlog: int) -> int:
    """Reads at once of one order, of ``width`` in all, where so many others can be claimed beside it.

    Each read is handed to a thread and back. Where other orders wait it is cheaper to fetch several of them at once,
    each in fewer and longer reads, than one after the other in many short ones.
    """
    return max(1, -(-width // (1 + min(backlog, _BESIDE))))


def reads_itself(read: float, rows: int) -> bool:
    """Whether who claims orders may read so many rows itself, as that is soon done; else it had better be free."""
    return read * rows < _BRIEF


class Claims(NamedTuple):
    """What a worker is busy with, as it could claim another order."""

    orders: int
    """Being fetched, or fetched and not handed on yet."""
    working: int = 0
    """Of these, how many have their thread at work, and do not wait for storage alone."""
    handing: int = 0
    """Of these, how many wait for room among what is to be prepared."""
    reading: int = 0
    """Reads under way, but for those that hang."""
    width: int = 1
    """Reads that are wanted at once."""
    each: int = 1
    """Reads at once that an order is made of."""
    starved: float = 0.0
    """Seconds since the last order was claimed, if somebody waits for bytes meanwhile; else 0."""
    crowded: bool = False
    """Requests to storage wait for their turn."""


def may_claim(now: Claims) -> bool:
    """Whether to claim another order: there is none, or all wait for storage, which could do more at once.

    So where storage is fast there is one order at a time. A read that does not end holds up its own order alone.
    Where several orders are fetched at once, and some of them wait for room, others take their place at storage: or
    it would be idle until these are prepared, and so would be who prepares, until it has given the next ones.
    Where requests of earlier orders wait for their turn, another worker may have its own sooner.
    """
    if now.orders == 0:
        return True
    if now.orders >= ORDERS or (now.handing and now.orders * now.each >= now.width):
        return False
    if now.crowded:
        return now.starved >= _STARVED_BEHIND
    return now.starved >= _STARVED or (now.working <= now.handing and now.reading < now.width)


# -- trying again ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patience:
    """For how long storage is asked again."""

    total: float
    """Seconds after which a sample is given up."""
    first: float = 0.1
    """The first pause, at most."""
    longest: float = 30.0
    paced: float = 1.0
    """The longest where the source itself sees to it that storage is not asked too often."""

    def pause(self, refusals: int, luck: float, retry_after: float = 0.0, *, paced: bool = False) -> float:
        """Seconds until the next attempt: each pause up to twice as long as the one before, and never shorter,
        until they are the longest. ``retry_after``: what storage asked for; not less than that."""
        longest = min(self.longest, self.paced) if paced else self.longest
        most = min(longest, self.first * 2.0 ** min(refusals - 1, 60))
        return max(most * (0.5 + 0.5 * luck), retry_after * (1.0 + 0.1 * luck))

    def hangs(self, usual: float) -> float:
        """Seconds after which a read is taken to hang, and tried beside itself, where others take ``usual``."""
        return self.total / 10 + _SLACK * usual


class Answer(enum.Enum):
    """What is to be done with a row that storage refused."""

    AGAIN = enum.auto()
    BAD = enum.auto()
    """It is the sample that is at fault."""
    GIVE_UP = enum.auto()
    """It was tried for as long as one should."""


class _Row:
    __slots__ = ("begun", "due", "limit", "open", "refusals", "since")

    def __init__(self) -> None:
        self.open = 0
        self.refusals = 0
        self.begun = self.limit = 0.0
        """When the last attempt was begun, and how long it may take."""
        self.due = -math.inf
        """When it is to be tried again, if it is not being tried."""
        self.since = math.inf
        """Since when storage has not given it, although it was asked for it alone, or said no."""


class Attempts:
    """The reads of one order: which have to be begun, and when to look again."""

    def __init__(self, rows: Iterable[int], patience: Patience) -> None:
        self._patience = patience
        self._rows = {row: _Row() for row in rows}

    @property
    def left(self) -> int:
        """Rows without an answer."""
        return len(self._rows)

    def waits_for(self, row: int) -> bool:
        """Whether a row has no answer yet."""
        return row in self._rows

    def begun(self, rows: Sequence[int], now: float, usual: float = 0.0) -> None:
        """Rows are being read, in one go. ``usual``: seconds that one of them takes."""
        for row in rows:
            one = self._rows[row]
            one.open += 1
            one.begun, one.limit = now, self._patience.hangs(usual * len(rows))
            if len(rows) == 1:
                one.since = min(one.since, now)

    def answered(self, row: int) -> None:
        """There are bytes, or an error that is the sample's own."""
        self._rows.pop(row, None)

    def refused(
        self,
        row: int,
        now: float,
        luck: float,
        *,
        retry_after: float = 0.0,
        doubtful: bool = False,
        paced: bool = False,
    ) -> Answer:
        """Storage did not give a row this time. ``doubtful``: that may be the sample's own fault. ``paced``: see
        ``Patience``."""
        one = self._rows[row]
        one.open -= 1
        one.refusals += 1
        one.since = min(one.since, now)
        if doubtful and one.refusals > _DOUBTS:
            del self._rows[row]
            return Answer.BAD
        end = one.since + self._patience.total
        if now >= end and not doubtful:
            return Answer.GIVE_UP
        one.due = now + self._patience.pause(one.refusals, luck, retry_after, paced=paced)
        if not doubtful:
            one.due = min(one.due, end)  # one more time when the time is over
        return Answer.AGAIN

    def _due(self, one: _Row) -> float:
        """When a row is to be tried next."""
        if not one.open:
            return one.due
        return one.begun + one.limit if one.open < _OPEN else math.inf

    def due(self, now: float) -> list[int]:
        """Rows that are to be tried now, each alone: never tried, refused a while ago, or they hang."""
        return [row for row, one in self._rows.items() if self._due(one) <= now]

    def hanging(self, row: int) -> bool:
        """Whether a row that is due has attempts under way: these are not waited for any more."""
        return self._rows[row].open > 0

    def given_up(self, now: float) -> tuple[int, float] | None:
        """A row that hangs although it was tried for as long as one should, and for how long; None: there is none."""
        for row, one in self._rows.items():
            if now >= self._end(one):
                return row, now - one.since
        return None

    def _end(self, one: _Row) -> float:
        """When a row that is being tried is given up."""
        return max(one.since + self._patience.total, one.begun + one.limit) if one.open else math.inf

    def look_at(self) -> float:
        """When something is to be done if nothing is heard before."""
        return min((min(self._due(one), self._end(one)) for one in self._rows.values()), default=math.inf)


# -- what it took ----------------------------------------------------------------------------------------------


class SharedTime:
    """Divides time among the orders that are fetched at once, so that their sum is the time that passed."""

    def __init__(self) -> None:
        self._orders = 0
        self._last = 0.0
        self._each = 0.0

    def _pass(self, now: float) -> None:
        if self._orders:
            self._each += max(0.0, now - self._last) / self._orders
        self._last = now

    def begin(self, now: float) -> float:
        """An order is begun; what it gets has to be given back at its end."""
        self._pass(now)
        self._orders += 1
        return self._each

    def end(self, begun: float, now: float) -> float:
        """An order is fetched; its part of the seconds in which any order was."""
        self._pass(now)
        self._orders -= 1
        return self._each - begun
