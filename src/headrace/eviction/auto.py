"""Evict what saves least per byte, over this epoch and the ones to come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Jobs

LATER = 0.5
"""What a use in a later epoch counts beside one in this epoch: it may never come, as the job may end before."""


@dataclass(frozen=True)
class Auto:
    """Worth is what the uses ahead save for each byte that is held until then.

    Every job that still needs the sample in its epoch is one use. A lasting form will be of use to every job of
    its shelf again in the next epoch; an augmented one was of use to each job once, and is then worth nothing.

    Alone, a job has used what it brings, so all lasting samples of one size and kind are worth the same when they
    come in, and none displaces another: exactly what is best where each is needed once an epoch.
    """

    name: str = "auto"
    strict: bool = True

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """Savings per byte."""
        uses = entries.needs + np.where(entries.lasting, LATER * np.asarray(jobs), 0.0)
        worth: NDArray[np.float64] = entries.saves * uses / np.maximum(entries.nbytes, 1)
        return worth
