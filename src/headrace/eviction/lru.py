"""Evict what was served least recently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Jobs


@dataclass(frozen=True)
class LeastRecentlyUsed:
    """Worth is the time of the last use. Here for comparison: one random pass an epoch defeats it."""

    name: str = "lru"
    strict: bool = False

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """When each was used."""
        return entries.used.astype(np.float64)
