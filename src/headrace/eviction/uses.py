"""Seneca's threshold: a sample goes once it was served as many times as there are jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Jobs


@dataclass(frozen=True)
class Uses:
    """Nothing is worth keeping that was served to as many jobs as use its shelf, and all else must stay.

    The threshold is the number of jobs now: when one leaves, what the others have had may go at once, and what
    nobody uses any more may go too. A newcomer comes in as soon as enough of such samples can go for it.
    """

    name: str = "uses"
    strict: bool = False

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """0 for those that may go, ``inf`` for the others."""
        return np.where(entries.uses >= jobs, 0.0, np.inf)
