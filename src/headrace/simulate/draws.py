"""The orders of simulated jobs that draw for themselves: the product's, kept once for all ranks of a job."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.sampling import Geometry, KnownOrder, OrderedEpoch, UniformDraws, epoch_order

_TOLD = 1 << 20
"""Samples of the largest dataset whose order simulated hosts work out: all of them do it in one process."""


class EpochOrders:
    """The uniform orders of a job's epochs, which all its ranks go by. Kept while somebody may need them."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._orders: dict[int, NDArray[np.uint32]] = {}

    def draws(self, geometry: Geometry, epoch: int) -> UniformDraws:
        """The batches of one epoch of a rank. Epochs long past are forgotten: ranks keep step."""
        for old in [one for one in self._orders if one < epoch - 2]:
            del self._orders[old]
        known = self.known(geometry)
        return UniformDraws(lambda: OrderedEpoch(self._of(epoch), geometry, epoch=epoch, known=known), seed=0)

    def known(self, geometry: Geometry) -> KnownOrder:
        """All epochs of a rank."""
        told = self._seed if self._samples <= _TOLD else None
        return KnownOrder(self._samples, geometry, self._seed, self._of, seed=told)

    def _of(self, epoch: int) -> NDArray[np.uint32]:
        if epoch not in self._orders:
            self._orders[epoch] = epoch_order(self._samples, self._seed, epoch).astype(np.uint32)
        return self._orders[epoch]
