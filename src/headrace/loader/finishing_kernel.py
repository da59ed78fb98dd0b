"""The finishing of rows as one kernel: each byte is read once, and each number written once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.loader.erased import Boxes
from headrace.loader.tables import sent
from headrace.loader.triton_here import BLOCK, tl, triton, usable

__all__ = ["finish", "usable"]


def finish(
    pixels: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    dtype: torch.dtype,
    boxes: Boxes | None,
    planar: bool,
) -> torch.Tensor:
    """See ``finishing.plain_finish``."""
    count, height, width, channels = pixels.shape
    shape = (count, channels, height, width) if planar else (count, height, width, channels)
    done = torch.empty(shape, dtype=dtype, device=pixels.device)
    most = 0 if boxes is None else boxes.places.shape[1]
    places = values = kinds = words = starts = pixels
    if boxes is not None:
        numbers: list[Any] = [
            boxes.words.view(np.int64),
            boxes.starts,
            boxes.places,
            boxes.kinds,
            boxes.values,
        ]
        words, starts, places, kinds, values = sent(numbers, pixels.device)
    size = height * width * channels
    noise = boxes is not None and bool(boxes.kinds.any())
    _finish[(triton.cdiv(size, BLOCK), count)](
        pixels, done, scale, bias, places, values, kinds, words, starts,
        size, width, height * width,
        channels=channels, most=most, planar=planar, noise=noise, block=BLOCK, num_warps=4,
    )  # fmt: skip
    return done


if triton is not None:

    @triton.jit
    def _mix(word):  # type: ignore[no-untyped-def]
        word = word + tl.cast(0x9E3779B97F4A7C15, tl.uint64)
        word = (word ^ (word >> 30)) * tl.cast(0xBF58476D1CE4E5B9, tl.uint64)
        word = (word ^ (word >> 27)) * tl.cast(0x94D049BB133111EB, tl.uint64)
        return word ^ (word >> 31)

    @triton.jit
    def _uniform(row, column):  # type: ignore[no-untyped-def]
        bits = _mix(row + (column + 1).to(tl.uint64) * tl.cast(0x9E3779B97F4A7C15, tl.uint64))
        return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16

    @triton.jit  # type: ignore[untyped-decorator]
    def _finish(  # type: ignore[no-untyped-def]
        pixels, done, scale, bias, places, values, kinds, words, starts,
        size, width, area,
        channels: tl.constexpr, most: tl.constexpr, planar: tl.constexpr, noise: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * block + tl.arange(0, block)
        here = at < size
        pixel = at // channels
        channel = at - pixel * channels
        factor = tl.load(scale + channel, here, 0.0)
        shift = tl.load(bias + channel, here, 0.0)
        value = tl.load(pixels + row * size + at, here, 0).to(tl.float32) * factor + shift
        if most > 0:
            y = pixel // width
            x = pixel - y * width
            for box in tl.static_range(most):
                one = row * most + box
                top = tl.load(places + 4 * one)
                left = tl.load(places + 4 * one + 1)
                high = tl.load(places + 4 * one + 2)
                wide = tl.load(places + 4 * one + 3)
                inside = here & (y >= top) & (y < top + high) & (x >= left) & (x < left + wide)
                filled = tl.load(values + one * channels + channel, inside, 0.0)
                if noise:
                    kind = tl.load(kinds + one)
                    if kind > 0:
                        word = tl.load(words + one).to(tl.uint64, bitcast=True)
                        number = ((y - top) * wide + (x - left)).to(tl.int64) * channels + channel
                        number += tl.load(starts + one)
                        first = _uniform(word, number)
                        second = _uniform(word, number + high.to(tl.int64) * wide * channels)
                        normal = tl.sqrt(-2 * tl.log(1 - first)) * tl.cos(
                            tl.full([], 6.283185307179586, tl.float64) * second
                        )
                        whole = tl.floor(first * 256).to(tl.float32) * factor + shift
                        filled = tl.where(kind == 1, normal.to(tl.float32), whole)
                value = tl.where(inside, filled, value)
        if planar:
            to = channel * area + pixel
        else:
            to = at
        tl.store(done + row * size + to, value.to(done.dtype.element_ty), here)
