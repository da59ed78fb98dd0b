"""Crops, resizes and flips: steps that fold into one framing of the source image."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.framing import Framing
from headrace.recipes.image.rowspec import ANTIALIASED, ANTIALIASING, INTERPOLATIONS
from headrace.recipes.op import Numbers, Op, Size, as_fill, as_size, check_probability, check_range


class Geometry(Op, ABC):
    """A step that moves pixels along the axes and makes no new ones but by resampling or padding."""

    resamples: ClassVar[bool] = False
    fill: tuple[int, ...]
    """What is added, for steps that pad."""

    @property
    def pads(self) -> bool:
        """Whether fill may be added, so that no resampling can be folded in after it."""
        return False

    def shape(self, size: Size) -> Size:
        """The size that comes out, as far as it is known, for the size that goes in."""
        return size

    @abstractmethod
    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Apply the step to the framings of an order's rows."""


class Resampling(Geometry):
    """A step that resamples. Subclasses say how."""

    interpolation: str | tuple[str, ...]
    """Several: one of them at random for each row, by the last of its numbers."""
    antialias: bool
    shrink_on_load: bool
    """Whether JPEG images may be read at a fraction of their size."""
    resamples: ClassVar[bool] = True


def check_interpolation(op: str, name: str, antialias: bool) -> None:
    """Refuse what no kernel does."""
    if name not in INTERPOLATIONS:
        raise OptionError(f"{op}(interpolation={name!r}): expected one of {', '.join(INTERPOLATIONS)}")
    if antialias and name not in ANTIALIASED:
        raise OptionError(f"{op}(interpolation={name!r}, antialias=True): {ANTIALIASING}")


@dataclass(frozen=True)
class Resize(Resampling):
    """See ``resize``."""

    size: int | tuple[int, int]
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool = False
    shrink_on_load: bool = True
    shows: ClassVar[str] = "resize"

    def shape(self, size: Size) -> Size:
        """Fixed for a pair; for one number known only where the input is."""
        if not isinstance(self.size, int):
            return Size(self.size[0], self.size[1], size.channels)
        if size.height is None or size.width is None:
            return Size(None, None, size.channels)
        height, width = self._sides(np.array([size.height]), np.array([size.width]))
        return Size(int(height[0]), int(width[0]), size.channels)

    def _sides(self, height: Any, width: Any) -> tuple[Any, Any]:
        assert isinstance(self.size, int)
        short, long = np.minimum(height, width), np.maximum(height, width)
        # Truncated, not rounded: torchvision's int(size * long / short).
        new_short, new_long = np.full(len(short), float(self.size)), np.floor(self.size * long / short)
        if self.max_size is not None:
            over = new_long > self.max_size
            new_short = np.where(over, np.floor(self.max_size * new_short / new_long), new_short)
            new_long = np.where(over, self.max_size, new_long)
        tall = height > width
        return np.where(tall, new_long, new_short), np.where(tall, new_short, new_long)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Resample the whole current image."""
        if isinstance(self.size, int):
            framing.resize(*self._sides(framing.y.size, framing.x.size))
        else:
            framing.resize(*self.size)


@dataclass(frozen=True)
class Fit(Resampling):
    """``resize`` with ``fit``: the ratio kept, the sides those of the box or beyond (``cover``), or within it.

    ``divides``: sides are divided by the ratio to the box, as timm does, else multiplied by a scale, as
    albumentations does. Where one would lie half-way between two lengths, their floats go different ways.
    """

    height: int
    width: int
    cover: bool
    interpolation: str = "bilinear"
    antialias: bool = False
    shrink_on_load: bool = True
    divides: bool = False
    shows: ClassVar[str] = "resize"

    def shape(self, size: Size) -> Size:
        """Known where the input is."""
        if size.height is None or size.width is None:
            return Size(None, None, size.channels)
        height, width = self._sides(np.array([float(size.height)]), np.array([float(size.width)]))
        return Size(int(height[0]), int(width[0]), size.channels)

    def _sides(self, height: Any, width: Any) -> tuple[Any, Any]:
        if self.divides:
            pick = np.minimum if self.cover else np.maximum
            ratio = pick(height / self.height, width / self.width)
            sides = height / ratio, width / ratio
        else:
            pick = np.maximum if self.cover else np.minimum
            scale = pick(self.height / height, self.width / width)
            sides = height * scale, width * scale
        return np.maximum(np.rint(sides[0]), 1), np.maximum(np.rint(sides[1]), 1)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Resample the whole current image."""
        framing.resize(*self._sides(framing.y.size, framing.x.size))


