"""Memory of a cache in huge pages, where the kernel has them: one costs a tenth of what its small ones would.

Files in memory get small pages, unless an administrator wants it otherwise (``shmem_enabled``). Since Linux 6.1 a
process may ask for a huge one in place of those that are there (``MADV_COLLAPSE``), whatever the setting is.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence

from headrace.core.sparse import resident

Range = tuple[int, int]

_LARGEST = 4 << 20
"""With small pages of 64 KiB, huge ones have 512 MiB: more than could ever be filled at once."""
_COLLAPSE = 25
_PATIENCE = 3
"""After so many calls in a row that failed, no more are made."""
_SLOW = 5e-3
"""CPU seconds for a huge page after which small ones would have been better: the kernel has to move others' pages."""
_NEARLY = 8
"""All but so small a part of what is taken has to be filled."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _page() -> int:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") as file:
            size = int(file.read())
    except (OSError, ValueError):
        return 0
    return size if size <= _LARGEST else 0


HUGE = _page()
"""Bytes of a huge page; 0 where there are none."""


def worthwhile(extents: Sequence[Range], page: int = HUGE) -> list[Range]:
    """The huge pages that extents (offset and bytes) about to be filled would nearly fill; of each, the first part
    (offset and bytes) that will be.

    Extents of one order lie side by side, and the next order's beside them. So the first and the last page count
    where half of them will be filled: the rest is likely to be others'.
    """
    first, last = min(at for at, _ in extents), max(at + nbytes for at, nbytes in extents)
    filled: dict[int, int] = {}
    own: dict[int, Range] = {}
    for offset, nbytes in extents:
        for number in range(offset // page, -(-(offset + nbytes) // page)):
            start, end = max(offset, number * page), min(offset + nbytes, (number + 1) * page)
            filled[number] = filled.get(number, 0) + end - start
            own.setdefault(number, (start, end - start))
    found = []
    for number, nbytes in sorted(filled.items()):
        within = min(last, (number + 1) * page) - max(first, number * page)
        if 2 * nbytes >= page and (within - nbytes) * _NEARLY <= within:
            found.append(own[number])
    return found


class HugePages:
    """Takes memory of one mapped file in huge pages."""

    def __init__(self, address: int, size: int) -> None:
        """``address``: where the file is mapped, up to ``size``; a multiple of ``HUGE``."""
        self._address, self._size = address, size
        self._failures = 0

    def take(self, fd: int, extents: Sequence[Range], most: int) -> int:
        """Take memory for extents that are about to be filled; returns how many huge pages. What these do not cover
        gets its memory as it is filled.

        ``most``: bytes that the file may hold. Huge pages take a little more than what is filled, so near that limit
        there are none.
        """
        if self._failures >= _PATIENCE or not extents:
            return 0
        pages = [page for page in worthwhile(extents) if _is_fresh(fd, *page)]
        pages = pages[: max(0, (most - resident(fd)) // HUGE)]
        taken, begun = 0, time.thread_time()
        for start, end in _runs(pages, self._size):
            for offset, _ in pages:  # a page of which nothing is there is passed over
                if start <= offset < end:
                    ctypes.c_ubyte.from_address(self._address + offset).value  # noqa: B018
            if _libc.madvise(self._address + start, end - start, _COLLAPSE):
                self._failures += 1
                return taken
            taken += (end - start) // HUGE
        if taken:
            slow = time.thread_time() - begun > _SLOW * taken
            self._failures = self._failures + 1 if slow else 0
        return taken


def _is_fresh(fd: int, offset: int, nbytes: int) -> bool:
    """Whether none of these bytes has memory yet: what has is not worth moving."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) >= offset + nbytes
    except OSError:  # there is nothing from there on
        return True


def _runs(pages: Sequence[Range], size: int) -> list[Range]:
    """Where huge pages begin and end, those side by side as one, as far as the file goes."""
    runs: list[Range] = []
    for offset, _ in pages:
        start = offset // HUGE * HUGE
        if start + HUGE > size:
            continue
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], start + HUGE)
        else:
            runs.append((start, start + HUGE))
    return runs
