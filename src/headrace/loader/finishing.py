"""Steps that a device does: what is cheap there, and expensive on the way to it.

The last steps of a recipe that change colours, make floats of pixels, lay them out and erase boxes of them are left
to the device: rows travel as bytes, a quarter or half of what they become. All that is random is drawn here, from
the numbers that the same steps draw in a worker, so that pixels are the same wherever they are finished, but for
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core import random
from headrace.loader.erased import Boxes
from headrace.loader.painting import can_paint, plain_paint, strokes_of
from headrace.loader.wrap import torch_dtype
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.rows import Layout, Normalise, RandomErasing, noise_of, stored_value
from headrace.recipes.op import Columns, Numbers, Op
from headrace.recipes.recipe import Recipe
from headrace.recipes.views import Views
from headrace.sampling import Draw

_MOST_BOXES = 8
"""Of one row, that a kernel looks at for each of its pixels."""


@dataclass(frozen=True)
class Tail:
    """The steps of a recipe that are left to a device."""

    normalise: Normalise
    layout: Layout | None
    erasing: tuple[tuple[int, RandomErasing, bool], ...]
    """Positions in the recipe, steps, and whether what they erase are floats already."""
    columns: Columns
    steps: tuple[str, ...]
    """What users call them."""
    painting: tuple[tuple[int, Op], ...] = ()
    """Steps on colours before all others, and their positions in the recipe."""


def divide(recipe: Recipe) -> tuple[Recipe, Tail | None]:
    """A recipe without the steps that a device can do as well, and these; None: there are none that would pay."""
    steps = list(recipe.steps)
    whole = recipe.collate is None and recipe.batch is None and not recipe.followers
    if not whole or not isinstance(recipe.decoder, Decode) or any(isinstance(step, Views) for step in steps):
        return recipe, None
    start = len(steps)
    while start and _can_wait(steps[start - 1]):
        start -= 1
    last: list[tuple[int, Op]] = [*enumerate(steps)][start:]
    normalise = next(((at, step) for at, step in last if isinstance(step, Normalise)), None)
    erasing = [(at, step) for at, step in last if isinstance(step, RandomErasing)]
    if normalise is None or sum(step.count[1] for _, step in erasing) > _MOST_BOXES:
        return recipe, None
    layout = [step for _, step in last if isinstance(step, Layout)]
    first = start
    while first and recipe.decoder.mode == "RGB" and can_paint(steps[first - 1]):
        first -= 1
    tail = Tail(
        normalise[1],
        layout[-1] if layout else None,
        tuple((at, step, at > normalise[0]) for at, step in erasing),
        Columns(recipe.every_step),
        tuple(str(step) for step in steps[first:]),
        tuple([*enumerate(steps)][first:start]),
    )
    return replace(recipe, augment=tuple(steps[:first])), tail


def _can_wait(step: Op) -> bool:
    return isinstance(step, Normalise | Layout | RandomErasing)


_FIELDS = ("places", "values", "kinds", "words", "starts")


class Drawn(NamedTuple):
    """Random numbers of the rows of a batch."""

    seed: int
    epoch: int
    words: NDArray[np.int64]
    """What they go by."""
    numbers: Numbers


class Finisher:
    """A tail at work on batches of one device."""

    def __init__(self, tail: Tail, device: torch.device) -> None:
        self._tail, self._device = tail, device
        self.steps = tail.steps
        self._dtype = torch_dtype(tail.normalise.dtype)
        self._factors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, pixels: torch.Tensor, drawn: Draw, seed: int, rows: NDArray[np.int64] | None
    ) -> torch.Tensor:
        """Finished rows of pixels (uint8, channels at 1), on the stream that is current.

        ``rows``: which of the drawn rows each of them is; None: all, in their order.
        """
        channels = pixels.shape[1]
        scale, bias = self._scaled(channels)
        boxes, numbers = None, None
        if self._tail.erasing or self._tail.painting:
            numbers = self._draw(drawn, seed, rows)
        if self._tail.erasing and numbers is not None:
            boxes = self.boxes(pixels.shape[2], pixels.shape[3], channels, numbers)
        planar = self._tail.layout is not None and self._tail.layout.planar
        by_pixel = pixels.permute(0, 2, 3, 1)
        if self._tail.painting and numbers is not None:
            by_pixel = self._painted(by_pixel, numbers)
        done = _finish(by_pixel)(by_pixel, scale, bias, self._dtype, boxes, planar)
        if planar or (self._tail.layout is not None and self._tail.layout.order == "NHWC"):
            return done
        return done.permute(0, 3, 1, 2)

    def _scaled(self, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        if channels not in self._factors:
            scale, bias = self._tail.normalise.factors(channels)
            self._factors[channels] = (
                torch.from_numpy(scale).to(self._device),
                torch.from_numpy(bias).to(self._device),
            )
        return self._factors[channels]

    def _draw(self, drawn: Draw, seed: int, rows: NDArray[np.int64] | None) -> Drawn:
        """Random numbers of a batch, as workers would draw them."""
        words = drawn.indices if drawn.words is None else drawn.words
        words = np.asarray(words if rows is None else words[rows], np.int64)
        seed, epoch = drawn.randomness or (seed, drawn.epoch)
        return Drawn(seed, epoch, words, self._tail.columns.draw(seed, epoch, words))

    def _painted(self, pixels: torch.Tensor, drawn: Drawn) -> torch.Tensor:
        """Pixels with their colours changed."""
        for position, step in self._tail.painting:
            strokes = strokes_of(step, self._tail.columns.of(drawn.numbers, position))
            pixels = _paint(pixels)(pixels, strokes)
        return pixels

    def boxes(self, height: int, width: int, channels: int, drawn: Drawn) -> Boxes:
        """What is erased of a batch."""
        words = drawn.words
        sides = np.full(len(words), height, float), np.full(len(words), width, float)
        parts = [
            self._boxes_of(step, floats, channels, step.table(*sides, self._tail.columns.of(drawn.numbers, position)),
                           random.row_words(random.key(drawn.seed, drawn.epoch, position), words))
            for position, step, floats in self._tail.erasing
        ]  # fmt: skip
        if len(parts) == 1:
            return parts[0]
        return Boxes(*(np.concatenate([getattr(part, name) for part in parts], 1) for name in _FIELDS))

    def _boxes_of(
        self,
        step: RandomErasing,
        floats: bool,
        channels: int,
        table: NDArray[np.int64],
        words: NDArray[np.uint64],
    ) -> Boxes:
        """What one step erases. ``words``: what noise of each row goes by."""
        shape = table.shape[:2]
        there = (table[:, :, 2] > 0) & (table[:, :, 3] > 0)
        dtype = self._tail.normalise.dtype if floats else "uint8"
        kinds = np.zeros(shape, np.int32)
        starts: NDArray[np.int64] = np.zeros(shape, np.int64)
        values = np.zeros((*shape, channels), np.float32)
        if step.value:
            values[:] = stored_value(step, channels, dtype)
        elif step.flat:
            starts = np.multiply(2 * channels, np.cumsum(there, 1) - there)
            columns = starts[:, :, None] + np.arange(2 * channels)
            drawn = random.of_rows(words[:, None, None], columns)
            values = (
                noise_of(drawn.reshape(-1, 2 * channels).T, dtype).T.reshape(values.shape).astype(np.float32)
            )
        else:
            kinds[there] = 1 if floats else 2
            used = 2 * channels * table[:, :, 2] * table[:, :, 3]
            starts = np.cumsum(used, 1) - used
        if not floats:
            scale, bias = self._tail.normalise.factors(channels)
            values = values * scale + bias
        return Boxes(table.astype(np.int32), values, kinds, np.repeat(words[:, None], shape[1], 1), starts)


def _finish(pixels: torch.Tensor) -> Callable[..., torch.Tensor]:
    if pixels.is_cuda:
        # (here and not above: what it needs takes a while to be imported, and many never need it)
        from headrace.loader import finishing_kernel

        if finishing_kernel.usable(pixels):
            return finishing_kernel.finish
    return plain_finish


def _paint(pixels: torch.Tensor) -> Callable[..., torch.Tensor]:
    if pixels.is_cuda:
        from headrace.loader import painting_kernel

        if painting_kernel.usable(pixels):
            return painting_kernel.paint
    return plain_paint


def plain_finish(
    pixels: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    dtype: torch.dtype,
    boxes: Boxes | None,
    planar: bool,
) -> torch.Tensor:
    """What the kernel does, in torch's own operations: for devices, and machines, that have none."""
    done = pixels.to(torch.float32).mul_(scale).add_(bias)
    if boxes is not None:
        _erase(done, scale, bias, boxes)
    done = done.to(dtype)
    return done.permute(0, 3, 1, 2).contiguous() if planar else done.contiguous()


