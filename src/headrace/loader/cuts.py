"""What a device cuts out of decoded images: the jobs of rows that were left to it, as tables; and how it is cut.

All numbers are those of the kernels that workers have, so that rows are the same to the bit wherever the image was
decoded in full. Where workers would read an image at a half, a quarter or an eighth of its size, squares of as many
pixels are averaged here, which is nearly the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.recipes.image.rowspec import SCALES, RowSpec

ONE = 1 << 15
"""The weight of a whole pixel."""


@dataclass
class Cuts:
    """For each image what is cut out of it."""

    starts: NDArray[np.float64]
    """Along x and y: where the cut begins."""
    steps: NDArray[np.float64]
    """Along x and y: how far apart its pixels are."""
    bounds: NDArray[np.int32]
    """Along x and y: the first and the last pixel that may be looked at."""
    flips: NDArray[np.int32]
    """Along x and y: 1 where it is mirrored."""
    scales: NDArray[np.int32]
    """All these are of an image that is made smaller by so much."""


def cuts_of(jobs: NDArray[Any], spec: RowSpec) -> Cuts:
    """What the jobs of rows ask for."""
    count = len(jobs)
    boxes, clamps = jobs["box"], jobs["clamp"]
    sides = np.stack([jobs["width"], jobs["height"]], 1).astype(np.int64)
    out = np.array([spec.out_w, spec.out_h], np.float64)
    given = np.maximum(jobs["scale"], 1)
    scales = np.ones(count, np.int64)
    low = high = np.zeros((count, 2), np.int64)
    undecided = np.ones(count, np.bool_)
    for scale in reversed(SCALES):
        # (the same choice as the kernels of workers make)
        least = np.where(clamps[:, :2] > 0, np.ceil(clamps[:, :2] / scale), 0).astype(np.int64)
        most = np.where(clamps[:, 2:] < sides, np.floor(clamps[:, 2:] / scale), -(-sides // scale)).astype(
            np.int64
        )
        fits = (boxes[:, 2:] / scale >= out).all(1) & (least < most).all(1) & (given == 1)
        here = undecided & ((fits & spec.dct_scaling) | (scale == 1))
        scales = np.where(here, scale, scales)
        low, high = np.where(here[:, None], least, low), np.where(here[:, None], most, high)
        undecided &= ~here
    bounds = np.stack([low[:, 0], high[:, 0] - 1, low[:, 1], high[:, 1] - 1], 1)
    return Cuts(
        boxes[:, :2] / scales[:, None],
        boxes[:, 2:] / scales[:, None] / out,
        bounds.astype(np.int32),
        np.stack([jobs["hflip"], jobs["vflip"]], 1).astype(np.int32),
        (scales * given).astype(np.int32),
    )


def plain_cut(images: list[torch.Tensor], cuts: Cuts, into: torch.Tensor, rows: list[int]) -> None:
    """Cut each of the images (uint8; height, width, channels) into its row of ``into`` (rows, height, width,
    channels), in torch's own operations."""
    height, width = into.shape[1:3]
    for at, (image, row) in enumerate(zip(images, rows, strict=True)):
        small = reduced(image, int(cuts.scales[at]))
        x, right, across = _axis(cuts, at, 0, width, image.device)
        y, below, down = _axis(cuts, at, 1, height, image.device)
        upper, lower = (small[line].to(torch.int32) * 128 for line in (y, below))
        upper = _blend(upper[:, x], upper[:, right], across[None, :, None])
        lower = _blend(lower[:, x], lower[:, right], across[None, :, None])
        into[row] = ((_blend(upper, lower, down[:, None, None]) + 64) >> 7).to(torch.uint8)


def reduced(image: torch.Tensor, scale: int) -> torch.Tensor:
    """An image made smaller: the mean of each square of pixels; those at the edges count on beyond it."""
    if scale == 1:
        return image
    down, across = (
        torch.arange(-(-side // scale) * scale, device=image.device).clamp(max=side - 1)
        for side in image.shape[:2]
    )
    wide = image[down][:, across].to(torch.int32)
    squares = wide.view(len(down) // scale, scale, len(across) // scale, scale, image.shape[2])
    area = scale * scale
    return ((squares.sum((1, 3)) + area // 2) // area).to(torch.uint8)


def _axis(
    cuts: Cuts, at: int, axis: int, length: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each pixel of an axis the two that it lies between, and how far from the first."""
    low, last = cuts.bounds[at, 2 * axis : 2 * axis + 2].tolist()
    where = cuts.starts[at, axis] + (np.arange(length) + 0.5) * cuts.steps[at, axis] - 0.5
    where = np.clip(where, low, last)
    first = where.astype(np.int64)
    weight = np.minimum(((where - first) * ONE + 0.5).astype(np.int64), ONE - 1)
    order = slice(None, None, -1 if cuts.flips[at, axis] else 1)
    first, weight = first[order].copy(), weight[order].copy()
    second = first + (weight > 0)
    return (
        torch.from_numpy(first).to(device),
        torch.from_numpy(second).to(device),
        torch.from_numpy(weight.astype(np.int32)).to(device),
    )


def _blend(one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return one + (((other - one) * weight + ONE // 2) >> 15)
