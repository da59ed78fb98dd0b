"""The orders of simulated jobs that draw for themselves: the product's, kept once for all ranks of a job."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.sampling import Geometry, OrderedEpoch, UniformDraws, epoch_order


class EpochOrders:
    """The uniform orders of a job's epochs, which all its ranks go by. Kept while somebody may need them."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._known: dict[int, NDArray[np.uint32]] = {}

    def draws(self, geometry: Geometry, epoch: int) -> UniformDraws:
        """The batches of one epoch of a rank."""
        return UniformDraws(lambda: OrderedEpoch(self._of(epoch), geometry, epoch=epoch), seed=0)

    def _of(self, epoch: int) -> NDArray[np.uint32]:
        """The order of an epoch. Epochs long past are forgotten: ranks keep step."""
        if epoch not in self._known:
            self._known[epoch] = epoch_order(self._samples, self._seed, epoch).astype(np.uint32)
            for old in [known for known in self._known if known < epoch - 2]:
                del self._known[old]
        return self._known[epoch]