def _erase(done: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, boxes: Boxes) -> None:
    for row, number in zip(*np.nonzero(boxes.places[:, :, 2]), strict=True):
        top, left, height, width = boxes.places[row, number].tolist()
        part = done[row, top : top + height, left : left + width]
        kind = int(boxes.kinds[row, number])
        if kind == 0:
            part.copy_(torch.from_numpy(boxes.values[row, number]).to(done.device))
            continue
        count, start = height * width * done.shape[3], int(boxes.starts[row, number])
        numbers = random.of_rows(boxes.words[row, number], np.arange(start, start + 2 * count))
        noise = noise_of(numbers, "float32" if kind == 1 else "uint8").reshape(part.shape)
        values = torch.from_numpy(noise.astype(np.float32)).to(done.device)
        part.copy_(values if kind == 1 else values * scale + bias)


def rows_kept(rule: str, bad: list[int], rows: int) -> NDArray[np.int64] | None:
    """Which of the drawn rows stand in a batch, where some are bad; None: all of them."""
    if not bad:
        return None
    good = np.setdiff1d(np.arange(rows), bad)
    if rule == "skip" or not len(good):
        return good
    kept = np.arange(rows)
    for at, row in enumerate(sorted(bad)):
        kept[row] = good[at % len(good)]
    return kept
