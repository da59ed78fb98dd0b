"""Masks and boxes that go with an image: they are moved by the very framings of its crops, resizes and flips.

A stage that resamples notes its framings (``Track``). A mask is then resampled by them to the nearest pixel,
and boxes are mapped through them, so that no random number is drawn twice and nothing can differ.
"""

from __future__ import annotations

import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.recipes.image.framing import Axis, Framing
from headrace.recipes.image.rowspec import MAX_PIXELS
from headrace.recipes.op import Op

_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
"""Of Pillow: images of one channel of whole numbers. A palette's colours are left out, its numbers are the labels."""
_DTYPES = ("uint8", "int16", "int32", "int64")
_LARGEST = 1 << 30
"""Bytes of a mask's file, at most."""


class Shown(NamedTuple):
    """What one stage showed of the image of a row: row ``at`` of its framings, and how large the image was before."""

    framing: Framing
    at: int
    height: int
    width: int


class Track:
    """How stages moved what rows show, in their order. A stage may work on some of the rows alone."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Shown]] = {}

    def note(self, framing: Framing, rows: Sequence[int], height: NDArray[Any], width: NDArray[Any]) -> None:
        """A stage shows these framings of so large images, for these rows of an order."""
        for at, (row, *size) in enumerate(zip(rows, height.tolist(), width.tolist(), strict=True)):
            self._rows.setdefault(row, []).append(Shown(framing, at, *size))

    def of(self, row: int) -> Sequence[Shown]:
        """What was done to a row."""
        return self._rows[row]


class Follower(Op, ABC):
    """A part of the target that follows the geometry of its image. ``key``: its name in the target; "": all of it."""

    key: str

    def follow(self, target: Any, shown: Sequence[Shown], data: Any = None) -> Any:
        """The target with this part moved. ``data``: what is in the file that it names, where that was read."""
        if self.key and (not isinstance(target, Mapping) or self.key not in target):
            raise ValueError(f"{self}: the target is no dict with an entry {self.key!r}: {target!r:.200}")
        return self.moved(target, shown, data)

    @abstractmethod
    def moved(self, target: Any, shown: Sequence[Shown], data: Any) -> Any:
        """See ``follow``."""


# -- masks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mask(Follower):
    """See ``mask``."""

    key: str
    fill: int
    dtype: str
    shows: ClassVar[str] = "mask"

    def moved(self, target: Any, shown: Sequence[Shown], data: Any) -> Any:
        """Read the mask if it is a path, and show of it what is shown of the image."""
        found = target[self.key] if self.key else target
        labels = found if isinstance(found, np.ndarray) else read_mask(found, data)
        size = (shown[0].height, shown[0].width)
        if labels.shape != size:
            raise ValueError(f"the mask is of {labels.shape} pixels, and the image of {size} (height, width)")
        if not np.can_cast(labels.dtype, self.dtype):
            kept = np.iinfo(self.dtype)
            low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
            if labels.dtype.kind not in "iu" or not kept.min <= low <= high <= kept.max:
                raise ValueError(f"labels {low} to {high} are no {self.dtype}; pass mask(dtype=...)")
        for stage in shown:
            labels = nearest(labels, stage.framing, stage.at, self.fill)
        labels = np.ascontiguousarray(labels, self.dtype)
        return {**target, self.key: labels} if self.key else labels


def mask(key: str = "", *, fill: int = 0, dtype: str = "uint8") -> Mask:
    """A mask of labels that follows its image: the target is its path (a PNG of one channel) or an array.

    ``key``: where targets are dicts, the entry that holds it. ``fill``: the label of what is padded. ``dtype``: of
    the labels that are delivered.
    """
    if dtype not in _DTYPES:
        raise OptionError(f"mask(dtype={dtype!r}): expected one of {', '.join(_DTYPES)}")
    if not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        raise OptionError(f"mask(fill={fill}) does not fit {dtype}")
    return Mask(key, int(fill), dtype)


def read_mask(path: Any, data: Any = None) -> NDArray[Any]:
    """The labels in an image file of one channel: of a palette, its numbers. ``data``: its bytes, if known."""
    from PIL import Image

    if not isinstance(path, str | bytes | os.PathLike):
        raise ValueError(f"a mask is the path of an image, or an array, and not {path!r:.200}")
    if isinstance(data, BaseException):
        raise data
    try:
        with Image.open(io.BytesIO(_read(path) if data is None else data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"it has more than {MAX_PIXELS} pixels")
            if image.format == "JPEG" or image.mode not in _MODES:
                raise ValueError(
                    f"a {image.format} image of mode {image.mode}; labels are a PNG of one channel"
                )
            return np.asarray(image)
    except Exception as error:
        raise ValueError(f"mask {os.fsdecode(path)}: {error}") from error


def _read(path: Any) -> bytes:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
        raise ValueError(f"it is no file, or one of more than {_LARGEST >> 30} GiB")
    with open(path, "rb") as file:
        return file.read()


def nearest(labels: NDArray[Any], framing: Framing, row: int, fill: int) -> NDArray[Any]:
    """What a row shows of its labels: the one under the centre of each pixel, as the image kernels' ``nearest``."""
    down, across = _places(framing.y, row), _places(framing.x, row)
    part: NDArray[Any] = labels[down][:, across]
    full = (int(framing.y.size[row]), int(framing.x.size[row]))
    if part.shape == full:
        return part
    out = np.full(full, fill, np.promote_types(labels.dtype, np.min_scalar_type(fill)))
    top, left = (0 if axis.inset is None else int(axis.inset[row]) for axis in (framing.y, framing.x))
    out[top : top + len(down), left : left + len(across)] = part
    return out


