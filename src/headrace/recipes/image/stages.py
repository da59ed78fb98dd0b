"""Image steps at work one image at a time: those that change pixel values, and those on written rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.resample import Finish
from headrace.recipes.image.rows import RandomErasing
from headrace.recipes.row_groups import RowGroup, RowValues, misfit


class Paint:
    """Steps on single uint8 images, row by row."""

    def __init__(self, steps: list[tuple[int, Pixels]]) -> None:
        self.steps = steps

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """New images; ``into`` is left to the stage that writes rows."""
        values = list(held.values)
        for position, step in self.steps:
            for row, parameters in enumerate(step.parameters(group.draw(position))):
                if parameters is None or group.failed(row):
                    continue
                try:
                    values[row] = step.apply(values[row], parameters)
                except Exception as error:
                    group.fault(row, error)
        return RowValues(values)


class Erase:
    """``random_erasing``: in place on rows that this order has written, else on copies."""

    def __init__(self, position: int, step: RandomErasing, finish: Finish, *, owned: bool) -> None:
        self._position, self._step, self._finish, self._owned = position, step, finish, owned

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """The rows with their boxes erased."""
        values = list(held.values)
        live = [row for row in range(group.size) if not group.failed(row)]
        sizes = np.ones((group.size, 2))
        for row in live:
            sizes[row] = self._finish.size(values[row].shape)[:2]
        boxes = self._step.boxes(sizes[:, 0], sizes[:, 1], group.draw(self._position))
        for row in live:
            if not boxes[row]:
                continue
            if not self._owned:
                values[row] = values[row].copy()
            used = 0

            def noise(count: int, row: int = row) -> NDArray[np.float64]:
                nonlocal used
                used += count
                return group.noise(self._position, row, used)[-count:]

            try:
                for box in boxes[row]:
                    self._step.erase(values[row], box, self._finish.planar, self._finish.dtype, noise)
            except ValueError as error:
                group.fault(row, error)
        return RowValues(values, block=held.block if self._owned else None)


class Transpose:
    """``layout`` on rows that are already written: by pixel to planar or back."""

    def __init__(self, planar: bool) -> None:
        self._axes = (2, 0, 1) if planar else (1, 2, 0)

    def run(self, held: RowValues, group: RowGroup, into: NDArray[Any] | None) -> RowValues:
        """The rows in their new order."""
        values = list(held.values)
        for row in range(group.size):
            if group.failed(row):
                continue
            value = values[row].transpose(self._axes)
            if into is None:
                values[row] = np.ascontiguousarray(value)
            elif into.shape[1:] == value.shape:
                into[row] = value
            else:
                group.fault(row, misfit(value.shape, into.shape[1:]))
        return RowValues(values) if into is None else RowValues(None, block=into)
