"""Joader's reference count: evict what the fewest jobs still need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Jobs


@dataclass(frozen=True)
class RefCount:
    """Worth is the number of jobs that still need the sample in their present epoch."""

    name: str = "refcount"
    strict: bool = True

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """The jobs that need each."""
        return entries.needs.astype(np.float64)
