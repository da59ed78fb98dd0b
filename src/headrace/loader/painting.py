"""Steps on colours that a device does: brightness, contrast, saturation, hue, grey.

The arithmetic is that of the steps in a worker, with the same random numbers; a hue may be off by a level, and what
comes after it by what becomes of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.recipes.image.pixels import ColorJitter, Grayscale
from headrace.recipes.op import Numbers, Op

NOTHING = -1
BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY = range(5)
RED, GREEN, BLUE = 9798, 19235, 3735
"""What they are of grey, of 32768."""
CUT = -0.5 + 1 / 512
"""Half a level less, and a little more for what is whole already: so that rounding cuts off."""


@dataclass
class Strokes:
    """What is done to the colours of each row of a batch, in this order."""

    kinds: NDArray[np.int32]
    """For each row: which of the above."""
    factors: NDArray[np.float32]
    """And by how much."""


def can_paint(step: Op) -> bool:
    """Whether a device does this step."""
    # (there are steps with other arithmetic that are of a kind with them)
    return type(step) is ColorJitter or type(step) is Grayscale


def strokes_of(step: Op, numbers: Numbers) -> Strokes:
    """What a step does to rows, by their random numbers."""
    if isinstance(step, Grayscale):
        hits = np.where(numbers[:, :1] < step.p, GREY, NOTHING)
        return Strokes(hits.astype(np.int32), np.zeros(hits.shape, np.float32))
    assert isinstance(step, ColorJitter)
    order = np.argsort(numbers[:, 4:], axis=1, kind="stable")
    kinds, factors = np.full(4, NOTHING), np.zeros((len(numbers), 4))
    for kind, bounds in enumerate((step.brightness, step.contrast, step.saturation, step.hue)):
        if bounds is not None:
            kinds[kind] = kind
            factors[:, kind] = bounds[0] + (bounds[1] - bounds[0]) * numbers[:, kind]
    if kinds[HUE] == HUE:
        factors[:, HUE] = np.rint(factors[:, HUE] * 256) % 256
    return Strokes(kinds[order].astype(np.int32), np.take_along_axis(factors, order, 1).astype(np.float32))


def plain_paint(pixels: torch.Tensor, strokes: Strokes) -> torch.Tensor:
    """Pixels (rows, height, width, three channels) with their colours changed, in torch's own operations."""
    painted = pixels.clone()
    for at in range(strokes.kinds.shape[1]):
        for kind in (BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY):
            rows = np.flatnonzero(strokes.kinds[:, at] == kind)
            if len(rows):
                which = torch.from_numpy(rows).to(pixels.device)
                factors = torch.from_numpy(strokes.factors[rows, at]).to(pixels.device).view(-1, 1, 1, 1)
                painted[which] = _stroke(painted[which], kind, factors)
    return painted


def _stroke(pixels: torch.Tensor, kind: int, factor: torch.Tensor) -> torch.Tensor:
    if kind == GREY:
        return _grey(pixels).to(torch.uint8).expand_as(pixels)
    if kind == HUE:
        return _turned(pixels, factor)
    values = pixels.float()
    if kind == SATURATION:
        grey = _grey(pixels).float()
        mixed: torch.Tensor = values * factor + grey * (1 - factor) + CUT
        return mixed.round_().clamp_(0, 255).to(torch.uint8)
    level: torch.Tensor | float = 0.0
    if kind == CONTRAST:
        level = (_grey(pixels).double().mean((1, 2, 3), keepdim=True) + 0.5).floor().float()
    return (level + factor * (values - level)).clamp_(0, 255).to(torch.uint8)


def _channels(pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    whole = pixels.to(torch.int32)
    return whole[..., :1], whole[..., 1:2], whole[..., 2:]


def _grey(pixels: torch.Tensor) -> torch.Tensor:
    red, green, blue = _channels(pixels)
    return (red * RED + green * GREEN + blue * BLUE + 16384) >> 15


def _turned(pixels: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """With another hue, by way of a colour circle of 256 steps."""
    red, green, blue = _channels(pixels)
    most, least = (
        torch.maximum(torch.maximum(red, green), blue),
        torch.minimum(torch.minimum(red, green), blue),
    )
    apart = most - least
    hue = torch.where(
        most == red,
        green - blue,
        torch.where(most == green, blue - red + 2 * apart, red - green + 4 * apart),
    )
    one = apart.clamp(min=1)
    hue = (hue * torch.round((256 << 12) / (6.0 * one.double())).int() + 2048) >> 12
    full = (apart * torch.round((255 << 12) / most.clamp(min=1).double()).int() + 2048) >> 12
    hue = (torch.where(apart > 0, hue, 0) + shift.int()) & 255
    place = hue.float() * (6 / 255)
    sector = place.floor()
    part, sector = place - sector, sector.int() % 6
    value, colour = most.float(), full.float() * (1 / 255)
    low, falling = value * (1 - colour), value * (1 - colour * part)
    rising = value * (1 - colour * (1 - part))

    def of(*choices: torch.Tensor) -> torch.Tensor:
        found = choices[5]
        for number in range(5):
            found = torch.where(sector == number, choices[number], found)
        return found

    turned = torch.cat(
        [
            of(value, falling, low, low, rising, value),
            of(rising, value, value, falling, low, low),
            of(low, low, rising, value, value, falling),
        ],
        3,
    )
    return turned.round_().clamp_(0, 255).to(torch.uint8)
