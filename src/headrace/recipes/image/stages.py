"""Image steps at work one image at a time: those that change pixel values, and those on written rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.resample import Finish
from headrace.recipes.image.rows import RandomErasing
from headrace.recipes.order import Batch, Order, misfit


class Paint:
    """Steps on single uint8 images, row by row."""

    def __init__(self, steps: list[tuple[int, Pixels]]) -> None:
        self.steps = steps

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Batch:
        """New images; ``into`` is left to the stage that writes rows."""
        values = list(batch.values)
        for position, step in self.steps:
            for row, parameters in enumerate(step.parameters(order.draw(position))):
                if parameters is None or order.failed(row):
                    continue
                try:
                    values[row] = step.apply(values[row], parameters)
                except Exception as error:
                    order.fault(row, error)
        return Batch(values)


class Erase:
    """``random_erasing``: in place on rows that this order has written, else on copies."""

    def __init__(self, position: int, step: RandomErasing, finish: Finish, *, owned: bool) -> None:
        self._position, self._step, self._finish, self._owned = position, step, finish, owned

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Batch:
        """The rows with their boxes erased."""
        values = list(batch.values)
        live = [row for row in range(order.size) if not order.failed(row)]
        sizes = np.ones((order.size, 2))
        for row in live:
            sizes[row] = self._finish.size(values[row].shape)[:2]
        boxes = self._step.boxes(sizes[:, 0], sizes[:, 1], order.draw(self._position))
        for row in live:
            if not boxes[row]:
                continue
            if not self._owned:
                values[row] = values[row].copy()
            used = 0

            def noise(count: int, row: int = row) -> NDArray[np.float64]:
                nonlocal used
                used += count
                return order.noise(self._position, row, used)[-count:]

            try:
                for box in boxes[row]:
                    self._step.erase(values[row], box, self._finish.planar, self._finish.dtype, noise)
            except ValueError as error:
                order.fault(row, error)
        return Batch(values, block=batch.block if self._owned else None)


class Transpose:
    """``layout`` on rows that are already written: by pixel to planar or back."""

    def __init__(self, planar: bool) -> None:
        self._axes = (2, 0, 1) if planar else (1, 2, 0)

    def run(self, batch: Batch, order: Order, into: NDArray[Any] | None) -> Batch:
        """The rows in their new order."""
        values = list(batch.values)
        for row in range(order.size):
            if order.failed(row):
                continue
            value = values[row].transpose(self._axes)
            if into is None:
                values[row] = np.ascontiguousarray(value)
            elif into.shape[1:] == value.shape:
                into[row] = value
            else:
                order.fault(row, misfit(value.shape, into.shape[1:]))
        return Batch(values) if into is None else Batch(None, block=into)
