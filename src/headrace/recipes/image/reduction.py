"""How small JPEG images may become as they are decoded for a cache: so small that no crop has to be enlarged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image.geometry import Flip, RandomResizedCrop, Resize
from headrace.recipes.image.rowspec import SCALES
from headrace.recipes.op import Op


@dataclass(frozen=True)
class Floor:
    """The least that has to be left of an image: pixels in all, and on each side."""

    pixels: int
    height: int
    width: int

    def scales(self, height: Any, width: Any) -> NDArray[np.int32]:
        """For images of the given sizes the largest of ``SCALES`` that leaves so much; 1 where none does."""
        height, width = np.asarray(height, np.int64), np.asarray(width, np.int64)
        out = np.ones(height.shape, np.int32)
        for scale in SCALES[1:]:
            tall, wide = -(-height // scale), -(-width // scale)
            out[(tall >= self.height) & (wide >= self.width) & (tall * wide >= self.pixels)] = scale
        return out


def floor_of(steps: Sequence[Op]) -> Floor | None:
    """What the first resampling among ``steps`` needs of an image; None: an image of its full size.

    That depends on the image alone as long as only flips come before: crops of so many pixels, user code and steps
    on pixels would see another image. So would antialiasing, which is defined over all pixels, ``"nearest"``, which
    is for values that must not be mixed, and what is told not to shrink images as it reads them.
    """
    for step in steps:
        if isinstance(step, Flip):
            continue
        if not isinstance(step, RandomResizedCrop | Resize):
            return None
        if step.antialias or "nearest" in step.interpolation or not step.shrink_on_load:
            return None
        return _crop_floor(step) if isinstance(step, RandomResizedCrop) else _resize_floor(step)
    return None


def _crop_floor(step: RandomResizedCrop) -> Floor | None:
    """A crop has at least the least share of the area, at a ratio within bounds; where no such one fits into the
    image, it is the largest one of a ratio within bounds."""
    least, (low, high) = step.scale[0], step.ratio
    if least <= 0:
        return None
    pixels = max(step.width**2 / low, step.height**2 * high) / least
    return Floor(
        math.ceil(pixels),
        max(step.height, math.ceil(step.width / high)),
        max(step.width, math.ceil(step.height * low)),
    )


def _resize_floor(step: Resize) -> Floor | None:
    """One number stands for a size that follows from the image's own, to the pixel."""
    return None if isinstance(step.size, int) else Floor(0, *step.size)
