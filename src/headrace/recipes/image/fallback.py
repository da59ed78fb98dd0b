"""The image kernels in Python, with OpenCV and simplejpeg: for machines where the C kernels are not built.

Slower, and otherwise the same: colour boxes of whole pixels go through cv2.resize and may differ by a level or
two; every other box is computed with the C kernels' own arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.recipes.image import formats
from headrace.recipes.image.opencv import cv2
from headrace.recipes.image.rows import from_storage, to_storage
from headrace.recipes.image.rowspec import (
    STATUS_BAD_JOB,
    STATUS_LIBJPEG,
    STATUS_MISMATCH,
    STATUS_NO_MEMORY,
    STATUS_NOT_NATIVE,
    STATUS_TOO_LARGE,
    STATUS_TOO_MANY_SCANS,
    STATUS_TRUNCATED,
    Blob,
    RowSpec,
)

_PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "cubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_THROUGH_OPENCV = {"area": cv2.INTER_AREA, "cubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4}


class _Failed(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def probe_many(blobs: Sequence[Blob]) -> NDArray[np.int32]:
    """See ``kernels.probe_many``."""
    rows = [formats.jpeg_header(blob)[:5] for blob in blobs]
    return np.array(rows, np.int32).reshape(len(rows), 5)


def _header(blob: Blob, as_stored: bool) -> formats.Header:
    header = formats.jpeg_header(blob)
    if not as_stored:
        return header
    width, height = header.width, header.height
    if header.orientation in formats.TRANSPOSES:
        width, height = height, width
    return header._replace(width=width, height=height, orientation=1)


def _decode(blob: Blob, channels: int, scale: int, max_pixels: int, as_stored: bool) -> NDArray[np.uint8]:
    header = _header(blob, as_stored)
    if header.too_short(len(memoryview(blob).cast("B"))):
        raise _Failed(STATUS_TRUNCATED)
    if header.kind:
        raise _Failed(STATUS_NOT_NATIVE)
    if header.width * header.height > max_pixels:
        raise _Failed(STATUS_TOO_LARGE)
    try:
        return formats.decode_jpeg(blob, header, channels, scale=scale, max_pixels=max_pixels)
    except ValueError as error:
        text = str(error)
        if text.startswith("truncated"):
            raise _Failed(STATUS_TRUNCATED) from error
        raise _Failed(STATUS_TOO_MANY_SCANS if text.endswith("scans") else STATUS_LIBJPEG) from error
    except MemoryError:
        raise _Failed(STATUS_NO_MEMORY) from None


def decode_many(
    blobs: Sequence[Blob],
    outs: Sequence[NDArray[np.uint8]],
    origins: NDArray[np.int32] | None,
    max_pixels: int,
    as_stored: bool = False,
) -> NDArray[np.int32]:
    """See ``kernels.decode_many``."""
    status = np.zeros(len(blobs), np.int32)
    for i, (blob, out) in enumerate(zip(blobs, outs, strict=True)):
        try:
            image = _decode(blob, out.shape[2], 1, max_pixels, as_stored)
            x, y = (0, 0) if origins is None else (int(v) for v in origins[i])
            part = image[y : y + out.shape[0], x : x + out.shape[1]]
            if min(x, y) < 0 or part.shape != out.shape or (origins is None and image.shape != out.shape):
                raise _Failed(STATUS_MISMATCH)
            out[:] = part
        except _Failed as failed:
            status[i] = failed.status
    return status


def _span(at: float, size: float, low: int, high: int, extent: int, scale: int, mirrored: bool) -> _Span:
    scaled = -(-extent // scale)
    # the last scaled pixel may stand for fewer than `scale` pixels; stored mirrored, it comes first
    shift = scaled - extent / scale if mirrored else 0.0
    return (
        at / scale + shift,
        size / scale,
        math.ceil(low / scale + shift) if low > 0 else 0,
        math.floor(high / scale + shift) if high < extent else scaled,
    )


_Span = tuple[float, float, int, int]


def _taps(
    span: _Span, out: int, nearest: bool
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int32]]:
    at, size, low, high = span
    positions = at + (np.arange(out) + 0.5) * (size / out) - (0.0 if nearest else 0.5)
    positions = np.clip(positions, low, high - 1)
    first = positions.astype(np.intp)
    weight = np.zeros(out, np.int32)
    if not nearest:
        weight = np.minimum(((positions - first) * 32768.0 + 0.5).astype(np.int32), 32767)
    return first, np.where(weight > 0, first + 1, first), weight


def _blend(a: NDArray[np.int32], b: NDArray[np.int32], weight: NDArray[np.int32]) -> NDArray[np.int32]:
    return a + (((b - a) * weight + (1 << 14)) >> 15)


def _sampled(image: NDArray[np.uint8], x: _Span, y: _Span, spec: RowSpec) -> NDArray[np.uint8]:
    """The C kernels' arithmetic, in numpy."""
    nearest = spec.interpolation == "nearest"
    left, right, across = _taps(x, spec.out_w, nearest)
    upper, lower, down = _taps(y, spec.out_h, nearest)
    first, last = int(upper[0]), int(lower[-1]) + 1
    part = image[first:last].astype(np.int32) << 7
    rows = _blend(part[:, left], part[:, right], across[None, :, None])
    pixels = _blend(rows[upper - first], rows[lower - first], down[:, None, None])
    return ((pixels + 64) >> 7).astype(np.uint8)


