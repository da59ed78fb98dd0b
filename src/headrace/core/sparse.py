"""Files in memory with far more addresses than bytes: what was never written, or was given back, takes no memory."""

from __future__ import annotations

import ctypes
import mmap
import os

from headrace.core.layout import aligned
from headrace.core.memory import total_memory

PAGE = mmap.PAGESIZE
"""Memory is given out in pages."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PLENTY = 16
"""Addresses for each byte of the machine's memory."""

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", _libc.fallocate)
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def make_addresses(fd: int) -> int:
    """Give a file as many addresses as it needs to be roomy and as processes here can map; how many these are."""
    least = total_memory()
    span = _PLENTY * least
    while True:
        try:
            os.ftruncate(fd, span)
            mmap.mmap(fd, span).close()
        except (OSError, ValueError, OverflowError):
            if span <= least:
                raise
            span = max(least, span // 2)
        else:
            return span


def resident(fd: int) -> int:
    """Bytes of memory that a file takes."""
    return 512 * os.fstat(fd).st_blocks


def punch(fd: int, start: int, end: int) -> None:
    """Give back the memory of the whole pages between two offsets: they read as zeros from now on."""
    start, end = aligned(start, PAGE), end // PAGE * PAGE
    if start < end and _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, end - start):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
