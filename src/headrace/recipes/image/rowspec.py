"""What the image kernels are asked for: jobs and row specs, and the statuses they answer with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.core.errors import OptionError

Blob: TypeAlias = Any
"""Encoded bytes: anything with a contiguous buffer."""

Layout: TypeAlias = Literal["HWC", "CHW"]
Interpolation: TypeAlias = Literal["bilinear", "nearest", "area", "cubic", "lanczos"]

MAX_PIXELS = 180_000_000
"""Images of more pixels are refused unless the caller allows them; small files can claim to be huge."""

PROBE = ("kind", "width", "height", "orientation", "components")
"""The columns of what ``probe_many`` returns."""

JOB = np.dtype(
    [
        ("is_jpeg", np.int32),
        ("width", np.int32),
        ("height", np.int32),
        ("orientation", np.int32),
        ("box", np.float64, (4,)),
        ("clamp", np.int32, (4,)),
        ("hflip", np.uint8),
        ("vflip", np.uint8),
    ],
    align=True,
)
"""One row to make. ``width``, ``height``: the source as shown, after orientation; ``box``: x, y, width and
height in its pixels, mapped onto the whole output; ``clamp``: x0, y0, x1, y1, outside of which nothing is read."""

STATUS_TRUNCATED = 1
STATUS_TOO_LARGE = 2
STATUS_NOT_NATIVE = 3
STATUS_MISMATCH = 4
STATUS_BAD_JOB = 5
STATUS_NO_MEMORY = 6
STATUS_TOO_MANY_SCANS = 7
STATUS_LIBJPEG = 100
"""From here on: libjpeg failed; its message code is added."""

LAYOUTS = ("HWC", "CHW")
DTYPES = ("uint8", "float32", "float16", "bfloat16")
BLENDED = (*DTYPES, "float64")
"""What rows can be blended, in the order of the C kernels."""
INTERPOLATIONS = ("bilinear", "nearest", "area", "cubic", "lanczos")
METHODS = ("bilinear", "nearest", "smooth bilinear", "smooth cubic", "smooth lanczos")
"""Those of the C kernels, in their order."""
ANTIALIASED = ("bilinear", "cubic", "lanczos")
ANTIALIASING = "antialiasing is for bilinear, cubic and lanczos"
LARGEST_SIDE = 1 << 15


@dataclass(frozen=True)
class RowSpec:
    """The rows that ``rows_many`` writes.

    Float outputs are ``pixel * scale + bias`` per channel, of the pixel rounded to uint8; bfloat16 is stored
    as uint16. ``bilinear`` has half-pixel centres and no antialiasing of its own, as OpenCV's INTER_LINEAR;
    ``nearest`` takes the pixel under the centre. The others go through OpenCV on the box rounded to whole
    pixels, and are slower. ``antialias``: bilinear, cubic and lanczos as Pillow has them, but for rounding, with
    filters that widen as images shrink; nothing is decoded at a lower resolution then. ``dct_scaling``: a JPEG whose
    box is at least 2, 4 or 8 times as large as the output in both directions is decoded at that fraction of its
    size, which is faster and antialiases. ``as_stored``: jobs are about JPEGs as they are stored, however EXIF would
    turn them.
    """

    out_h: int
    out_w: int
    channels: int = 3
    layout: Layout = "HWC"
    dtype: str = "uint8"
    scale: Sequence[float] = (1.0, 1.0, 1.0)
    bias: Sequence[float] = (0.0, 0.0, 0.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    dct_scaling: bool = True
    as_stored: bool = False
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if not (0 < self.out_h <= LARGEST_SIDE and 0 < self.out_w <= LARGEST_SIDE):
            raise OptionError(f"an output of {self.out_w}x{self.out_h} pixels; sides are 1 to {LARGEST_SIDE}")
        if self.channels not in (1, 3):
            raise OptionError(f"channels={self.channels}; 1 and 3 are possible")
        for name, value, possible in (
            ("layout", self.layout, LAYOUTS),
            ("dtype", self.dtype, DTYPES),
            ("interpolation", self.interpolation, INTERPOLATIONS),
        ):
            if value not in possible:
                raise OptionError(f"{name}={value!r}; possible are {', '.join(possible)}")
        if self.antialias and self.interpolation not in ANTIALIASED:
            raise OptionError(f"antialias=True with interpolation={self.interpolation!r}; {ANTIALIASING}")
        for name in ("scale", "bias"):
            values = tuple(float(v) for v in getattr(self, name))
            if len(values) == 1:
                values *= 3
            if len(values) != 3 or not all(map(math.isfinite, values)):
                raise OptionError(f"{name}={getattr(self, name)!r}; one finite number, or three, are needed")
            object.__setattr__(self, name, values)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one row."""
        if self.layout == "HWC":
            return (self.out_h, self.out_w, self.channels)
        return (self.channels, self.out_h, self.out_w)

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype in which rows lie in memory."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def method(self) -> int:
        """How the C kernels resample; -1: they cannot."""
        name = f"smooth {self.interpolation}" if self.antialias else self.interpolation
        return METHODS.index(name) if name in METHODS else -1

    @cached_property
    def packed(self) -> tuple[float, ...]:
        """The spec as the C kernels take it."""
        return (
            self.out_h,
            self.out_w,
            self.channels,
            int(self.layout == "CHW"),
            DTYPES.index(self.dtype),
            self.method,
            int(self.dct_scaling),
            int(self.as_stored),
            *self.scale,
            *self.bias,
            self.max_pixels,
        )
