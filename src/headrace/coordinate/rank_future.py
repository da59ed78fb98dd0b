"""What one rank that draws for itself will use, as its order says, and what of it to fetch ahead of need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.protocol import Known
from headrace.coordinate.universe import Dataset
from headrace.planning import Ahead
from headrace.sampling import Foresight, Geometry, KnownOrder

Ids = NDArray[np.int64]
Dues = NDArray[np.int32]
OrderOf = Callable[[int], NDArray[np.integer[Any]]]


class RankFuture:
    """Follows a rank through its order. Each batch is compared with what was foreseen."""

    def __init__(self, told: Known, dataset: Dataset, epoch: int, epochs: int, order_of: OrderOf) -> None:
        """``epochs``: that are worth knowing, with the present one."""
        self.told, self.dataset = told, dataset
        geometry = Geometry(told.batch_size, told.rank, told.world_size, told.drop_last)
        self.known = KnownOrder(dataset.size, geometry, (told.seed, told.shuffle), order_of, told.position)
        self._foresight = Foresight(self.known, [told.rank])
        self._foresight.epochs = epochs
        self._foresight.begin(epoch, told.position)
        self._epoch = epoch
        left = geometry.steps(dataset.size - told.position)
        self._next = self._foresight.when(epoch, self.known.steps - left)
        self.ahead = Ahead(0)
        self._first, self._extended = epoch, epoch - 1
        """The epoch that began at a position, and the last one that is known to ``ahead``."""

    @property
    def at(self) -> int:
        """Its next step, counted from epoch 0 on."""
        return self._next + self.origin

    @property
    def origin(self) -> int:
        """The step, counted as ``at`` is, from which ``due`` counts."""
        return -self._foresight.when(0)

    def goes_on(self, told: Known, epoch: int) -> bool:
        """Whether an epoch is the next one in the same order."""
        before = self.told
        return (
            epoch == self._epoch + 1
            and told.position == 0
            and (told.seed, told.shuffle, told.batch_size) == (before.seed, before.shuffle, before.batch_size)
            and (told.rank, told.world_size) == (before.rank, before.world_size)
            and told.drop_last == before.drop_last
        )

    def begin(self, epochs: int) -> Ids:
        """The next epoch begins. Returns the samples that are needed at another time than was known."""
        self._epoch += 1
        self._foresight.epochs = epochs
        origin = self.origin
        changed = self._foresight.begin(self._epoch)
        if self.origin != origin:  # numbers have an end, and it counts anew
            self.ahead.restart()
            self._extended = self._epoch - 1
        self._next = self._foresight.when(self._epoch)
        return changed

    def use(self, samples: Ids) -> Ids | None:
        """A batch is drawn. Returns the samples that are needed at another time now; None: it is not the batch that
        was foreseen."""
        uses = self._foresight.next_uses
        whens = uses.due[samples]
        when = int(whens[0])
        if not self._next <= when < self._foresight.when(self._epoch + 1) or (whens != when).any():
            return None
        if when > self._next:  # what lies between was delivered before, or taken at another host
            passed = np.flatnonzero(uses.due < when)
            uses.use(self._epoch, passed)
            samples = np.concatenate([samples, passed])
        uses.use(self._epoch, samples)
        self._next = when + 1
        self.ahead.used(samples.tolist())
        return samples

    @property
    def due(self) -> Dues:
        """By sample of its dataset: when it is used next. (These times are steps since ``origin``.)"""
        return self._foresight.next_uses.due

    def choose(self, wanted: int, most: int, there: Callable[[Ids], NDArray[np.bool_]]) -> Ids:
        """Samples to fetch ahead, those that are needed soonest first. ``most``: that may be there because they were
        fetched ahead. ``there``: which samples are cached or on their way."""
        while self._extended <= self._epoch:
            self._extended = max(self._extended + 1, self._epoch)
            position = self.told.position if self._extended == self._first else 0
            self.ahead.extend(self._foresight.uses(self._extended, self._foresight.ranks, position))
        self.ahead.most = most
        return self.ahead.choose(wanted, self._next - 1, there)
