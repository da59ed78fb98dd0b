"""Uniform sampling: one global order per (seed, epoch), cut into steps, each step cut into ranks.

The order is a pure function of (seed, epoch). The state of an epoch is one number, the position in that order
up to which samples were delivered, so resuming is instant and may happen onto another number of ranks or
another batch size. Every rank gets the same number of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import random as rnd
from headrace.sampling.draw import Draw
from headrace.sampling.geometry import Geometry
from headrace.sampling.known_order import KnownOrder

_ORDER = 0x6F72646572  # "order": keeps the shuffle's randomness apart from the augmentations'


def epoch_order(size: int, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """All sample indices in the global order of an epoch.

    Each index gets a random key of 64 bits whose low bits are replaced by the index itself; sorting the keys
    shuffles the indices. Integer arithmetic and a sort of distinct keys give the same order on every machine.
    """
    order = np.arange(size, dtype=np.uint64)
    if not shuffle or size < 2:
        return order.astype(np.int64)
    low = np.uint64((1 << (size - 1).bit_length()) - 1)
    keys = rnd.mix_many(order ^ np.uint64(rnd.key(_ORDER, seed, epoch)))
    keys &= ~low
    keys |= order
    keys.sort()
    keys &= low
    return keys.astype(np.int64)


class OrderedEpoch:
    """Draws the batches of one epoch for one rank, from a global order that is given."""

    def __init__(
        self,
        order: NDArray[np.integer[Any]],
        geometry: Geometry,
        *,
        epoch: int,
        position: int = 0,
        first: int = 0,
        known: KnownOrder | None = None,
    ) -> None:
        """``order``: what is left of it from ``position`` on. ``first``: the number of the first step. ``known``:
        what follows in later epochs, if that is known."""
        self.epoch = epoch
        self._first = first
        self._base = position
        self._order = order
        self._geometry = geometry
        self._known = known
        self._step = 0
        self.steps = geometry.steps(len(order))

    def draw(self) -> Draw | None:
        """The next batch, or None when the epoch is over."""
        if self._step >= self.steps:
            return None
        mine, gone = self._geometry.share(self._order, self._step)
        self._step += 1
        step = self._first + self._step - 1
        indices = mine.astype(np.int64, copy=False)
        last = self._step == self.steps
        return Draw(self.epoch, step, indices, self._base + gone, last, known=self._known)

    def upcoming(self, steps: int) -> NDArray[np.int64] | None:
        """The samples of the batch that comes so many after the last one drawn, if there is one."""
        step = self._step - 1 + steps
        if step >= self.steps:
            return None
        return self._geometry.share(self._order, step)[0].astype(np.int64)


class UniformEpoch(OrderedEpoch):
    """Draws the batches of one epoch for one rank in the uniform order, from ``position`` on."""

    def __init__(
        self,
        size: int,
        geometry: Geometry,
        *,
        seed: int,
        epoch: int,
        shuffle: bool,
        position: int = 0,
        first: int = 0,
    ) -> None:
        """``first``: the number of the first step."""
        order = epoch_order(size, seed, epoch, shuffle)[position:]
        order_of = partial(epoch_order, size, seed, shuffle=shuffle)
        known = KnownOrder(size, geometry, (seed, shuffle), order_of, position, seed, shuffle)
        super().__init__(order, geometry, epoch=epoch, position=position, first=first, known=known)


class UniformDraws:
    """The batches of one epoch in a global order, which is worked out when the first is drawn."""

    def __init__(self, make: Callable[[], OrderedEpoch], seed: int) -> None:
        self._make = make
        self._epoch: OrderedEpoch | None = None
        self.seed = seed

    def draw(self) -> Draw | None:
        """The next batch, or None at the end."""
        if self._epoch is None:
            self._epoch = self._make()
        return self._epoch.draw()

    def upcoming(self, steps: int) -> NDArray[np.int64] | None:
        """See ``OrderedEpoch``."""
        return None if self._epoch is None else self._epoch.upcoming(steps)
