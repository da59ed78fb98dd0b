"""Steps that are Pillow's own operations, and so torchvision's on Pillow's images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.pixels import Image, Pixels, Sometimes
from headrace.recipes.op import Numbers, Size, as_fill, check_probability, check_range

ROTATIONS = ("nearest", "bilinear", "bicubic")
"""How Pillow turns images."""


def pictured(image: Image) -> Any:
    """A Pillow image of an array."""
    from PIL import Image as Pillow

    return Pillow.fromarray(image if image.shape[2] == 3 else image[..., 0])


def arrayed(picture: Any, channels: int) -> Image:
    """Height by width by channels of a Pillow image."""
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def fill_of(fill: tuple[int, ...], channels: int) -> Any:
    """A fill as Pillow takes it."""
    if channels == 1:
        return fill[0]
    return fill if len(fill) == channels else fill[:1] * channels


def way_of(interpolation: str) -> Any:
    """A filter as Pillow calls it."""
    from PIL import Image as Pillow

    return Pillow.Resampling[interpolation.upper()]


@dataclass(frozen=True)
class Rotation(Pixels):
    """See ``rotation``."""

    degrees: tuple[float, float]
    fill: tuple[int, ...]
    expand: bool
    interpolation: str
    center: tuple[float, float] | None = None
    shows: ClassVar[str] = "rotation"
    draws: ClassVar[int] = 1

    @property
    def random(self) -> bool:
        """Unless there is one angle only."""
        return self.degrees[0] < self.degrees[1]

    def shape(self, size: Size) -> Size:
        """Unchanged, unless the image is expanded by an angle that is not known yet."""
        return Size(None, None, size.channels) if self.expand else size

    def parameters(self, numbers: Numbers) -> list[Any]:
        """The angle of each row."""
        low, high = self.degrees
        angles: list[Any] = (low + (high - low) * numbers[:, 0]).tolist()
        return angles

    def apply(self, image: Image, parameters: Any) -> Image:
        """Turn counter-clockwise."""
        channels = image.shape[2]
        turned = pictured(image).rotate(
            parameters,
            way_of(self.interpolation),
            expand=self.expand,
            center=self.center,
            fillcolor=fill_of(self.fill, channels),
        )
        return arrayed(turned, channels)


def rotation(
    degrees: float | tuple[float, float],
    *,
    interpolation: str = "nearest",
    fill: int | tuple[int, ...] = 0,
    expand: bool = False,
    center: tuple[float, float] | None = None,
) -> Rotation:
    """Turn by a random angle: from ``-degrees`` to ``degrees``, or from the first to the second of a pair.

    Around the image's middle, or ``center``, (x, y) from its upper left corner. ``interpolation``: nearest, bilinear
    or bicubic. ``expand`` makes the image large enough to hold all of the turned one; put a resize or crop after it.
    """
    if interpolation not in ROTATIONS:
        raise OptionError(f"rotation(interpolation={interpolation!r}): expected nearest, bilinear or bicubic")
    if isinstance(degrees, int | float):
        degrees = (-abs(float(degrees)), abs(float(degrees)))
    bounds = check_range("rotation", "degrees", degrees, low=-float("inf"))
    middle = None
    if center is not None:
        middle = (float(center[0]), float(center[1]))
    return Rotation(bounds, as_fill("rotation", fill), bool(expand), interpolation, middle)


def posterized(picture: Any, bits: int) -> Any:
    """With the upper ``bits`` of each value. (Pillow's own, which no longer takes 0 of them: black.)"""
    mask = 0xFF << (8 - bits) & 0xFF
    return picture.point([value & mask for value in range(256)] * len(picture.getbands()))


def _operations() -> dict[str, Callable[[Any, Any], Any]]:
    from PIL import ImageEnhance, ImageOps

    return {
        "invert": lambda picture, _: ImageOps.invert(picture),
        "equalize": lambda picture, _: ImageOps.equalize(picture),
        "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
        "posterize": posterized,
        "solarize": lambda picture, threshold: ImageOps.solarize(picture, threshold),
        "sharpness": lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
    }


@dataclass(frozen=True)
class Operation(Sometimes):
    """One of Pillow's operations, with probability ``p``."""

    name: str
    amount: float | None
    p: float
    draws: ClassVar[int] = 1

    def __str__(self) -> str:
        return self.name

    def parameters(self, numbers: Numbers) -> list[Any]:
        """True for the rows that it happens to."""
        return [True if hit else None for hit in (numbers[:, 0] < self.p).tolist()]

    def apply(self, image: Image, parameters: Any) -> Image:
        """The operation."""
        changed = _operations()[self.name](pictured(image), self.amount)
        return arrayed(changed, image.shape[2])


def _operation(name: str, amount: float | None, p: float) -> Operation:
    check_probability(name, p)
    return Operation(name, amount, float(p))


def invert(p: float = 0.5) -> Operation:
    """Light for dark: 255 less each value, with probability ``p``."""
    return _operation("invert", None, p)


def equalize(p: float = 0.5) -> Operation:
    """Spread each channel's values so that all are about as frequent, with probability ``p``."""
    return _operation("equalize", None, p)


def autocontrast(p: float = 0.5) -> Operation:
    """Stretch each channel's values from 0 to 255, with probability ``p``."""
    return _operation("autocontrast", None, p)


def posterize(bits: int, p: float = 0.5) -> Operation:
    """Keep the upper ``bits`` of each value, with probability ``p``."""
    if not isinstance(bits, int) or not 0 <= bits <= 8:
        raise OptionError(f"posterize({bits!r}): a value has bits from 0 to 8")
    return _operation("posterize", bits, p)


def solarize(threshold: float, p: float = 0.5) -> Operation:
    """Invert the values from ``threshold`` on, with probability ``p``."""
    if not math.isfinite(threshold):
        raise OptionError(f"solarize({threshold!r}): expected a pixel value")
    return _operation("solarize", threshold, p)


def sharpness(factor: float, p: float = 0.5) -> Operation:
    """Blend with a smoothed image: 0 gives that, 1 the image, 2 a sharper one; with probability ``p``."""
    if not math.isfinite(factor) or factor < 0:
        raise OptionError(f"sharpness({factor!r}): expected a factor that is not negative")
    return _operation("sharpness", float(factor), p)
