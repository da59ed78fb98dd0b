"""``random_crop`` and ``pad``, whose padding decides which kind of step they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.framing import Framing
from headrace.recipes.image.geometry import Geometry, RandomCrop
from headrace.recipes.image.opencv import cv2
from headrace.recipes.image.pixels import Image, Pixels, with_channels
from headrace.recipes.op import Numbers, Size, as_fill, as_size

_BORDERS = {"reflect": "BORDER_REFLECT_101", "edge": "BORDER_REPLICATE", "symmetric": "BORDER_REFLECT"}


@dataclass(frozen=True)
class MirroredCrop(Pixels):
    """``random_crop`` with padding made of the image's own pixels."""

    height: int
    width: int
    padding: tuple[int, int, int, int]
    mode: str
    pad_if_needed: bool
    shows: ClassVar[str] = "random_crop"
    draws: ClassVar[int] = 2

    @property
    def random(self) -> bool:
        """Always."""
        return True

    def shape(self, size: Size) -> Size:
        """Always that of the crop."""
        return Size(self.height, self.width, size.channels)

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Two numbers that say where to crop."""
        where: list[Any] = numbers.tolist()
        return where

    def apply(self, image: Image, parameters: Any) -> Image:
        """Pad, then crop at a random place."""
        left, top, right, bottom = self.padding
        height, width, channels = image.shape
        if self.pad_if_needed:
            down, across = (
                max(self.height - height - top - bottom, 0),
                max(self.width - width - left - right, 0),
            )
            top, bottom, left, right = top + down, bottom + down, left + across, right + across
        room = (height + top + bottom - self.height, width + left + right - self.width)
        if min(room) < 0:
            raise ValueError(
                f"the image is smaller than random_crop(({self.height}, {self.width})); "
                "put a resize before it, or pass pad_if_needed=True"
            )
        y, x = (int(number * (space + 1)) for number, space in zip(parameters, room, strict=True))
        padded = cv2.copyMakeBorder(image, top, bottom, left, right, getattr(cv2, _BORDERS[self.mode]))
        cropped = with_channels(padded, channels)[y : y + self.height, x : x + self.width]
        return np.ascontiguousarray(cropped)


PADDING_MODES = ("constant", "reflect", "edge", "symmetric")


def random_crop(
    size: int | tuple[int, int],
    *,
    padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
    padding_mode: str = "constant",
    fill: int | tuple[int, ...] = 0,
    pad_if_needed: bool = False,
) -> RandomCrop | MirroredCrop:
    """A part of the image at a random place, after padding it.

    ``padding``: pixels on every side, or (left and right, top and bottom), or (left, top, right, bottom).
    ``padding_mode``: ``"constant"`` (of value ``fill``), or made of the image's own pixels: ``"edge"`` repeats
    the outermost one, ``"reflect"`` mirrors without it, ``"symmetric"`` with it. ``pad_if_needed`` pads images
    that are too small, which are otherwise bad samples.
    """
    height, width = as_size("random_crop", size)
    four = _sides("random_crop", padding, padding_mode)
    if padding_mode == "constant":
        return RandomCrop(height, width, four, as_fill("random_crop", fill), pad_if_needed)
    return MirroredCrop(height, width, four, padding_mode, pad_if_needed)


def _sides(op: str, padding: Any, mode: str) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of ``padding``."""
    sides = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
    if len(sides) == 2:
        sides = sides * 2
    if len(sides) != 4 or any(not isinstance(side, int) or side < 0 for side in sides):
        raise OptionError(
            f"{op}(padding={padding!r}): expected pixels: one number, two or four, none negative"
        )
    if mode not in PADDING_MODES:
        raise OptionError(f"{op}(padding_mode={mode!r}): expected one of {', '.join(PADDING_MODES)}")
    return sides[0], sides[1], sides[2], sides[3]


def _grown(size: Size, padding: tuple[int, int, int, int]) -> Size:
    left, top, right, bottom = padding
    height = None if size.height is None else size.height + top + bottom
    return Size(height, None if size.width is None else size.width + left + right, size.channels)


@dataclass(frozen=True)
class Pad(Geometry):
    """See ``pad``; here it is constant."""

    padding: tuple[int, int, int, int]
    fill: tuple[int, ...]
    shows: ClassVar[str] = "pad"

    @property
    def pads(self) -> bool:
        """Unless it is of no pixels."""
        return any(self.padding)

    def shape(self, size: Size) -> Size:
        """Larger."""
        return _grown(size, self.padding)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Pixels of fill on each side."""
        left, top, right, bottom = self.padding
        framing.x.pad(left, right)
        framing.y.pad(top, bottom)


@dataclass(frozen=True)
class MirroredPad(Pixels):
    """``pad`` with the image's own pixels."""

    padding: tuple[int, int, int, int]
    mode: str
    shows: ClassVar[str] = "pad"

    def shape(self, size: Size) -> Size:
        """Larger."""
        return _grown(size, self.padding)

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Every row is padded."""
        return [True] * len(numbers)

    def apply(self, image: Image, parameters: Any) -> Image:
        """The image within its border."""
        left, top, right, bottom = self.padding
        padded = cv2.copyMakeBorder(image, top, bottom, left, right, getattr(cv2, _BORDERS[self.mode]))
        return with_channels(padded, image.shape[2])


def pad(
    padding: int | tuple[int, int] | tuple[int, int, int, int],
    *,
    padding_mode: str = "constant",
    fill: int | tuple[int, ...] = 0,
) -> Pad | MirroredPad:
    """Add pixels around the image; ``padding``, ``padding_mode`` and ``fill`` are as in ``random_crop``."""
    four = _sides("pad", padding, padding_mode)
    if padding_mode == "constant":
        return Pad(four, as_fill("pad", fill))
    return MirroredPad(four, padding_mode)


@dataclass(frozen=True)
class Middle(Geometry):
    """The middle as albumentations has it: its place is rounded down, and images that are too small are refused."""

    height: int
    width: int
    shows: ClassVar[str] = "center_crop"

    def shape(self, size: Size) -> Size:
        """Always that of the crop."""
        return Size(self.height, self.width, size.channels)

    def fold(self, framing: Framing, numbers: Numbers) -> None:
        """Crop the middle."""
        for axis, length in ((framing.x, self.width), (framing.y, self.height)):
            for row in np.flatnonzero(axis.size < length).tolist():
                framing.faults[row] = (
                    f"the image is smaller than CenterCrop({self.height}, {self.width}); put a resize before it"
                )
            axis.crop(np.floor(np.maximum(axis.size - length, 0) / 2), length)
