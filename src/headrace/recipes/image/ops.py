"""Every image step, and the decoding of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.core.errors import OptionError
from headrace.recipes.image.annotations import boxes, mask
from headrace.recipes.image.crops import pad, random_crop
from headrace.recipes.image.geometry import (
    center_crop,
    horizontal_flip,
    random_resized_crop,
    resize,
    vertical_flip,
)
from headrace.recipes.image.mixing import cutmix, mixup, one_of
from headrace.recipes.image.nested import random_apply, random_choice
from headrace.recipes.image.pillow import (
    autocontrast,
    equalize,
    invert,
    posterize,
    rotation,
    sharpness,
    solarize,
)
from headrace.recipes.image.pixels import color_jitter, gaussian_blur, grayscale
from headrace.recipes.image.policies import auto_augment, rand_augment, trivial_augment
from headrace.recipes.image.rows import layout, normalise, random_erasing, to_float
from headrace.recipes.image.rowspec import MAX_PIXELS
from headrace.recipes.image.warps import affine, perspective
from headrace.recipes.op import Op, Size

_CHANNELS = {"RGB": 3, "L": 1}


@dataclass(frozen=True)
class Decode(Op):
    """See ``decode``."""

    mode: str
    max_pixels: int
    upright: bool = True
    shows: ClassVar[str] = "image.decode"

    @property
    def size(self) -> Size:
        """Height and width are known when an image is read; channels from the mode."""
        return Size(None, None, _CHANNELS[self.mode])

    def check(self, width: int, height: int) -> None:
        """Refuse an image that is too large."""
        if width * height > self.max_pixels:
            raise ValueError(
                f"the image has {width} x {height} pixels, and at most {self.max_pixels} are allowed; "
                "pass decode(max_pixels=...) if it is meant to be so large"
            )


def decode(mode: str = "RGB", *, max_pixels: int = MAX_PIXELS, upright: bool = True) -> Decode:
    """Decode JPEG, PNG, WebP, BMP, TIFF and PNM images to uint8, turned upright as their EXIF data says.

    ``mode``: ``"RGB"`` for three channels, ``"L"`` for one of grey. JPEG images are read only as far, and only
    at the resolution, that the crops and resizes after it need. ``upright=False``: images as they are stored,
    whatever EXIF says, and other formats than JPEG by Pillow: what torchvision's loaders give.
    """
    if mode not in _CHANNELS:
        raise OptionError(f"decode(mode={mode!r}): expected 'RGB' or 'L'")
    if max_pixels <= 0:
        raise OptionError(f"decode(max_pixels={max_pixels}): must be positive")
    return Decode(mode, int(max_pixels), bool(upright))


normalize = normalise

__all__ = [
    "affine",
    "auto_augment",
    "autocontrast",
    "boxes",
    "center_crop",
    "color_jitter",
    "cutmix",
    "decode",
    "equalize",
    "gaussian_blur",
    "grayscale",
    "horizontal_flip",
    "invert",
    "layout",
    "mask",
    "mixup",
    "normalise",
    "normalize",
    "one_of",
    "pad",
    "perspective",
    "posterize",
    "rand_augment",
    "random_apply",
    "random_choice",
    "random_crop",
    "random_erasing",
    "random_resized_crop",
    "resize",
    "rotation",
    "sharpness",
    "solarize",
    "to_float",
    "trivial_augment",
    "vertical_flip",
]
