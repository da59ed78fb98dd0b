"""What tells a file from the one that had its name before: its size, and when it was last changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1024
"""Files looked at by one thread at a time."""
_AT_ONCE = 16
"""Threads: where files lie on a server, each look is a message to it and back."""
_NOT_THERE = (-1, -1)


def versions(paths: Sequence[bytes]) -> NDArray[np.int64]:
    """Size in bytes and time of change in nanoseconds of each file as it is now, a row each; -1 for none.

    A million of them take some seconds: files of local disks take microseconds each.
    """
    out = np.empty((len(paths), 2), np.int64)
    if len(paths) <= _BLOCK:
        out[:] = _look(paths)
        return out
    blocks = [paths[start : start + _BLOCK] for start in range(0, len(paths), _BLOCK)]
    with ThreadPoolExecutor(_AT_ONCE, "headrace-stat") as threads:
        for number, block in enumerate(threads.map(_look, blocks)):
            out[number * _BLOCK : number * _BLOCK + len(block)] = block
    return out


def _look(paths: Sequence[bytes]) -> NDArray[np.int64]:
    return np.array([_version(path) for path in paths], np.int64).reshape(-1, 2)


def _version(path: bytes) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # reading it will say what is wrong
        return _NOT_THERE
    return found.st_size, found.st_mtime_ns
