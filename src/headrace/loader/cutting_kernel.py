"""Cutting rows out of decoded images as one kernel, for all rows of a batch that were left to a device."""

from __future__ import annotations

import numpy as np
import torch

from headrace.loader.cuts import Cuts, Pictures
from headrace.loader.tables import sent
from headrace.loader.triton_here import BLOCK, tl, triton, usable

__all__ = ["cut", "usable"]


def cut(images: Pictures, cuts: Cuts, into: torch.Tensor, rows: list[int]) -> None:
    """See ``cuts.plain_cut``."""
    _, height, width, channels = into.shape
    parts = [cuts.bounds, cuts.flips, cuts.scales, images.shapes, np.array(rows, np.int32)]
    numbers = np.column_stack(parts).astype(np.int32)
    there = sent([images.places, np.column_stack([cuts.starts, cuts.steps]), numbers], into.device)
    size = height * width * channels
    kernel = _cut_smooth if cuts.smooth else _cut
    kernel[(triton.cdiv(size, BLOCK), len(images))](
        *there, into, size, width, height,
        columns=numbers.shape[1], channels=channels, block=BLOCK, num_warps=4,
    )  # fmt: skip


if triton is not None:

    @triton.jit
    def _between(start, step, at, length, low, last, flipped):  # type: ignore[no-untyped-def]
        """The pixel before a place, and how far from it the place is."""
        at = tl.where(flipped > 0, length - 1 - at, at)
        where = start + (at.to(tl.float64) + 0.5) * step - 0.5
        where = tl.minimum(tl.maximum(where, low.to(tl.float64)), last.to(tl.float64))
        first = where.to(tl.int32)
        weight = ((where - first.to(tl.float64)) * 32768.0 + 0.5).to(tl.int32)
        return first, tl.minimum(weight, 32767)

    @triton.jit
    def _blend(one, other, weight):  # type: ignore[no-untyped-def]
        return one + (((other - one) * weight + 16384) >> 15)

    @triton.jit
    def _pixel(image, x, y, high, wide, down, across, scale, here):  # type: ignore[no-untyped-def]
        """The mean of a square of pixels, as a number with seven places."""
        total = tl.zeros_like(x)
        for below in range(scale):
            line = tl.minimum(y * scale + below, high - 1).to(tl.int64) * down
            for right in range(scale):
                column = tl.minimum(x * scale + right, wide - 1).to(tl.int64) * across
                total += tl.load(image + line + column, here, 0).to(tl.int32)
        area = scale * scale
        return ((total + area // 2) // area) << 7

    @triton.jit  # type: ignore[untyped-decorator]
    def _cut(  # type: ignore[no-untyped-def]
        places, reals, numbers, into, size, width, height,
        columns: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        one = tl.program_id(1)
        at = tl.program_id(0) * block + tl.arange(0, block)
        here = at < size
        pixel = at // channels
        channel = at - pixel * channels
        line = pixel // width
        mine = numbers + one * columns
        scale = tl.load(mine + 6)
        high = tl.load(mine + 7)
        wide = tl.load(mine + 8)
        down = tl.load(mine + 9)
        across = tl.load(mine + 10)
        x, to_right = _between(
            tl.load(reals + 4 * one), tl.load(reals + 4 * one + 2), pixel - line * width, width,
            tl.load(mine), tl.load(mine + 1), tl.load(mine + 4),
        )  # fmt: skip
        y, to_below = _between(
            tl.load(reals + 4 * one + 1), tl.load(reals + 4 * one + 3), line, height,
            tl.load(mine + 2), tl.load(mine + 3), tl.load(mine + 5),
        )  # fmt: skip
        image = tl.load(places + one).to(tl.pointer_type(tl.uint8))
        image += channel.to(tl.int64) * tl.load(mine + 11)
        right = x + (to_right > 0).to(tl.int32)
        below = y + (to_below > 0).to(tl.int32)
        upper = _blend(
            _pixel(image, x, y, high, wide, down, across, scale, here),
            _pixel(image, right, y, high, wide, down, across, scale, here),
            to_right,
        )
        lower = _blend(
            _pixel(image, x, below, high, wide, down, across, scale, here),
            _pixel(image, right, below, high, wide, down, across, scale, here),
            to_right,
        )
        value = (_blend(upper, lower, to_below) + 64) >> 7
        row = tl.load(mine + 12).to(tl.int64)
        tl.store(into + row * size + at, value.to(tl.uint8), here)

    @triton.jit
    def _spread(start, step, at, length, low, last, flipped):  # type: ignore[no-untyped-def]
        """The first pixel that counts, how many of them there are at most, and where the middle of them is."""
        at = tl.where(flipped > 0, length - 1 - at, at)
        room = (last + 1 - low).to(tl.float64)
        stretch = tl.maximum(step, 1.0)
        centre = start - low.to(tl.float64) + (at.to(tl.float64) + 0.5) * step
        first = tl.minimum(tl.maximum(centre - stretch + 0.5, 0.0), room - 1).to(tl.int32)
        until = tl.minimum(tl.maximum(centre + stretch + 0.5, first.to(tl.float64) + 1), room).to(tl.int32)
        return first, until, (centre - first.to(tl.float64)).to(tl.float32), (1 / stretch).to(tl.float32)

    @triton.jit
    def _counts(number, first, until, centre, per):  # type: ignore[no-untyped-def]
        """What a pixel counts for, of those from the first on. (The first does where none of them would.)"""
        weight = tl.maximum(1 - tl.abs(number + 0.5 - centre) * per, tl.where(number == 0, 1e-7, 0.0))
        return tl.where(first + number < until, weight, 0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _cut_smooth(  # type: ignore[no-untyped-def]
        places, reals, numbers, into, size, width, height,
        columns: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        one = tl.program_id(1)
        at = tl.program_id(0) * block + tl.arange(0, block)
        here = at < size
        pixel = at // channels
        channel = at - pixel * channels
        line = pixel // width
        mine = numbers + one * columns
        scale = tl.load(mine + 6)
        high = tl.load(mine + 7)
        wide = tl.load(mine + 8)
        down = tl.load(mine + 9)
        across = tl.load(mine + 10)
        left = tl.load(mine)
        top = tl.load(mine + 2)
        step_x = tl.load(reals + 4 * one + 2)
        step_y = tl.load(reals + 4 * one + 3)
        x, until_x, centre_x, per_x = _spread(
            tl.load(reals + 4 * one), step_x, pixel - line * width, width,
            left, tl.load(mine + 1), tl.load(mine + 4),
        )  # fmt: skip
        y, until_y, centre_y, per_y = _spread(
            tl.load(reals + 4 * one + 1), step_y, line, height, top, tl.load(mine + 3), tl.load(mine + 5),
        )  # fmt: skip
        image = tl.load(places + one).to(tl.pointer_type(tl.uint8))
        image += channel.to(tl.int64) * tl.load(mine + 11)
        most_x = 2 * tl.ceil(tl.maximum(step_x, 1.0)).to(tl.int32) + 1
        most_y = 2 * tl.ceil(tl.maximum(step_y, 1.0)).to(tl.int32) + 1
        value = tl.zeros([block], tl.float32)
        total = tl.zeros([block], tl.float32)
        for below in range(most_y):
            counts = _counts(below, y, until_y, centre_y, per_y)
            mean = tl.zeros([block], tl.float32)
            of = tl.zeros([block], tl.float32)
            for right in range(most_x):
                weight = _counts(right, x, until_x, centre_x, per_x)
                seen = here & (counts > 0) & (weight > 0)
                found = _pixel(
                    image, left + x + right, top + y + below, high, wide, down, across, scale, seen
                )
                mean += weight * (found >> 7).to(tl.float32)
                of += weight
            value += counts * tl.floor(mean / of + 0.5)
            total += counts
        value = tl.floor(value / total + 0.5)
        row = tl.load(mine + 12).to(tl.int64)
        tl.store(into + row * size + at, tl.minimum(value, 255.0).to(tl.uint8), here)
