"""Rows that are left to a device: in the place of its pixels, such a row holds the bytes of a JPEG image, and what is
to be made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.image.rowspec import JOB, Blob

_HEAD = np.dtype([("nbytes", np.int64), ("job", JOB)])
"""What stands at the end of the row."""
_COLOURS = 3


def can_be_left(infos: NDArray[np.int32], blobs: list[Blob], row_bytes: int) -> NDArray[np.bool_]:
    """Which of these images may be: JPEG images as they are shown, of three colours, whose bytes fit into a row.
    ``infos``: as ``kernels.probe_many`` says it."""
    fits = np.array([len(blob) for blob in blobs], np.int64) <= row_bytes - _HEAD.itemsize
    may: NDArray[np.bool_] = (infos[:, 0] == 0) & (infos[:, 3] == 1) & (infos[:, 4] == _COLOURS) & fits
    return may


def put(row: NDArray[np.uint8], blob: Blob, job: Any) -> None:
    """Leave a row to a device."""
    flat = row.reshape(-1)
    flat[: len(blob)] = np.frombuffer(blob, np.uint8)
    head = np.zeros((), _HEAD)
    head["nbytes"], head["job"] = len(blob), job
    flat[-_HEAD.itemsize :] = np.frombuffer(head.tobytes(), np.uint8)


def get(row: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Any]:
    """The bytes (where they lie) and the job of a row that was left. ValueError: it cannot be one."""
    flat = row.reshape(-1)
    head = np.frombuffer(flat[-_HEAD.itemsize :].tobytes(), _HEAD)[0]
    nbytes = int(head["nbytes"])
    if not 0 < nbytes <= len(flat) - _HEAD.itemsize:
        raise ValueError(f"a row of {len(flat)} bytes that holds {nbytes}")
    return flat[:nbytes], head["job"]
