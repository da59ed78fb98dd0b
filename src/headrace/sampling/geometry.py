"""How the samples of an epoch are cut into steps, and each step into ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

AnyInt = TypeVar("AnyInt", bound=np.integer[Any])


@dataclass(frozen=True)
class Geometry:
    """How an epoch's remaining samples are cut: batch size, ranks, and what happens to the rest."""

    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def steps(self, samples: int) -> int:
        """Batches that each rank gets from ``samples`` remaining samples."""
        per_step = self.batch_size * self.world_size
        return samples // per_step if self.drop_last else -(-samples // per_step)

    def cut(self, samples: int, step: int) -> tuple[int, int]:
        """The part of the remaining samples that ``step`` takes, over all ranks.

        All steps are full but the last ones. Were the last step smaller than the number of ranks, the step
        before gives up as many samples as make it reach: every rank then has one in each step. Only where
        that cannot be (batches of one, or fewer samples than ranks) does ``part`` repeat samples.
        """
        per_step = self.batch_size * self.world_size
        steps = self.steps(samples)
        start, stop = step * per_step, min((step + 1) * per_step, samples)
        if not self.drop_last and steps >= 2 and self.batch_size >= 2:
            lack = self.world_size - (samples - (steps - 1) * per_step)
            if lack > 0:
                if step == steps - 2:
                    stop -= lack
                elif step == steps - 1:
                    start -= lack
        return start, stop

    def share(self, order: NDArray[AnyInt], step: int) -> tuple[NDArray[AnyInt], int]:
        """This rank's samples in ``step``, and how many of ``order`` are gone after it over all ranks."""
        start, stop = self.cut(len(order), step)
        return self.part(order[start:stop], self.rank), stop

    def part(self, samples: NDArray[AnyInt], rank: int) -> NDArray[AnyInt]:
        """What ``rank`` gets of a step's samples; fewer than there are ranks are repeated."""
        if len(samples) < self.world_size:
            samples = np.resize(samples, self.world_size)
        return samples[rank :: self.world_size]
