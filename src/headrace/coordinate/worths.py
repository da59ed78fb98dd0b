"""What samples are worth, cached or about to be: an eviction policy, told what a pool knows of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.foreseen import Foreseen
from headrace.coordinate.savings import Savings
from headrace.coordinate.shelf import Shelf
from headrace.core.addresses import Tier
from headrace.core.forms import Form
from headrace.eviction import EVICTIONS, Entries, Eviction, Reuse

Ids = NDArray[np.int64]
Needs = Callable[[Shelf, Ids], NDArray[np.int64]]
"""How many jobs still need each sample in their present epochs and could take it from that shelf."""


class Worths:
    """Asks the policy. It has the pool's own time, too: a count of what happens to samples."""

    def __init__(self, needs: Needs, eviction: str, savings: Savings) -> None:
        self.eviction: Eviction = EVICTIONS[eviction]
        self.now = 0
        self._needs, self._savings = needs, savings
        self._usual: tuple[Eviction, Needs] | None = None
        """The policy that something foreseen has taken the place of, and what it goes by."""
        self._newcomers: dict[tuple[Form, float, int, int, int], float] = {}

    @property
    def usual(self) -> Eviction:
        """The policy where nothing is foreseen."""
        return self.eviction if self._usual is None else self._usual[0]

    def foresee(self, foreseen: Foreseen | None) -> None:
        """From now on what counts is when a sample is needed next; with None, it is the usual policy again."""
        if foreseen is not None:
            self._usual = self._usual or (self.eviction, self._needs)
            self.eviction, self._needs = Reuse(), foreseen.nearness
        elif self._usual is not None:
            (self.eviction, self._needs), self._usual = self._usual, None
        self._newcomers.clear()

    def newcomer(self, shelf: Shelf, tier: Tier, nbytes: int, needs: int, jobs: int) -> float:
        """What a newcomer to a tier is worth. Asked for all that is prepared, and mostly with the same answer."""
        saves = self._savings.saves(shelf, tier)
        key = (shelf.form, saves, nbytes, needs, jobs)
        worth = self._newcomers.get(key)
        if worth is None:
            entry = Entries(
                needs=np.array([needs]),
                uses=np.array([0]),
                admitted=np.array([self.now + 1]),
                used=np.array([self.now + 1]),
                nbytes=np.array([nbytes]),
                saves=np.array([saves]),
                lasting=np.array([shelf.form != Form.AUGMENTED]),
            )
            worth = float(self.eviction.worth(entry, np.array([max(jobs, 1)]))[0])
            if self.eviction.strict:  # else it depends on the time
                if len(self._newcomers) > 4096:
                    self._newcomers.clear()
                self._newcomers[key] = worth
        return worth

    def cached(self, shelf: Shelf, tier: Tier, table: NDArray[np.int64]) -> NDArray[np.float64]:
        """What samples that are cached in a tier are worth, by their rows."""
        entries = Entries(
            needs=self._needs(shelf, table[:, 0]),
            uses=table[:, 3],
            admitted=table[:, 4],
            used=table[:, 5],
            nbytes=np.maximum(table[:, 2], 1),
            saves=np.full(len(table), self._savings.saves(shelf, tier)),
            lasting=np.full(len(table), shelf.form != Form.AUGMENTED),
        )
        return self.eviction.worth(entries, np.full(len(table), len(shelf.jobs)))