def _places(axis: Axis, row: int) -> NDArray[np.int64]:
    """Where in the source the pixels of a row are taken from, along one axis."""
    start, span, count = axis.start[row], axis.span[row], int(axis.body[row])
    low = start if axis.low is None else axis.low[row]
    high = start + span if axis.high is None else axis.high[row]
    at = start + (np.arange(count) + 0.5) * (span / max(count, 1))
    places: NDArray[np.int64] = np.clip(at, int(low), int(high) - 1).astype(np.int64)
    return places[::-1] if axis.mirrored is not None and axis.mirrored[row] else places


# -- boxes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boxes(Follower):
    """See ``boxes``."""

    key: str
    per_box: tuple[str, ...]
    min_size: float
    shows: ClassVar[str] = "boxes"

    def moved(self, target: Any, shown: Sequence[Shown], data: Any) -> Any:
        """Map the boxes, cut them off at the edges, and drop what has become too small."""
        found = np.asarray(target[self.key], np.float64).reshape(-1, 4)
        others = {name: np.asarray(target[name]) for name in self.per_box if name in target}
        for name, values in others.items():
            if len(values) != len(found):
                raise ValueError(
                    f"{len(found)} {self.key} and {len(values)} {name}; there must be one for each box"
                )
        for stage in shown:
            found = mapped(found, stage.framing, stage.at)
        width, height = found[:, 2] - found[:, 0], found[:, 3] - found[:, 1]
        least = np.minimum(width, height)
        keep = (least > 0) & (least >= self.min_size)
        kept = {name: values[keep] for name, values in others.items()}
        return {**target, self.key: found[keep].astype(np.float32), **kept}


def boxes(key: str = "boxes", *, per_box: Sequence[str] = ("labels",), min_size: float = 1.0) -> Boxes:
    """Boxes that follow their image: an entry of the target of n x 4 numbers, left, top, right and bottom in pixels.

    They are cut off at the edges of what is shown. One that is narrower or lower than ``min_size`` pixels then, or
    empty, is dropped, together with its part of the entries that ``per_box`` names. How many are left varies, so
    batches are ``[images, targets]`` with targets in a list, one dict for each image.
    """
    names = (per_box,) if isinstance(per_box, str) else tuple(per_box)
    if not key or not all(isinstance(name, str) for name in names):
        raise OptionError(f"boxes({key!r}, per_box={per_box!r}): expected names of entries of the target")
    if not min_size >= 0:
        raise OptionError(f"boxes(min_size={min_size!r}): expected pixels, none or more")
    return Boxes(key, names, float(min_size))


def mapped(found: NDArray[np.float64], framing: Framing, row: int) -> NDArray[np.float64]:
    """Boxes as a row shows them, cut off at the edges of what it shows of its source."""
    left, right = _along(framing.x, row, found[:, 0], found[:, 2])
    top, bottom = _along(framing.y, row, found[:, 1], found[:, 3])
    return np.stack([left, top, right, bottom], axis=1)


def _along(axis: Axis, row: int, first: NDArray[Any], second: NDArray[Any]) -> tuple[Any, Any]:
    body, span = float(axis.body[row]), float(axis.span[row])
    inset = 0.0 if axis.inset is None else float(axis.inset[row])
    scale = body / span if span > 0 else 0.0
    one, two = (np.clip((edge - axis.start[row]) * scale, 0, body) for edge in (first, second))
    if axis.mirrored is not None and axis.mirrored[row]:
        one, two = body - two, body - one
    return inset + one, inset + two
