"""Files in memory with far more addresses than bytes: what was never written, or was given back, takes no memory."""

from __future__ import annotations

import ctypes
import mmap
import os

from headrace.core.errors import OutOfSharedMemory
from headrace.core.layout import aligned
from headrace.core.memory import total_memory
from headrace.core.sizes import show_size

PAGE = mmap.PAGESIZE
"""Memory is given out in pages."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PLENTY = 16
"""Addresses for each byte of the machine's memory."""
_FEWEST = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", _libc.fallocate)
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def make_addresses(fd: int) -> int:
    """Give a file as many addresses as it needs to be roomy, and as few as can be mapped; how many these are.

    As many as the machine has memory it always has, even where this process may not map so many (``ulimit -v``):
    others may, and there are other ways to it than to map the whole. Fewer only where files may not be so long.
    """
    least = total_memory()
    span = _PLENTY * least
    while True:
        try:
            os.ftruncate(fd, span)
        except (OSError, OverflowError) as error:
            if span <= _FEWEST:
                raise OutOfSharedMemory(
                    f"a cache needs a file in memory of {show_size(span)} at least, and cannot have it: {error}. "
                    "Is there a limit on the sizes of files (ulimit -f)?"
                ) from error
            span //= 2
            continue
        if span <= least or _can_map(fd, span):
            return span
        span = max(least, span // 2)


def _can_map(fd: int, span: int) -> bool:
    try:
        mmap.mmap(fd, span).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def resident(fd: int) -> int:
    """Bytes of memory that a file takes."""
    return 512 * os.fstat(fd).st_blocks


def punch(fd: int, start: int, end: int) -> None:
    """Give back the memory of the whole pages between two offsets: they read as zeros from now on."""
    start, end = aligned(start, PAGE), end // PAGE * PAGE
    if start < end and _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, end - start):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
