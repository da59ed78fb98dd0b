"""How image rows are written: dtype, normalisation, layout; and steps on rows that are already written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.layout import BFLOAT16
from headrace.recipes.op import Numbers, Op, check_probability, check_range

DTYPES = ("float32", "float16", BFLOAT16)
Floats = tuple[float, ...]
Box = tuple[int, int, int, int]
MOST_BOXES = 16


def to_storage(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Numbers as they lie in a row of ``dtype``; bfloat16 lies as uint16, rounded to nearest even."""
    if dtype != BFLOAT16:
        return values.astype(dtype)
    words = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def from_storage(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Rows as numpy can show them: bfloat16 becomes float32, which holds every value exactly."""
    if dtype != BFLOAT16:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Normalise(Op):
    """See ``normalise`` and ``to_float``."""

    mean: Floats
    std: Floats
    dtype: str
    scale: float
    shows: ClassVar[str] = "normalise"

    def factors(self, channels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Per channel, what a pixel value is multiplied by, and what is added then."""
        if not {len(self.mean), len(self.std)} <= {1, channels}:
            raise ValueError(
                f"normalise has {len(self.mean)} means and {len(self.std)} deviations, "
                f"and the image has {channels} channels; give one for each channel, or one for all"
            )
        mean = np.broadcast_to(np.asarray(self.mean), (channels,))
        std = np.broadcast_to(np.asarray(self.std), (channels,))
        return (self.scale / std).astype(np.float32), (-mean / std).astype(np.float32)


def normalise(
    mean: float | Sequence[float],
    std: float | Sequence[float],
    *,
    dtype: str = "float32",
    scale: float = 1 / 255,
) -> Normalise:
    """``(scale * value - mean) / std`` of every pixel value, as floats of ``dtype``.

    ``mean`` and ``std``: one number per channel, or one for all. ``dtype``: float32, float16 or bfloat16.
    """
    means = (float(mean),) if isinstance(mean, int | float) else tuple(map(float, mean))
    stds = (float(std),) if isinstance(std, int | float) else tuple(map(float, std))
    if not means or not stds or any(not math.isfinite(v) for v in means + stds) or min(stds) <= 0:
        raise OptionError(
            f"normalise(mean={mean!r}, std={std!r}): expected numbers, the deviations above zero"
        )
    return Normalise(means, stds, _check_dtype("normalise", dtype), float(scale))


def to_float(dtype: str = "float32") -> Normalise:
    """Pixel values as floats from 0 to 1."""
    return Normalise((0.0,), (1.0,), _check_dtype("to_float", dtype), 1 / 255)


def _check_dtype(op: str, dtype: str) -> str:
    if dtype not in DTYPES:
        raise OptionError(f"{op}(dtype={dtype!r}): expected one of {', '.join(DTYPES)}")
    return dtype


@dataclass(frozen=True)
class Layout(Op):
    """See ``layout``."""

    order: str
    contiguous: bool
    shows: ClassVar[str] = "layout"

    @property
    def planar(self) -> bool:
        """Whether each channel lies in memory as a plane of its own."""
        return self.order == "NCHW" and self.contiguous


def layout(order: str = "NCHW", *, contiguous: bool = False) -> Layout:
    """How batches of images are presented: ``"NCHW"`` (the default) or ``"NHWC"``.

    NCHW batches are in torch's channels_last memory format, in which nothing has to be transposed and which
    is what GPUs like best for convolutions. ``contiguous=True`` writes planes of single channels instead.
    """
    if order not in ("NCHW", "NHWC"):
        raise OptionError(f"layout({order!r}): expected 'NCHW' or 'NHWC'")
    if order == "NHWC" and contiguous:
        contiguous = False  # NHWC always lies in that order
    return Layout(order, contiguous)


@dataclass(frozen=True)
class RandomErasing(Op):
    """See ``random_erasing``. An empty ``value`` stands for noise, ``flat`` for one colour of it in each box."""

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    value: Floats
    flat: bool = False
    count: tuple[int, int] = (1, 1)
    shows: ClassVar[str] = "random_erasing"

    @property
    def draws(self) -> int:
        """22 for each box; whether it happens, and where their number is random, that."""
        least, most = self.count
        return 22 * most + (1 if least == most else 2)

    @property
    def random(self) -> bool:
        """Unless it never happens."""
        return self.p > 0

    def boxes(self, height: NDArray[Any], width: NDArray[Any], numbers: Numbers) -> list[list[Box]]:
        """For each row what to erase, as (top, left, height, width)."""
        table = self.table(height, width, numbers).tolist()
        return [[(box[0], box[1], box[2], box[3]) for box in row if box[2] and box[3]] for row in table]

    def table(self, height: NDArray[Any], width: NDArray[Any], numbers: Numbers) -> NDArray[np.int64]:
        """The same as one array, of as many boxes for each row as there may be; of no height where there is none."""
        least, most = self.count
        hits = numbers[:, 22 * most] < self.p
        count = np.full(len(numbers), most)
        if least < most:
            count = least + np.floor(numbers[:, 22 * most + 1] * (most - least + 1)).astype(int)
        found = np.zeros((len(numbers), most, 4), np.int64)
        for at in range(most):
            boxes, fits = self._boxes(height, width, count, numbers[:, 22 * at : 22 * at + 22])
            fits &= hits & (at < count)
            found[fits, at] = boxes[fits]
        return found

    def _boxes(
        self, height: Any, width: Any, count: Any, numbers: Numbers
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """One box for each row: the first of ten tries that fits; and whether one does."""
        least, most = self.scale
        area = (height * width / count)[:, None] * (least + (most - least) * numbers[:, :10])
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = np.exp(low + (high - low) * numbers[:, 10:20])
        h, w = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (h < height[:, None]) & (w < width[:, None])
        at = fits.argmax(axis=1)
        rows = np.arange(len(at))
        h, w = h[rows, at], w[rows, at]
        top = np.floor(numbers[:, 20] * (height - h + 1))
        left = np.floor(numbers[:, 21] * (width - w + 1))
        return np.stack([top, left, h, w], axis=1).astype(np.int64), fits[rows, at]

    def erase(
        self, row: NDArray[Any], box: Box, planar: bool, dtype: str, noise: Callable[[int], Numbers]
    ) -> None:
        """Overwrite ``box`` of one row in place; ``noise`` gives as many random numbers as asked for."""
        top, left, height, width = box
        image = row.transpose(1, 2, 0) if planar else row
        part = image[top : top + height, left : left + width]
        if self.value:
            part[...] = to_storage(_in_range(self, dtype), dtype)
            return
        shape = part.shape[2:] if self.flat else part.shape
        values = noise_of(noise(2 * math.prod(shape)), dtype).reshape(shape)
        part[...] = to_storage(values, dtype)


def _in_range(step: RandomErasing, dtype: str) -> NDArray[np.float64]:
    values = np.asarray(step.value, np.float64)
    return np.clip(values, 0, 255) if dtype == "uint8" else values


def stored_value(step: RandomErasing, channels: int, dtype: str) -> NDArray[np.float32]:
    """What a box is filled with, per channel, as a row of ``dtype`` holds it."""
    values = np.broadcast_to(_in_range(step, dtype), (channels,))
    return from_storage(to_storage(values, dtype), dtype).astype(np.float32)


def noise_of(numbers: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """Noise from pairs of uniform numbers: any pixel value for uint8, the standard normal for floats."""
    first, second = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    if dtype == "uint8":
        return np.floor(first * 256)
    return np.asarray(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second))


def random_erasing(
    p: float = 0.5,
    *,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    value: float | Sequence[float] | str = 0,
    count: int | tuple[int, int] = 1,
) -> RandomErasing:
    """Overwrite a random box of random area (a share of the whole) and ratio, with probability ``p``.

    ``value``: a number, one per channel, ``"random"`` for noise, or ``"color"`` for a random colour. After
    ``normalise`` it is in normalised units; before, in pixel values. ``count``: so many boxes, or from so many to so
    many of them, the area divided among them.
    """
    op, kinds = "random_erasing", "a number, one per channel, 'random' or 'color'"
    check_probability(op, p)
    if isinstance(value, str) and value not in ("random", "color"):
        raise OptionError(f"{op}(value={value!r}): expected {kinds}")
    values: Floats = ()
    if not isinstance(value, str):
        values = (float(value),) if isinstance(value, int | float) else tuple(map(float, value))
        if not values:
            raise OptionError(f"{op}(value=()): expected {kinds}")
    bounds = (count, count) if isinstance(count, int) else tuple(count)
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1] <= MOST_BOXES:
        raise OptionError(
            f"{op}(count={count!r}): expected from 1 to {MOST_BOXES} boxes, or a pair of such numbers"
        )
    return RandomErasing(
        float(p),
        check_range(op, "scale", scale),
        check_range(op, "ratio", ratio, low=1e-3),
        values,
        value == "color",
        (bounds[0], bounds[1]),
    )
