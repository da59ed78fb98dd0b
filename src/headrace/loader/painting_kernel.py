"""Changing the colours of rows as kernels: one where no step needs the mean of an image, else two."""

from __future__ import annotations

from typing import Any

import torch

from headrace.loader.painting import CONTRAST, CUT, Strokes
from headrace.loader.tables import sent
from headrace.loader.triton_here import BLOCK, tl, triton, usable

__all__ = ["paint", "usable"]


def paint(pixels: torch.Tensor, strokes: Strokes) -> torch.Tensor:
    """See ``painting.plain_paint``."""
    count, height, width, _ = pixels.shape
    area, number = height * width, strokes.kinds.shape[1]
    kinds, factors = sent([strokes.kinds, strokes.factors], pixels.device)
    sums = torch.zeros(count, dtype=torch.int64, device=pixels.device)
    painted = torch.empty_like(pixels)
    grid = (triton.cdiv(area, BLOCK), count)
    options: Any = {"number": number, "block": BLOCK, "num_warps": 4}
    if (strokes.kinds == CONTRAST).any():
        _add_up[grid](pixels, kinds, factors, sums, area, **options)
    _paint[grid](pixels, painted, kinds, factors, sums, area, **options)
    return painted


if triton is not None:
    cut_off = tl.constexpr(CUT)

    @triton.jit
    def _grey(red, green, blue):  # type: ignore[no-untyped-def]
        return (red * 9798 + green * 19235 + blue * 3735 + 16384) >> 15

    @triton.jit
    def _rounded(value):  # type: ignore[no-untyped-def]
        """To the nearest whole number, and to the even one of two."""
        down = tl.floor(value)
        rest = value - down
        odd = down - 2 * tl.floor(down * 0.5)
        up = (rest > 0.5) | ((rest == 0.5) & (odd > 0))
        return tl.minimum(tl.maximum(down + tl.where(up, 1.0, 0.0), 0.0), 255.0).to(tl.int32)

    @triton.jit
    def _away(value, level, factor):  # type: ignore[no-untyped-def]
        return tl.minimum(tl.maximum(level + factor * (value.to(tl.float32) - level), 0.0), 255.0).to(
            tl.int32
        )

    @triton.jit
    def _mixed(value, grey, factor):  # type: ignore[no-untyped-def]
        return _rounded(value.to(tl.float32) * factor + grey.to(tl.float32) * (1 - factor) + cut_off)

    @triton.jit
    def _of(sector, zero, one, two, three, four, five):  # type: ignore[no-untyped-def]
        found = tl.where(sector == 0, zero, five)
        found = tl.where(sector == 1, one, found)
        found = tl.where(sector == 2, two, found)
        found = tl.where(sector == 3, three, found)
        return tl.where(sector == 4, four, found)

    @triton.jit
    def _turned(red, green, blue, shift):  # type: ignore[no-untyped-def]
        most = tl.maximum(tl.maximum(red, green), blue)
        apart = most - tl.minimum(tl.minimum(red, green), blue)
        hue = tl.where(
            most == red,
            green - blue,
            tl.where(most == green, blue - red + 2 * apart, red - green + 4 * apart),
        )
        one = tl.maximum(apart, 1).to(tl.float64)
        of_hue = tl.floor(1048576.0 / (6.0 * one) + 0.5).to(tl.int32)
        of_most = tl.floor(1044480.0 / tl.maximum(most, 1).to(tl.float64) + 0.5).to(tl.int32)
        hue = (hue * of_hue + 2048) >> 12
        full = (apart * of_most + 2048) >> 12
        hue = (tl.where(apart > 0, hue, 0) + shift.to(tl.int32)) & 255
        place = hue.to(tl.float32) * (6 / 255)
        whole = tl.floor(place)
        part = place - whole
        sector = whole.to(tl.int32) % 6
        value = most.to(tl.float32)
        colour = full.to(tl.float32) * (1 / 255)
        low = value * (1 - colour)
        falling = value * (1 - colour * part)
        rising = value * (1 - colour * (1 - part))
        return (
            _rounded(_of(sector, value, falling, low, low, rising, value)),
            _rounded(_of(sector, rising, value, value, falling, low, low)),
            _rounded(_of(sector, low, low, rising, value, value, falling)),
        )

    @triton.jit
    def _stroke(red, green, blue, kind, factor, level):  # type: ignore[no-untyped-def]
        if (kind == 0) | (kind == 1):
            base = tl.where(kind == 1, level, 0.0)
            red = _away(red, base, factor)
            green = _away(green, base, factor)
            blue = _away(blue, base, factor)
        if kind == 2:
            grey = _grey(red, green, blue)
            red = _mixed(red, grey, factor)
            green = _mixed(green, grey, factor)
            blue = _mixed(blue, grey, factor)
        if kind == 3:
            red, green, blue = _turned(red, green, blue, factor)
        if kind == 4:
            grey = _grey(red, green, blue)
            red = grey
            green = grey
            blue = grey
        return red, green, blue

    @triton.jit  # type: ignore[untyped-decorator]
    def _add_up(  # type: ignore[no-untyped-def]
        pixels, kinds, factors, sums, area, number: tl.constexpr, block: tl.constexpr
    ):
        """The grey of all pixels of a row, as they are when its contrast is changed."""
        row = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * block + tl.arange(0, block)
        here = at < area
        place = pixels + 3 * (row * area + at)
        red = tl.load(place, here, 0).to(tl.int32)
        green = tl.load(place + 1, here, 0).to(tl.int32)
        blue = tl.load(place + 2, here, 0).to(tl.int32)
        before = tl.full([], 1, tl.int32)
        for stroke in tl.static_range(number):
            kind = tl.load(kinds + row * number + stroke)
            if (before > 0) & (kind == 1):
                grey = tl.where(here, _grey(red, green, blue), 0)
                tl.atomic_add(sums + row, tl.sum(grey, 0).to(tl.int64))
            before = tl.where(kind == 1, 0, before)
            if before > 0:
                factor = tl.load(factors + row * number + stroke)
                red, green, blue = _stroke(red, green, blue, kind, factor, 0.0)

    @triton.jit  # type: ignore[untyped-decorator]
    def _paint(  # type: ignore[no-untyped-def]
        pixels, painted, kinds, factors, sums, area, number: tl.constexpr, block: tl.constexpr
    ):
        row = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * block + tl.arange(0, block)
        here = at < area
        place = 3 * (row * area + at)
        red = tl.load(pixels + place, here, 0).to(tl.int32)
        green = tl.load(pixels + place + 1, here, 0).to(tl.int32)
        blue = tl.load(pixels + place + 2, here, 0).to(tl.int32)
        level = tl.floor(tl.load(sums + row).to(tl.float64) / area + 0.5).to(tl.float32)
        for stroke in tl.static_range(number):
            kind = tl.load(kinds + row * number + stroke)
            factor = tl.load(factors + row * number + stroke)
            red, green, blue = _stroke(red, green, blue, kind, factor, level)
        tl.store(painted + place, red.to(tl.uint8), here)
        tl.store(painted + place + 1, green.to(tl.uint8), here)
        tl.store(painted + place + 2, blue.to(tl.uint8), here)
