"""The image kernels: many images per call, without the GIL; in C where that is built, in Python otherwise.

The C kernels use a libjpeg-turbo found at run time, of whichever interface (6.2, 7 or 8): ``HEADRACE_LIBJPEG`` if
set, else the one inside Pillow's wheel, else the system's. ``HEADRACE_NATIVE=0`` chooses Python. ``describe()`` says
what is in use.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.recipes.image import rowspec
from headrace.recipes.image.rowspec import INTERPOLATIONS, JOB, MAX_PIXELS, PROBE, Blob, RowSpec

try:
    from headrace.recipes.image import _kernels
except ImportError as error:
    _kernels = None  # type: ignore[assignment]
    absent = str(error).startswith("cannot import name")
    _MISSING = "the C kernels are not built" if absent else f"the C kernels cannot be loaded ({error})"

if TYPE_CHECKING:
    from headrace.recipes.image.formats import Mode

__all__ = [
    "INTERPOLATIONS",
    "JOB",
    "LIBJPEG",
    "MAX_PIXELS",
    "NATIVE",
    "PROBE",
    "RowSpec",
    "Workspace",
    "blend_rows",
    "decode_any",
    "decode_many",
    "decode_stored",
    "describe",
    "load_libjpeg",
    "probe_many",
    "rows_many",
    "say_slow_path",
    "slow_path",
    "status_text",
]

_SWITCHED_OFF = "HEADRACE_NATIVE=0"

# 24x20 pixels, 4:2:0: blue above, red below.
_TRIAL = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxO"
    "UlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
    "T09PT09PT0//wAARCAAUABgDASIAAhEBAxEB/8QAFwABAQEBAAAAAAAAAAAAAAAAAAMCBf/EABcQAQADAAAAAAAAAAAAAAAAAAAC"
    "E1H/xAAXAQEBAQEAAAAAAAAAAAAAAAAABgEF/8QAGxEAAQUBAQAAAAAAAAAAAAAAAAEEFaHRUVL/2gAMAwEAAhEDEQA/AOILVxwr"
    "jjpzjfi1pkG49JeERauOBON+LWiDcekvDYCWKoAAP//Z"
)


def _candidates() -> Iterator[str]:
    """Paths of libjpegs to try, best first."""
    pillow = importlib.util.find_spec("PIL")  # found, not imported: that would cost start-up time
    if pillow is not None and pillow.origin is not None:
        bundled = Path(pillow.origin).parent.parent / "pillow.libs"
        yield from sorted(str(path) for path in bundled.glob("libjpeg*.so*"))
    # conda and some distributions keep it beside their Python, where the loader need not look
    yield from sorted(str(path) for path in Path(sys.base_prefix, "lib").glob("libjpeg.so.*"))
    yield from ("libjpeg.so.62", "libjpeg.so.8", "libjpeg.so.7")


def load_libjpeg(path: str) -> int:
    """Use this libjpeg for workspaces made from now on; returns its interface. OSError: it cannot be used."""
    library = ctypes.CDLL(path)
    try:
        calls = tuple(ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in _kernels.CALLS)
    except AttributeError as error:
        raise OSError(f"{path} is no libjpeg-turbo of version 1.5 or later: {error}") from None
    return _kernels.load(path, calls)


def _works() -> bool:
    """Whether the loaded libjpeg decodes a known image, whole and in part."""
    status = np.ones(2, np.int32)
    whole, part = np.zeros((20, 24, 3), np.uint8), np.zeros((3, 5, 3), np.uint8)
    origins = np.array([[0, 0], [17, 16]], np.int32)
    ws = _kernels.Workspace()
    _kernels.decode_many(ws, [_TRIAL, _TRIAL], [whole, part], origins, None, status, MAX_PIXELS, False)
    close = np.abs(whole[[4, 17], 12].astype(int) - [[20, 90, 220], [200, 60, 30]]).max() < 16
    return bool(not status.any() and close and (part == whole[16:19, 17:22]).all())


def _load() -> tuple[str, str]:
    """The libjpeg in use, or an empty string and why the C kernels are not."""
    if not environment.native():
        return "", _SWITCHED_OFF
    if _kernels is None:
        return "", _MISSING
    if JOB.itemsize != _kernels.JOB_BYTES or not hasattr(_kernels, "blend_rows"):
        return "", "the C kernels are built for another version; build them again"
    asked = environment.libjpeg()
    reasons = []
    for path in [asked] if asked else _candidates():
        try:
            interface = load_libjpeg(path)
        except OSError as error:
            reasons.append(str(error))
            continue
        if _works():
            return path, ""
        reasons.append(f"{path} (interface {interface}) does not decode a known image as it should")
    if asked:
        raise OptionError(f"HEADRACE_LIBJPEG={asked} cannot be used: {reasons[0]}")
    return "", "no usable libjpeg (" + "; ".join(reasons) + ")"


LIBJPEG, _WHY_NOT = _load()
NATIVE = bool(LIBJPEG)
"""Whether the C kernels are in use."""


def slow_path() -> str:
    """Why the slower Python kernels are in use, and what to do about it; empty where that is as it should be."""
    if NATIVE or _WHY_NOT == _SWITCHED_OFF:
        return ""
    remedy = "install Pillow's wheel (pip install pillow)"
    if _kernels is None:
        remedy = (
            "install headrace from a wheel, or install a C compiler and Python's headers and headrace again"
        )
    return f"images are decoded by slower kernels in Python: {_WHY_NOT}; {remedy}"


def say_slow_path() -> None:
    """Warn of the slower kernels, once in this process."""
    global _said
    reason = "" if _said else slow_path()
    _said = True
    if reason:
        warnings.warn(reason, RuntimeWarning, stacklevel=2)


_said = False


def describe() -> str:
    """Which kernels are in use, in one line for people."""
    if not NATIVE:
        return f"Python kernels with OpenCV and simplejpeg ({_WHY_NOT})"
    return f"C kernels ({_kernels.kernel_sets()[-1]}) with {LIBJPEG}"


class Workspace:
    """A decoder and scratch memory; cheap to make, for one thread at a time."""

    def __init__(self) -> None:
        self.native = _kernels.Workspace() if NATIVE else None


def probe_many(blobs: Sequence[Blob], *, as_stored: bool = False) -> NDArray[np.int32]:
    """Read the headers of encoded images: (n, 5), columns as in ``PROBE``.

    ``kind`` 0 is a JPEG that ``decode_many`` and ``rows_many`` take (8 bits, 1 or 3 components, not too short for
    its size); 1 is anything else, with width and height 0, for ``decode_any``. Width and height are as shown, after
    EXIF orientation; ``as_stored``: before it, and the orientation is 1.
    """
    if not NATIVE:
        from headrace.recipes.image import fallback

        out = fallback.probe_many(blobs)
    else:
        out = np.empty((len(blobs), 5), np.int32)
        _kernels.probe_many(blobs, out)
    if as_stored:
        turned = out[:, 3] >= 5
        out[turned, 1:3] = out[turned, 2:0:-1]
        out[:, 3] = 1
    return out


def decode_any(blob: Blob, *, mode: Mode = "RGB", max_pixels: int = MAX_PIXELS) -> NDArray[Any]:
    """Decode an image of any format; see ``formats.decode_any``."""
    from headrace.recipes.image import formats

    return formats.decode_any(blob, mode=mode, max_pixels=max_pixels)


def decode_stored(blob: Blob, *, mode: str = "RGB", max_pixels: int = MAX_PIXELS) -> NDArray[Any]:
    """Decode an image of any format as Pillow does; see ``formats.decode_stored``."""
    from headrace.recipes.image import formats

    return formats.decode_stored(blob, mode=mode, max_pixels=max_pixels)


def decode_many(
    ws: Workspace,
    blobs: Sequence[Blob],
    infos: NDArray[np.int32] | None,
    outs: Sequence[NDArray[np.uint8]],
    *,
    origins: NDArray[np.int32] | None = None,
    scales: NDArray[np.int32] | None = None,
    max_pixels: int = MAX_PIXELS,
    as_stored: bool = False,
) -> NDArray[np.int32]:
    """Decode JPEGs of kind 0, turned as shown, straight into ``outs``; a status each, 0 where all is well.

    Each out is a C-contiguous writable uint8 array of shape (height, width, 3), or 1 for grey. With
    ``origins``, (n, 2) of x and y, each out receives the part of its size that starts there, and only that part
    is decoded. ``scales``: 1, 2, 4 or 8 for each; sizes and origins are those of the image at that fraction of its
    size, rounded up. ``infos`` may be None: headers are read again, as what is decoded must be what was measured.
    ``as_stored``: images are not turned.
    """
    if origins is not None:
        origins = np.ascontiguousarray(origins, np.int32)
    if scales is not None:
        scales = np.ascontiguousarray(scales, np.int32)
    if ws.native is None:
        from headrace.recipes.image import fallback

        return fallback.decode_many(blobs, outs, origins, max_pixels, as_stored, scales)
    status = np.zeros(len(blobs), np.int32)
    _kernels.decode_many(ws.native, blobs, outs, origins, scales, status, max_pixels, as_stored)
    return status


def rows_many(
    ws: Workspace, sources: Sequence[Any], jobs: NDArray[Any], out: NDArray[Any], spec: RowSpec
) -> NDArray[np.int32]:
    """Resample a box of each source into its row of ``out``; a status per row, 0 where all is well.

    A source is a JPEG of kind 0 (``is_jpeg``), of which only the touched part is decoded, or a C-contiguous
    uint8 array (height, width, 1 or 3). ``jobs`` has dtype ``JOB``; ``out`` is (n, *spec.shape) of
    ``spec.storage_dtype``. Three channels become one by the luma weights, one becomes three by repetition. A
    row that fails is undefined.
    """
    if jobs.dtype != JOB or not jobs.flags.c_contiguous:
        raise ValueError("jobs must be a contiguous array of dtype JOB")
    if out.shape != (len(sources), *spec.shape) or out.dtype != spec.storage_dtype:
        needed = f"{(len(sources), *spec.shape)} of {spec.storage_dtype}"
        raise ValueError(f"out is {out.shape} of {out.dtype}; {needed} is needed")
    if ws.native is None or spec.method < 0:
        from headrace.recipes.image import fallback

        return fallback.rows_many(sources, jobs, out, spec)
    status = np.zeros(len(sources), np.int32)
    _kernels.rows_many(ws.native, sources, jobs, out, status, spec.packed)
    return status


def blend_rows(rows: NDArray[Any], before: NDArray[Any], weight: float, dtype: str) -> None:
    """Make each row ``weight`` of itself and the rest of the row before it, as that was; in place.

    ``before`` is what the first row has before it. Both are C-contiguous, of a dtype of ``BLENDED``.
    """
    if not NATIVE:
        from headrace.recipes.image import fallback

        return fallback.blend_rows(rows, before, weight, dtype)
    return _kernels.blend_rows(rows, before, rowspec.BLENDED.index(dtype), weight)


_TEXTS = {
    rowspec.STATUS_TRUNCATED: "truncated JPEG: its bytes end before its pixels",
    rowspec.STATUS_NOT_NATIVE: "not a JPEG that can be decoded directly",
    rowspec.STATUS_MISMATCH: "the image is not of the expected size or orientation: has it changed?",
    rowspec.STATUS_BAD_JOB: "the box or its clamp is empty, or lies outside of the image",
    rowspec.STATUS_NO_MEMORY: "out of memory",
    rowspec.STATUS_TOO_MANY_SCANS: "broken JPEG: it has more than 500 scans",
}


def status_text(status: int, blob: Any = None) -> str:
    """Why an image failed, for people. ``blob``: its bytes, read again for the details."""
    if status == 0:
        return "ok"
    if status in _TEXTS:
        return _TEXTS[status]
    is_blob = blob is not None and not (isinstance(blob, np.ndarray) and blob.ndim != 1)
    if status == rowspec.STATUS_TOO_LARGE:
        _, width, height, _, _ = probe_many([blob])[0] if is_blob else (0, 0, 0, 1, 0)
        size = f" of {width}x{height} pixels" if width else ""
        return f"image{size} is over the limit of pixels; raise max_pixels="
    why = _libjpeg_text(blob) if is_blob else ""
    return (
        f"broken JPEG: {why}" if why else f"broken JPEG (libjpeg's error {status - rowspec.STATUS_LIBJPEG})"
    )


def _libjpeg_text(blob: Blob) -> str:
    """Decode once more, for libjpeg's words."""
    if not NATIVE:
        try:
            decode_any(blob)
        except ValueError as error:
            return str(error).removeprefix("broken JPEG: ")
        return ""
    _, width, height, _, _ = (int(v) for v in probe_many([blob])[0])
    if not 0 < width * height <= MAX_PIXELS:
        return ""
    ws = _kernels.Workspace()
    out = np.empty((height, width, 3), np.uint8)
    _kernels.decode_many(ws, [blob], [out], None, None, np.zeros(1, np.int32), MAX_PIXELS, False)
    return _kernels.explain(ws)
