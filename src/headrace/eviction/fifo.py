"""Evict what was admitted first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Jobs


@dataclass(frozen=True)
class FirstInFirstOut:
    """Worth is the time of admission. Here for comparison."""

    name: str = "fifo"
    strict: bool = False

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """When each came in."""
        return entries.admitted.astype(np.float64)
