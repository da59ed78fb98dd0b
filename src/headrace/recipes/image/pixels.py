"""Steps that change pixel values: each runs on one small uint8 image at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.recipes.image.opencv import cv2
from headrace.recipes.op import Numbers, Op, Size, check_probability, check_range

Image = NDArray[np.uint8]
_LEVELS = np.arange(256, dtype=np.float32)


class Pixels(Op, ABC):
    """A step on single images: random parameters for all rows at once, then one call per row."""

    def shape(self, size: Size) -> Size:
        """The size that comes out, as far as it is known."""
        return size

    @abstractmethod
    def parameters(self, numbers: Numbers) -> list[Any]:
        """The parameters of each row; None leaves the row's image as it is."""

    @abstractmethod
    def apply(self, image: Image, parameters: Any) -> Image:
        """The changed image; the one given is never written to."""


def _grey(image: Image) -> Image:
    """The image's grey values, height by width."""
    return image[..., 0] if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def with_channels(image: Any, channels: int) -> Image:
    """OpenCV drops a channel axis of one; this puts it back."""
    out: Image = image[..., None] if channels == 1 and image.ndim == 2 else image
    return out


def _blended(image: Image, level: float, factor: float) -> Image:
    """Every value as far from ``level`` as ``factor`` says, clipped, its fraction cut off as Pillow does."""
    base = np.float32(level)
    table = np.clip(base + np.float32(factor) * (_LEVELS - base), 0, 255).astype(np.uint8)
    return with_channels(cv2.LUT(image, table), image.shape[2])


def adjust_brightness(image: Image, factor: float) -> Image:
    """Blend with black: 0 gives black, 1 the image, 2 twice the brightness."""
    return _blended(image, 0.0, factor)


def adjust_contrast(image: Image, factor: float) -> Image:
    """Blend with the mean of the image's grey values: 0 gives plain grey, 1 the image."""
    mean = cv2.mean(_grey(image))[0]
    return _blended(image, float(int(mean + 0.5)), factor)


def adjust_saturation(image: Image, factor: float) -> Image:
    """Blend with the grey image: 0 gives grey, 1 the image."""
    if image.shape[2] == 1:
        return image
    grey = cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB)
    # OpenCV rounds and Pillow cuts off: half a level less, and a little more for what is whole already.
    out: Image = cv2.addWeighted(image, factor, grey, 1 - factor, -0.5 + 1 / 512)
    return out


def adjust_hue(image: Image, shift: float) -> Image:
    """Turn the hue by a share of the colour circle, from -0.5 to 0.5."""
    if image.shape[2] == 1:
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(round(shift * 256) % 256)  # wraps around, as hue does
    out: Image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)
    return out


_ADJUST = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)


@dataclass(frozen=True)
class ColorJitter(Pixels):
    """See ``color_jitter``. None: that property stays as it is."""

    brightness: tuple[float, float] | None
    contrast: tuple[float, float] | None
    saturation: tuple[float, float] | None
    hue: tuple[float, float] | None
    shows: ClassVar[str] = "color_jitter"
    draws: ClassVar[int] = 8
    adjust: ClassVar[tuple[Callable[[Image, float], Image], ...]] = _ADJUST

    @property
    def random(self) -> bool:
        """Unless every range is a single value, and so few that their order cannot matter."""
        ranges = [r for r in (self.brightness, self.contrast, self.saturation, self.hue) if r is not None]
        return len(ranges) > 1 or any(low < high for low, high in ranges)

    def parameters(self, numbers: Numbers) -> list[Any]:
        """For each row the adjustments in their order, with their factors."""
        order = np.argsort(numbers[:, 4:], axis=1, kind="stable").tolist()
        columns: list[list[float] | None] = []
        for at, bounds in enumerate((self.brightness, self.contrast, self.saturation, self.hue)):
            columns.append(
                None if bounds is None else (bounds[0] + (bounds[1] - bounds[0]) * numbers[:, at]).tolist()
            )
        return [
            [(which, column[row]) for which in steps if (column := columns[which]) is not None]
            for row, steps in enumerate(order)
        ]

    def apply(self, image: Image, parameters: Any) -> Image:
        """The adjustments, one after the other."""
        for which, factor in parameters:
            image = self.adjust[which](image, factor)
        return image