def _through_opencv(
    image: NDArray[np.uint8], x: _Span, y: _Span, spec: RowSpec, flag: int
) -> NDArray[np.uint8]:
    """cv2.resize of the box, rounded to whole pixels; what sticks out of the clamp repeats its edge."""
    x0, y0 = round(x[0]), round(y[0])
    x1, y1 = max(x0 + 1, round(x[0] + x[1])), max(y0 + 1, round(y[0] + y[1]))
    inside = image[max(y0, y[2]) : min(y1, y[3]), max(x0, x[2]) : min(x1, x[3])]
    if inside.size == 0:  # the box lies beside the clamp, so all of it is one repeated edge
        columns, rows = np.clip(np.arange(x0, x1), x[2], x[3] - 1), np.clip(np.arange(y0, y1), y[2], y[3] - 1)
        inside = image[rows[:, None], columns[None, :]]
    else:
        beyond = (max(0, y[2] - y0), max(0, y1 - y[3]), max(0, x[2] - x0), max(0, x1 - x[3]))
        if any(beyond):
            inside = cv2.copyMakeBorder(inside, *beyond, cv2.BORDER_REPLICATE)
    resized = cv2.resize(inside, (spec.out_w, spec.out_h), interpolation=flag)
    return np.asarray(resized).reshape(spec.out_h, spec.out_w, image.shape[2])


def _through_pillow(image: NDArray[np.uint8], x: _Span, y: _Span, spec: RowSpec) -> NDArray[np.uint8]:
    """Pillow's resize of the box, within the clamp: across first, as the C kernels; Pillow itself goes down first at
    times, and rounds elsewhere."""
    part = np.ascontiguousarray(image[y[2] : y[3], x[2] : x[3]])
    picture = Image.fromarray(part if part.shape[2] == 3 else part[:, :, 0])
    (left, right), (top, bottom) = (_inside(span) for span in (x, y))
    way = _PILLOW[spec.interpolation]
    picture = picture.resize((spec.out_w, picture.height), way, box=(left, 0, right, picture.height))
    picture = picture.resize((spec.out_w, spec.out_h), way, box=(0, top, spec.out_w, bottom))
    return np.asarray(picture).reshape(spec.out_h, spec.out_w, image.shape[2])


def _inside(span: _Span) -> tuple[float, float]:
    """Where a box begins and ends, counted from its clamp, as far as it lies in that: Pillow has nothing beyond."""
    at, size, low, high = span
    first = min(max(at - low, 0.0), high - low - 1e-3)
    return first, min(max(at + size - low, first + 1e-3), float(high - low))


def _scale_of(job: Any, spec: RowSpec) -> int:
    if not spec.dct_scaling or spec.antialias or spec.interpolation == "nearest" or not job["is_jpeg"]:
        return 1
    for scale in (8, 4, 2):
        x, y = _spans(job, scale)
        if x[1] >= spec.out_w and y[1] >= spec.out_h and x[2] < x[3] and y[2] < y[3]:
            return scale
    return 1


def _spans(job: Any, scale: int) -> tuple[_Span, _Span]:
    box, clamp = job["box"].tolist(), job["clamp"].tolist()
    turn = int(job["orientation"]) if job["is_jpeg"] else 1
    width, height = int(job["width"]), int(job["height"])
    return (
        _span(box[0], box[2], clamp[0], clamp[2], width, scale, turn in formats.MIRRORS_X),
        _span(box[1], box[3], clamp[1], clamp[3], height, scale, turn in formats.MIRRORS_Y),
    )