def resize(
    size: int | tuple[int, int],
    *,
    interpolation: str = "bilinear",
    max_size: int | None = None,
    antialias: bool = False,
    fit: str | None = None,
    shrink_on_load: bool = True,
) -> Resize | Fit:
    """Resample. One number is the shorter side, the ratio kept; a pair is (height, width).

    ``interpolation``: ``"bilinear"`` is fastest; JPEG images are read at a half, a quarter or an eighth of
    their size where that suffices, which also smooths. ``"area"`` averages all pixels; ``"nearest"``,
    ``"cubic"`` and ``"lanczos"`` are as in OpenCV. ``antialias``: bilinear, cubic and lanczos give the pixels of
    Pillow's resize but for rounding, and so of torchvision's on its images; slower, as every pixel is read.
    ``max_size``: with one number as size, the longer side is at most this. ``fit``: keep the ratio for a pair, too,
    the image just large enough to ``"cover"`` that box, or to be held by it (``"contain"``).
    ``shrink_on_load=False``: JPEG images are always read at their full size.
    """
    check_interpolation("resize", interpolation, antialias)
    pair = as_size("resize", size)
    if fit is not None:
        if fit not in ("cover", "contain") or max_size is not None:
            raise OptionError(f"resize(fit={fit!r}): expected 'cover' or 'contain', and no max_size")
        return Fit(*pair, fit == "cover", interpolation, bool(antialias), bool(shrink_on_load))
    if max_size is not None and (not isinstance(size, int) or max_size <= size):
        raise OptionError(
            f"resize({size!r}, max_size={max_size}): needs one number as size, less than max_size"
        )
    sides = size if isinstance(size, int) else pair
    return Resize(sides, interpolation, max_size, bool(antialias), bool(shrink_on_load))


@dataclass(frozen=True)
class CenterCrop(Geometry):
    """See ``center_crop``."""

    height: int
    width: int
    fill: tuple[int, ...] = (0,)
    shows: ClassVar[str] = "center_crop"

    @property
    def pads(self) -> bool:
        """Smaller images are padded."""
        return True

    def shape(self, size: Size) -> Size:
        """Always that of the crop."""
        return Size(self.height, self.width, size.channels)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Crop the middle; where the image is smaller, pad it evenly first."""
        for axis, length in ((framing.x, self.width), (framing.y, self.height)):
            missing = np.maximum(length - axis.size, 0)
            if missing.any():
                axis.pad(np.floor(missing / 2), np.floor((missing + 1) / 2))
            axis.crop(np.rint((axis.size - length) / 2), length)


def center_crop(size: int | tuple[int, int], *, fill: int | tuple[int, ...] = 0) -> CenterCrop:
    """The middle of the image; a smaller image is padded with ``fill``, black by default."""
    return CenterCrop(*as_size("center_crop", size), as_fill("center_crop", fill))


@dataclass(frozen=True)
class RandomResizedCrop(Resampling):
    """See ``random_resized_crop``."""

    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str | tuple[str, ...]
    antialias: bool = False
    shrink_on_load: bool = True
    shows: ClassVar[str] = "random_resized_crop"

    @property
    def draws(self) -> int:
        """One more where there are several interpolations."""
        return 22 if isinstance(self.interpolation, str) else 23

    @property
    def random(self) -> bool:
        """Always."""
        return True

    def shape(self, size: Size) -> Size:
        """Always the given size."""
        return Size(self.height, self.width, size.channels)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Ten tries at a random area and ratio, the first that fits; else the middle at the nearest ratio."""
        width, height = framing.x.size, framing.y.size
        tall, wide = height[:, None], width[:, None]
        (least, most), (low, high) = self.scale, (math.log(side) / 2 for side in self.ratio)
        # In place, and by the roots of area and ratio: for a few rows, the number of calls is what costs.
        root = numbers[:, :10] * (most - least)
        root += least
        root *= tall * wide
        np.sqrt(root, out=root)
        ratio = numbers[:, 10:20] * (high - low)
        ratio += low
        np.exp(ratio, out=ratio)
        w, h = root * ratio, root / ratio
        np.rint(w, out=w)
        np.rint(h, out=h)
        fits = w <= wide
        fits &= h <= tall
        fits &= np.minimum(w, h) > 0
        at = fits.argmax(axis=1)
        at += np.arange(0, 10 * len(at), 10)
        found, w, h = fits.take(at), w.take(at), h.take(at)
        x = np.floor(numbers[:, 20] * (width - w + 1))
        y = np.floor(numbers[:, 21] * (height - h + 1))
        if not found.all():
            middle_w = np.where(width > self.ratio[1] * height, np.rint(height * self.ratio[1]), width)
            middle_h = np.where(width < self.ratio[0] * height, np.rint(width / self.ratio[0]), height)
            w, h = np.where(found, w, middle_w), np.where(found, h, middle_h)
            x = np.where(found, x, np.floor((width - w) / 2))
            y = np.where(found, y, np.floor((height - h) / 2))
        framing.x.crop(x, w)
        framing.y.crop(y, h)
        framing.resize(self.height, self.width)


