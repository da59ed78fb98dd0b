"""Rows that are resampled in different ways: each way is a kernel call of its own, for the rows that have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image import kernels
from headrace.recipes.image.geometry import Geometry, RandomResizedCrop
from headrace.recipes.image.resample import Finish, Resample
from headrace.recipes.op import Size
from headrace.recipes.row_groups import RowGroup, RowValues


class AnyWay(Resample):
    """A pass whose ``random_resized_crop`` has several interpolations, one at random for each row."""

    def __init__(self, steps: list[tuple[int, Geometry]], size: Size, finish: Finish, **options: Any) -> None:
        at, crop = next(
            (at, step) for at, (_, step) in enumerate(steps) if isinstance(step, RandomResizedCrop)
        )
        self._position, self._ways = steps[at][0], tuple(crop.interpolation)
        one = (self._position, replace(crop, interpolation=self._ways[0]))
        super().__init__([*steps[:at], one, *steps[at + 1 :]], size, finish, **options)
        self._others: dict[tuple[kernels.RowSpec, str], kernels.RowSpec] = {}

    def _call(
        self, held: RowValues, jobs: NDArray[Any], group: RowGroup, out: NDArray[Any], spec: kernels.RowSpec
    ) -> None:
        which = np.floor(group.draw(self._position)[:, -1] * len(self._ways))
        for at, way in enumerate(self._ways):
            rows = np.flatnonzero(which == at).tolist()
            if not rows:
                continue
            memory = np.empty((len(rows), *out.shape[1:]), out.dtype)
            super()._call(held.part(rows), jobs[rows], group.part(rows), memory, self._by(way, spec))
            out[rows] = memory

    def _by(self, way: str, spec: kernels.RowSpec) -> kernels.RowSpec:
        """The spec for one of the ways, made once."""
        key = (spec, way)
        if key not in self._others:
            if len(self._others) >= 256:  # images of ever new sizes must not fill the memory
                self._others.clear()
            named: Any = way
            self._others[key] = replace(spec, interpolation=named)
        return self._others[key]


def resampler(steps: list[tuple[int, Geometry]], size: Size, finish: Finish, **options: Any) -> Resample:
    """The pass of these steps."""
    several = any(isinstance(s, RandomResizedCrop) and not isinstance(s.interpolation, str) for _, s in steps)
    return (AnyWay if several else Resample)(steps, size, finish, **options)
