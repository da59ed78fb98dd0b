"""Images moved, turned, sheared and seen from elsewhere: by Pillow, as torchvision does it on Pillow's images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.pillow import ROTATIONS, arrayed, fill_of, pictured, way_of
from headrace.recipes.image.pixels import Image, Pixels, Sometimes
from headrace.recipes.op import Numbers, as_fill, check_probability, check_range

Range = tuple[float, float]


def _warped(image: Image, kind: str, numbers: Any, step: Any) -> Image:
    """Where each pixel comes from is a function of its place, given by its ``numbers``."""
    from PIL import Image as Pillow

    picture, channels = pictured(image), image.shape[2]
    fill = fill_of(step.fill, channels)
    way = way_of(step.interpolation)
    return arrayed(
        picture.transform(picture.size, Pillow.Transform[kind], numbers, way, fillcolor=fill), channels
    )


@dataclass(frozen=True)
class Affine(Pixels):
    """See ``affine``."""

    degrees: Range
    translate: Range
    scale: Range
    shear: tuple[Range, Range]
    interpolation: str
    fill: tuple[int, ...]
    center: tuple[float, float] | None
    shows: ClassVar[str] = "affine"
    draws: ClassVar[int] = 6

    @property
    def random(self) -> bool:
        """Unless everything is a single value."""
        ranges = (self.degrees, self.scale, *self.shear)
        return any(self.translate) or any(low < high for low, high in ranges)

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Angle, translation as a share of the sides, scale and shears of each row."""
        across, down = self.translate
        ranges = np.array([self.degrees, (-across, across), (-down, down), self.scale, *self.shear])
        rows: list[Any] = (ranges[:, 0] + (ranges[:, 1] - ranges[:, 0]) * numbers).tolist()
        return rows

    def apply(self, image: Image, parameters: Any) -> Image:
        """Around the middle, or ``center``."""
        height, width, _ = image.shape
        angle, across, down, scale, *shears = parameters
        x, y = self.center or (width * 0.5, height * 0.5)
        turn, first, second = (math.radians(degrees) for degrees in (angle, *shears))
        # Turned, sheared down, sheared across; its inverse says where pixels come from (its determinant is 1).
        a, c = math.cos(turn - second) / math.cos(second), math.sin(turn - second) / math.cos(second)
        b, d = -a * math.tan(first) - math.sin(turn), -c * math.tan(first) + math.cos(turn)
        a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
        left, top = x + round(across * width), y + round(down * height)
        matrix = (a, b, x - a * left - b * top, c, d, y - c * left - d * top)
        return _warped(image, "AFFINE", matrix, self)


def affine(
    degrees: float | Range,
    *,
    translate: Range | None = None,
    scale: Range | None = None,
    shear: float | Sequence[float] | None = None,
    interpolation: str = "nearest",
    fill: int | tuple[int, ...] = 0,
    center: tuple[float, float] | None = None,
) -> Affine:
    """Turn, shift, scale and shear by random amounts; the size stays.

    ``degrees``: as for ``rotation``, but clockwise. ``translate``: the most, as shares of width and height.
    ``scale``: a range of factors. ``shear``: degrees along x from ``-shear`` to ``shear``, or a range of them, or two
    ranges as four numbers, for x and y.
    """
    op = "affine"
    _check_way(op, interpolation)
    shift = translate or (0.0, 0.0)
    if len(shift) != 2 or not all(0 <= share <= 1 for share in shift):
        raise OptionError(f"{op}(translate={translate!r}): shares of width and height, from 0 to 1")
    if isinstance(shear, int | float):
        shear = (-abs(shear), abs(shear))
    angles = tuple(shear or (0.0, 0.0))
    if len(angles) not in (2, 4):
        raise OptionError(f"{op}(shear={shear!r}): expected degrees: one number, two or four")
    ranges = [
        check_range(op, "shear", pair, low=-math.inf) for pair in (angles[:2], angles[2:] or (0.0, 0.0))
    ]
    turns = (-abs(degrees), abs(degrees)) if isinstance(degrees, int | float) else degrees
    return Affine(
        check_range(op, "degrees", turns, low=-math.inf),
        (float(shift[0]), float(shift[1])),
        check_range(op, "scale", scale or (1.0, 1.0), low=1e-6),
        (ranges[0], ranges[1]),
        interpolation,
        as_fill(op, fill),
        None if center is None else (float(center[0]), float(center[1])),
    )


@dataclass(frozen=True)
class Perspective(Sometimes):
    """See ``perspective``."""

    distortion: float
    p: float
    interpolation: str
    fill: tuple[int, ...]
    shows: ClassVar[str] = "perspective"
    draws: ClassVar[int] = 9

    @property
    def random(self) -> bool:
        """Unless it never happens."""
        return self.p > 0

    def parameters(self, numbers: Numbers) -> list[Any]:
        """Eight numbers that say where corners go."""
        hits = (numbers[:, 0] < self.p).tolist()
        return [row if hit else None for hit, row in zip(hits, numbers[:, 1:].tolist(), strict=True)]

    def apply(self, image: Image, parameters: Any) -> Image:
        """Corners, clockwise from the upper left, to places further inside."""
        height, width, _ = image.shape
        most = np.array([int(self.distortion * (width // 2)) + 1, int(self.distortion * (height // 2)) + 1])
        moves = np.floor(np.reshape(parameters, (4, 2)) * most)
        right, below = np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1])
        far = np.stack([right * (width - most[0]), below * (height - most[1])], axis=1)
        return _warped(
            image,
            "PERSPECTIVE",
            _view(far + moves, np.stack([right * (width - 1), below * (height - 1)], axis=1)),
            self,
        )


def _view(places: Any, corners: Any) -> Any:
    """The eight numbers of the mapping that shows ``corners`` at ``places``."""
    rows, ones, zeros = [], np.ones(4), np.zeros(4)
    x, y = places.T
    for axis, goal in enumerate(corners.T):
        own = [x, y, ones]
        blank = [zeros] * 3
        rows.append(
            np.stack(
                [*(own if axis == 0 else blank), *(blank if axis == 0 else own), -goal * x, -goal * y], 1
            )
        )
    found = np.linalg.solve(np.concatenate(rows), corners.T.ravel())
    return found.astype(np.float32).tolist()


def perspective(
    distortion: float = 0.5,
    p: float = 0.5,
    *,
    interpolation: str = "bilinear",
    fill: int | tuple[int, ...] = 0,
) -> Perspective:
    """Move the corners inwards by random shares of half the sides, ``distortion`` at most; with probability ``p``."""
    op = "perspective"
    check_probability(op, p)
    _check_way(op, interpolation)
    if not 0 <= distortion <= 1:
        raise OptionError(f"{op}({distortion!r}): a share, from 0 to 1")
    return Perspective(float(distortion), float(p), interpolation, as_fill(op, fill))


def _check_way(op: str, interpolation: str) -> None:
    if interpolation not in ROTATIONS:
        raise OptionError(f"{op}(interpolation={interpolation!r}): expected nearest, bilinear or bicubic")
