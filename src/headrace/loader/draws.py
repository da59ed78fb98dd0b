"""Where a loader's batches come from: our own uniform order, or the user's sampler."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.sampling import Draw, UniformEpoch


class UniformDraws:
    """The batches of one epoch in the uniform order. The order is worked out when the first is drawn."""

    def __init__(self, make: Callable[[], UniformEpoch], seed: int) -> None:
        self._make = make
        self._epoch: UniformEpoch | None = None
        self.seed = seed

    def draw(self) -> Draw | None:
        """The next batch, or None at the end."""
        if self._epoch is None:
            self._epoch = self._make()
        return self._epoch.draw()


@dataclass(frozen=True)
class KeyDraw:
    """A batch as a user's sampler named it."""

    epoch: int
    step: int
    indices: NDArray[np.int64]
    keys: bytes = b""
    last: bool = False

    @property
    def position(self) -> int:
        """Batches gone after this one: all that is known of a foreign sampler's progress."""
        return self.step + 1


class SamplerDraws:
    """Batches of keys from a user's sampler or batch sampler, read as they are needed."""

    def __init__(
        self, sampler: Any, *, batched: bool, seed: int, epoch: int, size: int | None = None, skip: int = 0
    ) -> None:
        """``batched``: the sampler yields lists of keys; otherwise each key is a batch of its own.

        ``size``: keys must be indices below it; None: they can be anything that the dataset understands.

        ``skip``: batches that were delivered before; their keys are passed over, their samples never touched.
        """
        self._batches: Iterator[Any] = iter(sampler)
        self._batched = batched
        self.seed = seed
        self._epoch = epoch
        self._size = size
        self._step = 0
        for _ in range(skip):
            if next(self._batches, self) is self:
                break
            self._step += 1

    def draw(self) -> KeyDraw | None:
        """The next batch, or None at the end."""
        try:
            keys = next(self._batches)
        except StopIteration:
            return None
        step, self._step = self._step, self._step + 1
        listed = keys if self._batched else [keys]
        if self._size is not None:
            return KeyDraw(self._epoch, step, _indices(listed, self._size))
        if type(listed) is list and all(type(key) is int for key in listed):
            return KeyDraw(self._epoch, step, np.array(listed, np.int64))
        return KeyDraw(self._epoch, step, np.full(_count(listed), -1, np.int64), pickle.dumps(keys))


def _indices(keys: Any, size: int) -> NDArray[np.int64]:
    """Keys that must be sample indices: integers of any kind, in range."""
    try:
        indices = np.array([operator.index(key) for key in keys], np.int64)
    except TypeError:
        raise TypeError(f"the sampler gave {keys!r}, and the samples of a recipe go by their index") from None
    if len(indices) and not 0 <= indices.min() <= indices.max() < size:
        raise IndexError(f"the sampler gave {indices.tolist()}, and there are samples 0 to {size - 1}")
    return indices


def _count(keys: Any) -> int:
    try:
        return len(keys)
    except TypeError:
        return 1


class EndlessDraws:
    """Batches of an iterable dataset: nothing to choose, until its workers have no more."""

    def __init__(self, *, seed: int, epoch: int) -> None:
        self.seed = seed
        self._epoch = epoch
        self._step = 0
        self.over = False

    def draw(self) -> KeyDraw | None:
        """The next batch, or None once ``over``."""
        if self.over:
            return None
        self._step += 1
        return KeyDraw(self._epoch, self._step - 1, np.zeros(0, np.int64))
