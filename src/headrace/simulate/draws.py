"""Draws of simulated jobs that go by an order of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.core.forms import Form
from headrace.sampling import Draw, Geometry, epoch_order

Ids = NDArray[np.int64]
_AUGMENTED = int(Form.AUGMENTED)


class Orders:
    """The uniform orders of a job's epochs, which all its ranks go by. Kept while somebody may need them."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._known: dict[int, NDArray[np.uint32]] = {}

    def of(self, epoch: int) -> NDArray[np.uint32]:
        """The order of an epoch. Epochs long past are forgotten: ranks keep step."""
        if epoch not in self._known:
            self._known[epoch] = epoch_order(self._samples, self._seed, epoch).astype(np.uint32)
            for old in [known for known in self._known if known < epoch - 2]:
                del self._known[old]
        return self._known[epoch]


class OwnDraws:
    """The batches of one epoch of a rank in the uniform order."""

    seed = 0

    def __init__(self, orders: Orders, geometry: Geometry, epoch: int) -> None:
        self._orders, self._geometry, self._epoch = orders, geometry, epoch
        self._order: NDArray[np.uint32] | None = None
        self._step = 0

    def draw(self) -> Draw | None:
        """The next batch, or None at the end."""
        if self._order is None:
            self._order = self._orders.of(self._epoch)
        steps = self._geometry.steps(len(self._order))
        if self._step >= steps:
            return None
        start, stop = self._geometry.cut(len(self._order), self._step)
        part = self._geometry.part(self._order[start:stop].astype(np.int64), self._geometry.rank)
        self._step += 1
        return Draw(self._epoch, self._step - 1, np.ascontiguousarray(part), stop, self._step == steps)
