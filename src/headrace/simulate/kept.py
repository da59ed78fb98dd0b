"""What machines keep of a dataset where the order is known: who keeps which sample, and what goes for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.eviction import FarthestFirst

Ids = NDArray[np.int64]
NOBODY = -1


class Kept:
    """Samples in the memories of machines, each in one of them at most. What is needed last goes first."""

    def __init__(self, due: NDArray[np.int32], machines: int, room: int, grain: int = 1) -> None:
        """``due``: when each sample is needed next, by any of the machines. ``room``: samples of each memory.
        ``grain``: see ``FarthestFirst``."""
        self.home = np.full(len(due), NOBODY, np.int16)
        """The machine that has each sample, or is about to."""
        self.count = [0] * machines
        self.evictions = [0] * machines
        self._due, self._room, self._grain = due, room, grain
        self._coming: set[int] = set()
        self._victims = [FarthestFirst(due, self._may_go(machine), grain) for machine in range(machines)]

    def _may_go(self, machine: int) -> Callable[[int], bool]:
        return lambda sample: bool(self.home[sample] == machine) and sample not in self._coming

    def keep(self, machine: int, sample: int, *, coming: bool = False) -> bool:
        """Take a sample into a machine's memory, if it is needed sooner than what has to go for it.

        It leaves the memory where it was. ``coming``: it is not there yet, so it cannot go either (``came``).
        """
        if self.count[machine] >= self._room:
            found = self._victims[machine].farthest()
            # What is fetched ahead is needed in a moment, and just that counts.
            grain = 1 if coming else self._grain
            if found is None or found[1] // grain <= self._due[sample] // grain:
                return False
            self._victims[machine].drop()
            self.home[found[0]] = NOBODY
            self.count[machine] -= 1
            self.evictions[machine] += 1
        before = self.home[sample]
        if before != NOBODY:
            self.count[before] -= 1
        self.home[sample] = machine
        self.count[machine] += 1
        if coming:
            self._coming.add(sample)
        else:
            self._victims[machine].put([sample])
        return True

    def is_coming(self, sample: int) -> bool:
        """Whether a sample is on its way."""
        return sample in self._coming

    def came(self, samples: Ids) -> None:
        """Samples that were on their way are there."""
        self._coming.difference_update(samples.tolist())
        self.needed_otherwise(samples)

    def needed_otherwise(self, samples: Ids) -> None:
        """Samples are needed at another time than was known."""
        homes = self.home[samples]
        for machine in np.unique(homes[homes != NOBODY]).tolist():
            self._victims[machine].put(samples[homes == machine].tolist())
