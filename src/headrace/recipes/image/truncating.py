"""Steps on pixel values with albumentations' arithmetic: results are cut off and not rounded, hue has 180 steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.recipes.image.opencv import cv2
from headrace.recipes.image.pixels import ColorJitter, Image, Pixels, with_channels
from headrace.recipes.op import Numbers

_LEVELS = np.arange(256, dtype=np.float32)


def _mapped(image: Image, slope: float, offset: float) -> Image:
    """``slope * value + offset`` of every value, clipped, its fraction cut off."""
    table = np.clip(_LEVELS * slope + offset, 0, 255).astype(np.uint8)
    return with_channels(cv2.LUT(image, table), image.shape[2])


def _grey(image: Image) -> Image:
    return image[..., 0] if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def _brightness(image: Image, factor: float) -> Image:
    return _mapped(image, factor, 0.0)


def _contrast(image: Image, factor: float) -> Image:
    mean = float(_grey(image).mean())
    return _mapped(image, factor, float(int(mean + 0.5)) if factor == 0 else mean * (1 - factor))


def _saturation(image: Image, factor: float) -> Image:
    if image.shape[2] == 1:
        return image
    grey = cv2.cvtColor(_grey(image), cv2.COLOR_GRAY2RGB)
    out: Image = cv2.addWeighted(image, factor, grey, 1 - factor, 0)
    return out


def _hue(image: Image, shift: float) -> Image:
    if image.shape[2] == 1 or shift == 0:
        return image
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    turned = np.mod(np.arange(256, dtype=np.int16) + 180 * shift, 180).astype(np.uint8)
    hsv[..., 0] = cv2.LUT(np.ascontiguousarray(hsv[..., 0]), turned)
    out: Image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return out


@dataclass(frozen=True)
class TruncatingJitter(ColorJitter):
    """``color_jitter`` of albumentations."""

    adjust: ClassVar[tuple[Callable[[Image, float], Image], ...]] = (
        _brightness,
        _contrast,
        _saturation,
        _hue,
    )


@dataclass(frozen=True)
class BrightnessContrast(Pixels):
    """Random factor and offset; ``by_mean``: the offset is a share of the image's mean, else of white."""

    brightness: tuple[float, float]
    contrast: tuple[float, float]
    by_mean: bool
    shows: ClassVar[str] = "RandomBrightnessContrast"
    draws: ClassVar[int] = 2

    @property
    def random(self) -> bool:
        """Unless both are single values."""
        return self.brightness[0] < self.brightness[1] or self.contrast[0] < self.contrast[1]

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Factor and offset of each row."""
        bounds = np.array([self.contrast, self.brightness])
        pairs: list[Any] = (bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * numbers + (1.0, 0.0)).tolist()
        return pairs

    def apply(self, image: Image, parameters: Any) -> Image:
        """The image with its factor and offset."""
        factor, offset = parameters
        return _mapped(image, factor, offset * (float(image.mean()) if self.by_mean else 255.0))


@dataclass(frozen=True)
class SizedBlur(Pixels):
    """A Gaussian of random ``sigma`` and size, from ``kernel`` and made odd; 0 stands for 3.5 sigma on each side."""

    kernel: tuple[int, int]
    sigma: tuple[float, float]
    shows: ClassVar[str] = "GaussianBlur"
    draws: ClassVar[int] = 2

    @property
    def random(self) -> bool:
        """Unless both are single values."""
        return self.kernel[0] < self.kernel[1] or self.sigma[0] < self.sigma[1]

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Sigma and size of each row."""
        (low, high), (least, most) = self.sigma, self.kernel
        sigmas = (low + (high - low) * numbers[:, 0]).tolist()
        sizes = (least + np.floor(numbers[:, 1] * (most - least + 1)).astype(int)).tolist()
        return list(zip(sigmas, sizes, strict=True))

    def apply(self, image: Image, parameters: Any) -> Image:
        """Blur; the border is mirrored without its outermost pixel."""
        sigma, size = parameters
        half = (size or int(sigma * 3.5) * 2 + 1) // 2
        line = np.exp(-0.5 * (np.arange(-half, half + 1) / sigma) ** 2)
        line /= line.sum()
        return with_channels(cv2.sepFilter2D(image, -1, line, line), image.shape[2])
