"""Rows that are left to a device: in the place of its pixels, such a row holds the bytes of a JPEG image, and what is
to be made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image.rowspec import JOB, PROBE, Blob, RowSpec

_HEAD = np.dtype([("nbytes", np.int64), ("job", JOB)])
"""What stands at the end of the row."""
_COLOURS = 3
_BEGIN, _END = b"\xff\xd8", b"\xff\xd9"


class LeftRow(NamedTuple):
    """What a row that is left to a device is to become."""

    spec: RowSpec
    can_be_held: bool
    """Whether the size of an image is all that has to be known of it."""


class Held(NamedTuple):
    """Stands for the bytes of an image that is on the device already."""

    height: int
    width: int


def probed(blobs: list[Blob | Held], probe: Callable[[list[Blob]], NDArray[np.int32]]) -> NDArray[np.int32]:
    """What ``probe`` says of images, also of those that are on the device."""
    held = [at for at, blob in enumerate(blobs) if type(blob) is Held]
    if not held:
        return probe(blobs)
    infos = np.zeros((len(blobs), len(PROBE)), np.int32)
    infos[held] = [(0, blobs[at].width, blobs[at].height, 1, _COLOURS) for at in held]
    others = [at for at, blob in enumerate(blobs) if type(blob) is not Held]
    if others:
        infos[others] = probe([blobs[at] for at in others])
    return infos


def can_be_left(infos: NDArray[np.int32], blobs: list[Blob], row_bytes: int) -> NDArray[np.bool_]:
    """Which of these images may be: JPEG images as they are shown, of three colours, in one scan (others are slow to
    decode on devices), whose bytes are all there (devices do not say that some are missing) and fit into a row.
    ``infos``: as ``kernels.probe_many`` says it."""
    sizes = [0 if type(blob) is Held else len(blob) for blob in blobs]
    fits = np.array(sizes, np.int64) <= row_bytes - _HEAD.itemsize
    may: NDArray[np.bool_] = (infos[:, 0] == 0) & (infos[:, 3] == 1) & (infos[:, 4] == _COLOURS) & fits
    for at in np.flatnonzero(may).tolist():
        may[at] = type(blobs[at]) is Held or is_plain(blobs[at])
    return may


def is_plain(blob: Blob) -> bool:
    """Whether it is a JPEG image of the plain kind, all of it."""
    return bytes(blob[:2]) == _BEGIN and is_whole(blob) and is_baseline(blob)


def is_whole(blob: Blob) -> bool:
    """Whether a JPEG image ends with the marker that says so."""
    return bytes(blob[-2:]) == _END


def is_baseline(blob: Blob) -> bool:
    """Whether a JPEG image is of the plain kind: its header says so in the first marker of a frame."""
    at, end = 2, len(blob)
    while at + 4 <= end and blob[at] == 0xFF:
        kind = blob[at + 1]
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            return bool(kind == 0xC0)
        # (a marker may have any number of bytes before it that fill up)
        at += 1 if kind == 0xFF else 2 + (blob[at + 2] << 8 | blob[at + 3])
    return False


def put(memory: NDArray[np.uint8], rows: list[int], blobs: list[Blob | Held], jobs: NDArray[Any]) -> None:
    """Leave rows of a batch to a device."""
    flat = memory.reshape(len(memory), -1)
    heads = np.zeros(len(rows), _HEAD)
    heads["job"] = jobs
    for at, (row, blob) in enumerate(zip(rows, blobs, strict=True)):
        if not isinstance(blob, Held):
            flat[row, : len(blob)] = np.frombuffer(blob, np.uint8)
            heads["nbytes"][at] = len(blob)
    flat[rows, -_HEAD.itemsize :] = heads.view(np.uint8).reshape(len(rows), _HEAD.itemsize)


def get(memory: NDArray[np.uint8], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Of rows of a batch that were left: how many bytes each holds (0: the image is on the device; negative: it holds
    nonsense), and its job."""
    flat = memory.reshape(len(memory), -1)
    heads = np.ascontiguousarray(flat[rows, -_HEAD.itemsize :]).view(_HEAD)[:, 0]
    nbytes = heads["nbytes"].copy()
    nbytes[nbytes > flat.shape[1] - _HEAD.itemsize] = -1
    return nbytes, heads["job"]


def bytes_of(memory: NDArray[np.uint8], row: int, nbytes: int) -> NDArray[np.uint8]:
    """The bytes that a row holds, where they lie."""
    blob: NDArray[np.uint8] = memory[row].reshape(-1)[:nbytes]
    return blob
