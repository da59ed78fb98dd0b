"""What an eviction policy is, and what it is told about cached samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Jobs = NDArray[np.int64] | int
"""How many jobs use the shelf of each entry, or of all of them."""


@dataclass
class Entries:
    """Cached samples, as parallel arrays."""

    needs: NDArray[np.int64]
    """Jobs that still need it in their present epoch and could take it from here. Where the order of samples is
    known, how soon it is needed: a number that is larger the sooner that is (``Reuse``)."""
    uses: NDArray[np.int64]
    """Times it was served since it was admitted."""
    admitted: NDArray[np.int64]
    """When it came in, on a counter that only grows."""
    used: NDArray[np.int64]
    """When it was served last, on the same counter; ``admitted`` if never."""
    nbytes: NDArray[np.int64]
    saves: NDArray[np.float64]
    """What one use saves, in any unit that is the same for all."""
    lasting: NDArray[np.bool_]
    """Whether it can be of use in later epochs (encoded, decoded) or not (augmented)."""

    def __len__(self) -> int:
        return len(self.nbytes)


class Eviction(Protocol):
    """Says what each cached sample is worth. Keeps no state: all it goes by is in the entries."""

    @property
    def name(self) -> str:
        """What ``EVICTIONS`` calls it."""
        ...

    @property
    def strict(self) -> bool:
        """Whether a newcomer must be worth more than each one that has to go for it; else it always comes in."""
        ...

    def worth(self, entries: Entries, jobs: Jobs) -> NDArray[np.float64]:
        """The worth of each entry: the lowest goes first, and ``inf`` never goes.

        A newcomer's worth is taken by the same function. It must not be NaN.
        """
        ...
