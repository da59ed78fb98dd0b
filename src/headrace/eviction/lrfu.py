"""DLCache's cost-aware LRFU: what was used least lately and least often goes, and of what is alike the cheapest.

It is for what is fetched as a whole and costs minutes: the contents of datasets, not samples.

Each use counts F(x) = (1/p)^(step x), x being the time since; the sum is the CRF, combined recency and frequency. At
step 0 that is LFU, at step 1 LRU. All CRFs shrink at the same rate, so their order changes with uses alone. What is
kept is therefore the logarithm of the CRF as of time 0: one number, which neither overflows nor vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.errors import OptionError


@dataclass(frozen=True, slots=True)
class History:
    """All that is kept of the uses of something, however many there were."""

    earlier: float = -math.inf
    """Logarithm, to the base p, of what all uses but those of the last spell count at time 0."""
    last: float = -math.inf
    """When it was used last; ``-inf``: never."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may have to go."""

    key: str
    size: int
    cost: float
    """Seconds that it took to fetch and unpack it, as measured."""
    history: History
    active: bool = False
    """A job uses it."""
    pinned: bool = False
    """Its user said that it stays."""


@dataclass(frozen=True)
class CostAwareLRFU:
    """The policy, with its parameters. ``grain=0, together=0`` is the paper's to the letter.

    Two things are added to it. Uses that follow each other within ``together`` are one spell, and count as one use
    at its end: that eight ranks or forty trials begin at once does not make their data eight or forty times as likely
    to be used again. And CRFs are told apart by factors of ``p ** grain``: exact ones are equal within a dataset at
    most, so cost would never have a say between datasets.
    """

    p: float = 2.0
    step: float = 0.25
    grain: float = 1.0
    together: float = 0.0
    cooldown: float = 0.0
    """For so long after its last use nothing goes."""

    def __post_init__(self) -> None:
        if not (self.p >= 2 and 0 <= self.step <= 1 and min(self.grain, self.together, self.cooldown) >= 0):
            raise OptionError(
                f"{self}: p must be at least 2, step from 0 to 1, grain, together and cooldown not negative"
            )

    def use(self, history: History, now: float) -> History:
        """What is kept after one more use."""
        if now <= history.last + self.together:  # (clocks of several processes: never backwards)
            return History(history.earlier, max(now, history.last))
        return History(self.score(history), now)

    def score(self, history: History) -> float:
        """Logarithm of the CRF as of time 0. Whatever the time is, of two the one with the larger CRF has the
        larger score."""
        if history.last == -math.inf:
            return history.earlier
        last = self.step * history.last
        more, less = max(history.earlier, last), min(history.earlier, last)
        if less == -math.inf:
            return more
        return more + math.log1p(math.exp((less - more) * math.log(self.p))) / math.log(self.p)

    def crf(self, history: History, now: float) -> float:
        """What the uses count now."""
        score = self.score(history)
        return 0.0 if score == -math.inf else float(self.p ** (score - self.step * now))

    def rank(self, one: Candidate) -> tuple[float, float, str]:
        """Who goes first has the smallest rank: by CRF, then by cost."""
        score = self.score(one.history)
        if self.grain and score != -math.inf:
            score = math.floor(score / self.grain)
        return score, one.cost, one.key

    def may_go(self, one: Candidate, now: float) -> bool:
        """Whether it is looked at at all: nobody uses it, it is not pinned, its cool-down is over."""
        return not one.active and not one.pinned and now >= one.history.last + self.cooldown

    def choose(self, candidates: Iterable[Candidate], need: int, now: float) -> list[Candidate] | None:
        """Who goes so that ``need`` bytes become free, the first first. None if they do not: then nobody has to go.

        Whoever was chosen before it turned out that others free enough by themselves is spared, the most valued
        first.
        """
        chosen: list[Candidate] = []
        free = 0
        for one in sorted((one for one in candidates if self.may_go(one, now)), key=self.rank):
            if free >= need:
                break
            chosen.append(one)
            free += one.size
        if free < need:
            return None
        for one in reversed(chosen[:]):
            if free - one.size >= need:
                chosen.remove(one)
                free -= one.size
        return chosen
