"""No eviction, as in MinIO: what is cached stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.eviction.policy import Entries, Jobs


@dataclass(frozen=True)
class NoEviction:
    """Everything is worth keeping for ever."""

    name: str = "none"
    strict: bool = True

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """``inf`` for all."""
        return np.full(len(entries), np.inf)
