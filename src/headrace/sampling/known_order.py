"""An order that is known for all epochs, and which samples of it some ranks get in which step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.sampling.geometry import Geometry

Uses = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Samples in the order of their use, and the step of each."""


@dataclass(frozen=True)
class KnownOrder:
    """What a rank draws in this epoch and in those to come, as long as nobody tells it to do otherwise."""

    size: int
    geometry: Geometry
    key: Hashable
    """What the order follows from: with an equal one it is the same."""
    order_of: Callable[[int], NDArray[np.integer[Any]]] = field(compare=False, repr=False)
    """The samples of an epoch, for all ranks."""
    position: int = field(default=0, compare=False)
    """Where the present epoch was begun; later ones begin at 0."""
    seed: int | None = None
    """Where the order is that of ``epoch_order``: its seed, by which others can work it out."""
    shuffled: bool = True
    """Whether each epoch has another order."""

    @property
    def steps(self) -> int:
        """Of a whole epoch."""
        return self.geometry.steps(self.size)

    def uses(self, epoch: int, ranks: Sequence[int], position: int = 0) -> Uses:
        """What ``ranks`` get in an epoch from ``position`` on. Its last step has the number that it always has."""
        order = self.order_of(epoch)[position:]
        steps, world_size = self.geometry.steps(len(order)), self.geometry.world_size
        first = max(0, self.steps - steps)
        # All steps are full but the last two, of which the one may give up samples for the other.
        whole = max(0, steps - 2)
        per_step = self.geometry.batch_size * world_size
        mine = np.zeros(world_size, np.bool_)
        mine[list(ranks)] = True
        bulk = order[: whole * per_step]
        if mine.all():
            samples, numbers = bulk, np.repeat(np.arange(whole), per_step)
        else:
            chosen = bulk.reshape(-1, world_size)[:, mine]
            samples = chosen.reshape(-1)
            numbers = np.repeat(np.arange(whole), self.geometry.batch_size * len(ranks))
        parts, whens = [samples], [numbers]
        for step in range(whole, steps):
            start, stop = self.geometry.cut(len(order), step)
            for rank in ranks:
                part = self.geometry.part(order[start:stop], rank)
                parts.append(part)
                whens.append(np.full(len(part), step))
        return (
            np.concatenate(parts).astype(np.int32),
            (first + np.concatenate(whens)).astype(np.int32),
        )
