"""Copying ahead of need, as far as there is time: which samples of the batches to come are copied next. Pure.

Batches are committed some time before they are asked for. Those who prepare begin at the front, so copying begins at
the back: with the newest batch, then the one before, and so on, and a newer one interrupts. The nearest batches are
left to those who prepare. What was copied for a batch is released once that batch was read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

HORIZON = 32
"""Batches between one that is ordered and the one that is committed with it."""
_NEAR = 4
"""Batches after the one that is being read that are left to those who prepare."""
_OVER = 4
"""Batches after which one was read by all, whoever read it."""
_MOST = 4 * HORIZON
"""Batches that are remembered."""


class BestEffort:
    """What one worker knows of the batches to come. Batches go by their numbers."""

    def __init__(self) -> None:
        self._left: dict[int, Ids] = {}
        """Of batches that are committed and not copied in full: samples to be copied."""
        self._epoch = 0
        """To which these belong."""
        self._copied: set[int] = set()
        """Batches of which something was copied that has to be released."""
        self._now = -1

    def commit(self, batch: int, samples: Ids) -> None:
        """A batch to come is known."""
        if batch > self._now + _NEAR:
            self._left[batch] = samples
            if len(self._left) > _MOST:
                del self._left[min(self._left)]

    def reached(self, batch: int, epoch: int = 0) -> list[int]:
        """Batches up to this one are being read; returns those whose copies are not needed any more. ``epoch``: that
        of the batch. What was known of another is over: it has ended, or was left before its end."""
        self._now = max(self._now, batch)
        if epoch != self._epoch:
            self._left.clear()
            self._epoch = epoch
        for gone in [one for one in self._left if one <= self._now + _NEAR]:
            del self._left[gone]
        over = sorted(one for one in self._copied if one + _OVER < self._now)
        self._copied.difference_update(over)
        return over

    def next(self, most: int) -> tuple[int, Ids] | None:
        """Up to so many samples to be copied now, and their batch; None: there are none."""
        if not self._left:
            return None
        batch = max(self._left)
        samples = self._left[batch]
        rest = samples[most:]
        if len(rest):
            self._left[batch] = rest
        else:
            del self._left[batch]
        return batch, samples[:most]

    def copied(self, batch: int) -> None:
        """Something was copied for a batch that is to be released after it."""
        self._copied.add(batch)

    @property
    def waiting(self) -> Sequence[int]:
        """Batches of which something is left to copy."""
        return sorted(self._left)