def color_jitter(
    brightness: float | tuple[float, float] = 0,
    contrast: float | tuple[float, float] = 0,
    saturation: float | tuple[float, float] = 0,
    hue: float | tuple[float, float] = 0,
) -> ColorJitter:
    """Random brightness, contrast, saturation and hue, in random order.

    A number x stands for factors from max(0, 1 - x) to 1 + x, for hue from -x to x (at most 0.5). A pair is
    the range itself.
    """

    def bounds(name: str, value: float | tuple[float, float], centre: float) -> tuple[float, float] | None:
        if isinstance(value, int | float):
            if value < 0:
                raise OptionError(f"color_jitter({name}={value!r}): must not be negative")
            low, high = centre - value, centre + value
            low = max(low, 0.0) if name != "hue" else low
        else:
            low, high = check_range("color_jitter", name, value, low=-0.5 if name == "hue" else 0.0)
        if name == "hue" and not (-0.5 <= low <= high <= 0.5):
            raise OptionError(f"color_jitter(hue={value!r}): hue turns by at most 0.5 in either direction")
        return None if low == high == centre else (float(low), float(high))

    return ColorJitter(
        bounds("brightness", brightness, 1.0),
        bounds("contrast", contrast, 1.0),
        bounds("saturation", saturation, 1.0),
        bounds("hue", hue, 0.0),
    )


class Sometimes(Pixels):
    """A step that happens to a row with probability ``p``."""

    p: float

    @property
    def random(self) -> bool:
        """Unless it happens always or never."""
        return 0 < self.p < 1


@dataclass(frozen=True)
class Grayscale(Sometimes):
    """See ``grayscale``."""

    p: float
    shows: ClassVar[str] = "grayscale"
    draws: ClassVar[int] = 1

    def parameters(self, numbers: Numbers) -> list[Any]:
        """True for the rows that lose their colour."""
        return [True if hit else None for hit in (numbers[:, 0] < self.p).tolist()]

    def apply(self, image: Image, parameters: Any) -> Image:
        """Grey in as many channels as before."""
        return image if image.shape[2] == 1 else cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB)


def grayscale(p: float = 0.1) -> Grayscale:
    """Grey in as many channels as before, with probability ``p``. For one channel: ``decode(mode="L")``."""
    check_probability("grayscale", p)
    return Grayscale(float(p))


@dataclass(frozen=True)
class GaussianBlur(Sometimes):
    """See ``gaussian_blur``."""

    kernel: tuple[int, int]
    sigma: tuple[float, float]
    p: float
    shows: ClassVar[str] = "gaussian_blur"
    draws: ClassVar[int] = 2

    @property
    def random(self) -> bool:
        """Unless it happens always with one sigma, or never."""
        return 0 < self.p < 1 or (self.p > 0 and self.sigma[0] < self.sigma[1])

    def parameters(self, numbers: Numbers) -> list[Any]:
        """The sigma of each row that is blurred."""
        low, high = self.sigma
        sigmas = (low + (high - low) * numbers[:, 1]).tolist()
        hits = (numbers[:, 0] < self.p).tolist()
        return [sigma if hit else None for hit, sigma in zip(hits, sigmas, strict=True)]

    def apply(self, image: Image, parameters: Any) -> Image:
        """Blur; the border is mirrored without its outermost pixel."""
        height, width = self.kernel
        out = cv2.GaussianBlur(image, (width, height), parameters, borderType=cv2.BORDER_REFLECT_101)
        return with_channels(out, image.shape[2])


def gaussian_blur(
    kernel: int | tuple[int, int], *, sigma: float | tuple[float, float] = (0.1, 2.0), p: float = 1.0
) -> GaussianBlur:
    """Blur with a kernel of ``kernel`` pixels (odd) and a random ``sigma``, with probability ``p``."""
    check_probability("gaussian_blur", p)
    pair = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
    if len(pair) != 2 or any(not isinstance(k, int) or k <= 0 or k % 2 == 0 for k in pair):
        raise OptionError(f"gaussian_blur({kernel!r}): the kernel is an odd number, or a pair of them")
    bounds = (float(sigma), float(sigma)) if isinstance(sigma, int | float) else sigma
    bounds = check_range("gaussian_blur", "sigma", bounds, low=1e-6)
    return GaussianBlur((pair[0], pair[1]), bounds, float(p))