def random_resized_crop(
    size: int | tuple[int, int],
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    interpolation: str | Sequence[str] = "bilinear",
    antialias: bool = False,
    shrink_on_load: bool = True,
) -> RandomResizedCrop:
    """A random part of the image, of random area (a share of the whole) and ratio, resized to ``size``.

    ``interpolation``, ``antialias`` and ``shrink_on_load`` are as in ``resize``; of a list of interpolations each
    image gets one at random.
    """
    op = "random_resized_crop"
    ways = (interpolation,) if isinstance(interpolation, str) else tuple(interpolation)
    if not ways:
        raise OptionError(f"{op}(interpolation={interpolation!r}): expected at least one")
    for way in ways:
        check_interpolation(op, way, antialias)
    return RandomResizedCrop(
        *as_size(op, size),
        check_range(op, "scale", scale),
        check_range(op, "ratio", ratio, low=1e-3),
        ways[0] if len(ways) == 1 else ways,
        bool(antialias),
        bool(shrink_on_load),
    )


@dataclass(frozen=True)
class RandomCrop(Geometry):
    """See ``random_crop``; padding here is constant."""

    height: int
    width: int
    padding: tuple[int, int, int, int]
    fill: tuple[int, ...]
    pad_if_needed: bool
    shows: ClassVar[str] = "random_crop"
    draws: ClassVar[int] = 2

    @property
    def random(self) -> bool:
        """Always."""
        return True

    @property
    def pads(self) -> bool:
        """Only where asked for."""
        return any(self.padding) or self.pad_if_needed

    def shape(self, size: Size) -> Size:
        """Always that of the crop."""
        return Size(self.height, self.width, size.channels)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Pad, then crop at a random place."""
        left, top, right, bottom = self.padding
        sides = ((framing.y, self.height, top, bottom), (framing.x, self.width, left, right))
        for at, (axis, length, before, after) in enumerate(sides):
            if before or after:
                axis.pad(before, after)
            missing = length - axis.size
            if (missing > 0).any():
                if self.pad_if_needed:
                    missing = np.maximum(missing, 0)
                    axis.pad(missing, missing)
                else:
                    self._too_small(framing, missing)
            axis.crop(np.floor(numbers[:, at] * (np.maximum(axis.size - length, 0) + 1)), length)

    def _too_small(self, framing: Framing, missing: Any) -> None:
        for row in np.flatnonzero(missing > 0).tolist():
            framing.faults[row] = (
                f"the image is smaller than random_crop(({self.height}, {self.width})); "
                "put a resize before it, or pass pad_if_needed=True"
            )


@dataclass(frozen=True)
class Flip(Geometry):
    """See ``horizontal_flip`` and ``vertical_flip``."""

    horizontal: bool
    p: float
    draws: ClassVar[int] = 1

    def __str__(self) -> str:
        return "horizontal_flip" if self.horizontal else "vertical_flip"

    @property
    def random(self) -> bool:
        """Unless it happens always or never."""
        return 0 < self.p < 1

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Mirror the rows that the draw says."""
        axis = framing.x if self.horizontal else framing.y
        axis.mirror(numbers[:, 0] < self.p)


def horizontal_flip(p: float = 0.5) -> Flip:
    """Left and right exchanged, with probability ``p``."""
    check_probability("horizontal_flip", p)
    return Flip(True, float(p))


def vertical_flip(p: float = 0.5) -> Flip:
    """Top and bottom exchanged, with probability ``p``."""
    check_probability("vertical_flip", p)
    return Flip(False, float(p))