def _is_whole(x: _Span, y: _Span) -> bool:
    """Whether the box is exactly its clamp, which is what cv2.resize of a crop computes."""
    return (*x[:2], *y[:2]) == (x[2], x[3] - x[2], y[2], y[3] - y[2])


def _check(job: Any) -> None:
    x0, y0, x1, y1 = job["clamp"].tolist()
    box = job["box"]
    sound = np.isfinite(box).all() and box[2] > 0 and box[3] > 0 and 0 <= x0 < x1 and 0 <= y0 < y1
    if not (sound and x1 <= job["width"] and y1 <= job["height"]):
        raise _Failed(STATUS_BAD_JOB)


def _pixels(source: Any, job: Any, spec: RowSpec) -> NDArray[np.uint8]:
    """One row as uint8 (height, width, channels), before flips."""
    _check(job)
    scale = _scale_of(job, spec)
    if job["is_jpeg"]:
        found = _header(source, spec.as_stored)[:4]
        image = _decode(source, spec.channels, scale, spec.max_pixels, spec.as_stored)
        if tuple(found) != (0, job["width"], job["height"], job["orientation"]):
            raise _Failed(STATUS_MISMATCH)
    else:
        image = source
        if image.shape[:2] != (job["height"], job["width"]):
            raise _Failed(STATUS_MISMATCH)
    x, y = _spans(job, scale)
    if image.shape[2] > spec.channels:
        # Pillow's and libjpeg's weights for grey
        grey = image.astype(np.int32) @ np.array([19595, 38470, 7471], np.int32)
        image = ((grey + 32768) >> 16).astype(np.uint8)[:, :, None]
    if spec.antialias:
        pixels = _through_pillow(image, x, y, spec)
    elif spec.interpolation in _THROUGH_OPENCV:
        pixels = _through_opencv(image, x, y, spec, _THROUGH_OPENCV[spec.interpolation])
    elif _is_whole(x, y) and spec.interpolation == "bilinear" and image.shape[2] == 3:
        # colour only: on some machines OpenCV 5 gets edges of one-channel images wrong
        pixels = _through_opencv(image, x, y, spec, cv2.INTER_LINEAR)
    else:
        pixels = _sampled(image, x, y, spec)
    return pixels if pixels.shape[2] == spec.channels else np.repeat(pixels, spec.channels, axis=2)


def finish(pixels: NDArray[np.uint8], spec: RowSpec, out: NDArray[Any]) -> None:
    """Write uint8 pixels (height, width, channels) as a row: layout, scale and bias, dtype."""
    arranged: NDArray[Any] = pixels.transpose(2, 0, 1) if spec.layout == "CHW" else pixels
    if spec.dtype == "uint8":
        out[:] = arranged
        return
    shape = (-1, 1, 1) if spec.layout == "CHW" else (1, 1, -1)
    scale = np.array(spec.scale[: spec.channels], np.float32).reshape(shape)
    bias = np.array(spec.bias[: spec.channels], np.float32).reshape(shape)
    values = arranged.astype(np.float32) * scale + bias
    if spec.dtype == "bfloat16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        out[:] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        with np.errstate(over="ignore"):
            out[:] = values


def rows_many(
    sources: Sequence[Any], jobs: NDArray[Any], out: NDArray[Any], spec: RowSpec
) -> NDArray[np.int32]:
    """See ``kernels.rows_many``."""
    status = np.zeros(len(sources), np.int32)
    for i, (source, job) in enumerate(zip(sources, jobs, strict=True)):
        try:
            pixels = _pixels(source, job, spec)
        except _Failed as failed:
            status[i] = failed.status
            continue
        if job["hflip"]:
            pixels = pixels[:, ::-1]
        if job["vflip"]:
            pixels = pixels[::-1]
        finish(pixels, spec, out[i])
    return status


def blend_rows(rows: NDArray[Any], before: NDArray[Any], weight: float, dtype: str) -> None:
    """See ``kernels.blend_rows``."""
    mine: Any = round(weight * 65536)
    rest: Any = 65536 - mine
    if dtype != "uint8":
        kind = np.float64 if dtype == "float64" else np.float32
        mine, rest = kind(weight), kind(1 - weight)
    for at in range(len(rows) - 1, -1, -1):
        row, other = (from_storage(part, dtype) for part in (rows[at], rows[at - 1] if at else before))
        if dtype == "uint8":
            rows[at] = (row.astype(np.uint32) * mine + other.astype(np.uint32) * rest + 32768) >> 16
        else:
            rows[at] = to_storage(row.astype(kind) * mine + other.astype(kind) * rest, dtype)
