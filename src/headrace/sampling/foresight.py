"""Knowing what a job will use: its epochs are followed, and those to come are worked out ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.core.dues import FAR
from headrace.sampling.draw import Draw
from headrace.sampling.known_order import KnownOrder, Uses
from headrace.sampling.next_uses import Ids, NextUses

_AT_ONCE = 2
"""Epochs that are worked out at a time: each takes a sort of all samples."""
_MOST_SPAN = 3.0
"""No more is known ahead than so many times the uses that it takes to come by every sample once, on average."""
_WRONG = 2
"""Orders that turned out to be others than was foreseen, after which nothing is foreseen any more."""
MOST_SAMPLES = 1 << 31
"""Of a dataset: numbers of samples are kept in 32 bits."""


def epochs_worth_knowing(share: float, part: float) -> int:
    """Epochs whose order can tell something about a cache for ``part`` of all samples.

    ``share``: what is used of the samples in an epoch. As each epoch takes others, the time from use to use is spread
    as that of radioactive decay is, and keeping what is needed soonest keeps all that is needed within some time.
    Beyond that time, nothing needs to be known. At least this epoch and the next.
    """
    if share >= 1 or part <= 0:
        return 2
    low, high = 0.0, _MOST_SPAN
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - math.exp(-middle) * (1 + middle) < part else (low, middle)
    return 2 + math.ceil(high / share)


class Foresight:
    """The next uses of a job's samples by some of its ranks."""

    def __init__(self, known: KnownOrder, ranks: Sequence[int]) -> None:
        self.known, self.ranks = known, tuple(ranks)
        self.next_uses = NextUses(known.size)
        self.epochs = 2
        """To be known, with the present one."""
        self.epoch: int | None = None
        """The present one."""
        self._first = self._wrong = 0

    @property
    def grain(self) -> int:
        """Of times: an epoch. Which step of it a sample is needed in makes no difference to how much is read."""
        return max(1, self.known.steps)

    @property
    def blind(self) -> bool:
        """Whether what was foreseen did not come true, so that it is worth nothing."""
        return self._wrong >= _WRONG

    def when(self, epoch: int, step: int = 0) -> int:
        """The time of a step, as ``due`` has it."""
        return (epoch - self._first) * self.known.steps + step

    def uses(self, epoch: int, ranks: Sequence[int], position: int = 0) -> Uses:
        """What some ranks use in an epoch, and when."""
        samples, steps = self.known.uses(epoch, ranks, position)
        return samples, steps + np.int32(self.when(epoch))

    def follow(self, drawn: Draw) -> Ids:
        """A batch is drawn for one of the ranks. Returns the samples of which something else is known now; of the
        batch's own it is in any case."""
        known = drawn.known
        changed = np.zeros(0, np.int64)
        if known is None or self.blind:
            return changed
        if known.key != self.known.key or known.geometry.batch_size != self.known.geometry.batch_size:
            self._wrong += 1
            self.known, self.epoch = known, None
        if drawn.epoch != self.epoch:
            changed = self.begin(drawn.epoch, known.position)
        self.next_uses.use(drawn.epoch, drawn.indices)
        return changed

    def begin(self, epoch: int, position: int = 0) -> Ids:
        """An epoch begins, at a position; returns as ``follow``."""
        uses = self.next_uses
        late = self.epoch is not None and epoch > self.epoch and epoch in uses
        # (Ranks may be in different epochs for a moment; what they draw of the earlier one can be looked up.)
        if self.epoch is not None and epoch == self.epoch - 1:
            return np.zeros(0, np.int64)
        changed = []
        if late:
            changed.append(uses.forget_before(epoch))
        else:
            uses.clear()
            self._first = epoch
            changed.append(np.arange(self.known.size))
        self.epoch = epoch
        horizon = epoch + max(2, min(self.epochs, len(uses) + _AT_ONCE))
        for number in [one for one in range(epoch, horizon) if one not in uses]:
            if self.when(number + 1) < FAR:
                samples, whens = self.uses(number, self.ranks, position if number == epoch else 0)
                changed.append(uses.add(number, samples, whens))
        return np.concatenate(changed)
