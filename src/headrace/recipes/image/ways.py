"""Rows that are resampled in different ways: each way is a pass of its own over the rows that have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image.geometry import Geometry, RandomResizedCrop
from headrace.recipes.image.resample import Finish, Resample
from headrace.recipes.op import Size
from headrace.recipes.order import Batch, Order


class AnyWay(Resample):
    """A pass whose ``random_resized_crop`` has several interpolations, one at random for each row."""

    def __init__(self, steps: list[tuple[int, Geometry]], size: Size, finish: Finish, **options: Any) -> None:
        at, step = next((at, s) for at, (_, s) in enumerate(steps) if isinstance(s, RandomResizedCrop))
        self._position = steps[at][0]
        self._ways = [
            Resample(
                [*steps[:at], (self._position, replace(step, interpolation=way)), *steps[at + 1 :]],
                size,
                finish,
                **options,
            )
            for way in step.interpolation
        ]
        super().__init__(self._ways[0].steps, size, finish, **options)

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Batch:
        """The rows, in ``into`` if given."""
        which = np.floor(order.draw(self._position)[:, -1] * len(self._ways))
        out: list[Any] = [None] * order.size
        for at, way in enumerate(self._ways):
            rows = np.flatnonzero(which == at).tolist()
            if not rows:
                continue
            memory = None if into is None else np.empty((len(rows), *into.shape[1:]), into.dtype)
            found = way.run(batch.part(rows), order.part(rows), memory)
            if into is not None:
                into[rows] = memory
                continue
            for row, value in zip(rows, found.values, strict=True):
                out[row] = value
        return Batch(out) if into is None else Batch(None, block=into)


def resampler(steps: list[tuple[int, Geometry]], size: Size, finish: Finish, **options: Any) -> Resample:
    """The pass of these steps."""
    several = any(isinstance(s, RandomResizedCrop) and not isinstance(s.interpolation, str) for _, s in steps)
    return (AnyWay if several else Resample)(steps, size, finish, **options)
