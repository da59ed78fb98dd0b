"""What a device cuts out of decoded images: the jobs of rows that were left to it, as tables; and how it is cut.

All numbers are those of the kernels that workers have, so that rows are the same to the bit wherever the image was
decoded in full. Where workers would read an image at a half, a quarter or an eighth of its size, squares of as many
pixels are averaged here, which is nearly the same.
"""

from __future__ import annotations

import ctypes
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
    smooth: bool
    """Whether pixels are means of all that they stand for, else of the two beside them, along each axis."""


def cuts_of(jobs: NDArray[Any], spec: RowSpec) -> Cuts:
    """What the jobs of rows ask for."""
    boxes, clamps = jobs["box"], jobs["clamp"]
    sides = np.stack([jobs["width"], jobs["height"]], 1)
    out = np.array([spec.out_w, spec.out_h], np.float64)
    given = np.maximum(jobs["scale"], 1)
    scales = np.ones(len(jobs), np.int32)
    low, high = np.maximum(clamps[:, :2], 0), np.minimum(clamps[:, 2:], sides)
    large = None
    if spec.dct_scaling and not spec.antialias:
        large = (boxes[:, 2:] >= SCALES[1] * out).all(1) & (given == 1)
    if large is not None and large.any():
        some = np.flatnonzero(large)
        scales[some], low[some], high[some] = _smaller(boxes[some], clamps[some], sides[some], out)
    by = scales[:, None]
    return Cuts(
        boxes[:, :2] / by,
        boxes[:, 2:] / by / out,
        np.stack([low[:, 0], high[:, 0] - 1, low[:, 1], high[:, 1] - 1], 1).astype(np.int32),
        np.stack([jobs["hflip"], jobs["vflip"]], 1).astype(np.int32),
        (scales * given).astype(np.int32),
        spec.antialias,
    )


def _smaller(boxes: Any, clamps: Any, sides: Any, out: Any) -> tuple[Any, Any, Any]:
    """By how much images are made smaller from which little is cut, and the bounds of the cuts then. The kernels of
    workers make the same choice."""
    scales = np.ones(len(boxes), np.int32)
    low, high = clamps[:, :2].copy(), clamps[:, 2:].copy()
    undecided = np.ones(len(boxes), np.bool_)
    for scale in reversed(SCALES):
        least = np.where(clamps[:, :2] > 0, -(-clamps[:, :2] // scale), 0)
        most = np.where(clamps[:, 2:] < sides, clamps[:, 2:] // scale, -(-sides // scale))
        fits = (boxes[:, 2:] / scale >= out).all(1) & (least < most).all(1)
        here = undecided & (fits | (scale == 1))
        scales[here], low[here], high[here] = scale, least[here], most[here]
        undecided &= ~here
    return scales, low, high


@dataclass
class Pictures:
    """Images in the memory of a device: bytes, of three channels."""

    places: NDArray[np.int64]
    """Addresses."""
    shapes: NDArray[np.int32]
    """Height, width, and how far apart lines, columns and channels are."""
    tensors: list[torch.Tensor]
    """What keeps their memory, if nothing else does."""

    @classmethod
    def of(cls, images: list[torch.Tensor]) -> Pictures:
        """Images (height, width, channels) that lie in any way."""
        shapes = [(*image.shape[:2], *image.stride()) for image in images]
        places = [image.data_ptr() for image in images]
        return cls(np.array(places, np.int64), np.array(shapes, np.int32).reshape(-1, 5), images)

    @classmethod
    def planes(
        cls, places: NDArray[np.int64], sides: NDArray[np.int32], tensors: list[torch.Tensor] | None = None
    ) -> Pictures:
        """Images whose planes lie one after the other."""
        high, wide = sides.T
        return cls(places, np.stack([high, wide, wide, np.ones_like(wide), high * wide], 1), tensors or [])

    @classmethod
    def together(cls, one: Pictures, other: Pictures) -> Pictures:
        """These, and then those."""
        return cls(
            np.concatenate([one.places, other.places]),
            np.concatenate([one.shapes, other.shapes]),
            one.tensors + other.tensors,
        )

    def __len__(self) -> int:
        return len(self.places)

    def part(self, which: list[int] | NDArray[np.intp]) -> Pictures:
        """Some of them."""
        return Pictures(self.places[which], self.shapes[which], self.tensors)

    def tensor(self, at: int, device: torch.device) -> torch.Tensor:
        """One of them (height, width, channels)."""
        high, wide, down, across, apart = self.shapes[at].tolist()
        nbytes = (high - 1) * down + (wide - 1) * across + 2 * apart + 1
        flat = memory_at(int(self.places[at]), nbytes, device)
        return flat.as_strided((high, wide, 3), (down, across, apart))


class _Memory:
    """Memory of a device, as others take it up."""

    def __init__(self, place: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (place, False),
            "version": 3,
        }


def memory_at(place: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """Bytes at an address, for as long as whoever owns them keeps them."""
    if device.type == "cpu":
        return torch.from_numpy(np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(place)))
    return torch.as_tensor(_Memory(place, nbytes), device=device)


def plain_cut(images: Pictures, cuts: Cuts, into: torch.Tensor, rows: list[int]) -> None:
    """Cut each of the images into its row of ``into`` (rows, height, width, channels), in torch's own operations."""
    height, width = into.shape[1:3]
    for at, row in enumerate(rows):
        image = images.tensor(at, into.device)
        small = reduced(image, int(cuts.scales[at]))
        if cuts.smooth:
            across = _means(cuts, at, 0, width, small.shape[1]).to(image.device)
            down = _means(cuts, at, 1, height, small.shape[0]).to(image.device)
            lines = (torch.einsum("xw,hwc->hxc", across, small.double()) + 0.5).floor()
            into[row] = (torch.einsum("yh,hxc->yxc", down, lines) + 0.5).floor().to(torch.uint8)
            continue
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


def _means(cuts: Cuts, at: int, axis: int, length: int, size: int) -> torch.Tensor:
    """For each pixel of an axis what each of the image counts for: less the farther away it is."""
    low, last = cuts.bounds[at, 2 * axis : 2 * axis + 2].tolist()
    step = float(cuts.steps[at, axis])
    stretch, room = max(step, 1.0), last + 1 - low
    centres = cuts.starts[at, axis] - low + (np.arange(length) + 0.5) * step
    first = np.clip(np.trunc(centres - stretch + 0.5), 0, room - 1)
    until = np.clip(np.trunc(centres + stretch + 0.5), first + 1, room)
    place = np.arange(room)
    weights = np.maximum(1 - np.abs(place + 0.5 - centres[:, None]) / stretch, 0)
    weights[(place < first[:, None]) | (place >= until[:, None])] = 0
    total = weights.sum(1, keepdims=True)
    alone = np.where(place == first[:, None], 1.0, 0.0)
    weights = np.where(total > 1e-9, weights / np.maximum(total, 1e-9), alone)
    if cuts.flips[at, axis]:
        weights = weights[::-1]
    whole = np.zeros((length, size))
    whole[:, low : last + 1] = weights
    return torch.from_numpy(whole)


def _blend(one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return one + (((other - one) * weight + ONE // 2) >> 15)
