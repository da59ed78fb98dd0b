"""The memory of a cache as one process sees it: all of it where that can be mapped, else the parts in use."""

from __future__ import annotations

import errno
import os
import threading
import warnings
import weakref
from collections.abc import Sequence

import numpy as np

from headrace.cache.huge import HUGE, HugePages
from headrace.cache.mappings import map_file
from headrace.core.memory import address_limit, address_room
from headrace.core.sizes import show_size
from headrace.core.sparse import PAGE

_SHARE = 4
"""Of the addresses that a process may still have, its view of a cache takes this part at most."""
_WINDOW = 64 << 20
"""Bytes that are mapped at a time where the whole cannot be."""
_UNLIMITED = 16 << 30
"""What windows may take together where no limit is set, and the machine itself has too few addresses."""


class Windows:
    """Ranges of a file that has far more addresses than bytes. Threads share it.

    A limit on addresses (``ulimit -v``, as clusters set it) may allow far fewer than the cache has. Then windows are
    mapped as they are needed, and those that were used least recently are forgotten; what was handed out stays mapped
    for as long as somebody has it.
    """

    def __init__(self, fd: int, span: int) -> None:
        self.span = span
        self._whole: memoryview | None = None
        self._huge: HugePages | None = None
        room = address_room()
        if room is None or span <= room // _SHARE:
            try:
                self._whole = map_file(fd, 0, span, align=HUGE)
                if HUGE:
                    address = np.frombuffer(self._whole, np.uint8).__array_interface__["data"][0]
                    self._huge = HugePages(address, span)
                return
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
        share = _UNLIMITED if room is None else room // _SHARE
        self._size = min(_WINDOW, max(share // 4 & -PAGE, 16 * PAGE))
        self._most = max(1, share // self._size)
        self._mapped: dict[int, memoryview] = {}
        self._lock = threading.Lock()
        self._told = False
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of a range; ``ValueError`` if it lies outside, or cannot be mapped for want of addresses."""
        if nbytes < 0 or offset < 0 or offset + nbytes > self.span:
            raise ValueError(f"extent {offset}+{nbytes} is outside of the cache")
        if self._whole is not None:
            return self._whole[offset : offset + nbytes]
        if not nbytes:
            return memoryview(b"")
        window = offset // self._size
        start = window * self._size
        if offset + nbytes > start + self._size:  # it lies in two: a mapping of its own
            start = offset // PAGE * PAGE
            mapped = self._map(start, offset + nbytes - start)
        else:
            with self._lock:
                found = self._mapped.pop(window, None)
            mapped = self._map(start, min(self._size, self.span - start)) if found is None else found
            with self._lock:
                self._mapped[window] = mapped
                while len(self._mapped) > self._most:
                    del self._mapped[next(iter(self._mapped))]
        return mapped[offset - start : offset - start + nbytes]

    def settle(self, fd: int, extents: Sequence[tuple[int, int]], most: int) -> None:
        """Take memory for extents (offset and bytes) that are about to be filled, in huge pages where it pays.

        ``fd``: the same file. ``most``: bytes that it may hold.
        """
        if self._huge is not None:
            self._huge.take(fd, extents, most)

    def _map(self, start: int, nbytes: int) -> memoryview:
        try:
            return map_file(self._fd, start, nbytes)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
        with self._lock:
            self._mapped.clear()
        try:
            return map_file(self._fd, start, nbytes)
        except OSError as error:
            if not self._told:
                self._told = True
                limit = address_limit()
                allowed = "this machine" if limit is None else f"the limit of {show_size(limit)} (ulimit -v)"
                warnings.warn(
                    f"{show_size(nbytes)} of the cache cannot be mapped: {allowed} leaves no more addresses to this "
                    "process. Its samples are read from their source instead. Raise the limit, or use fewer threads "
                    "or a smaller batch_size.",
                    stacklevel=2,
                )
            raise ValueError(f"range {start}+{nbytes} of the cache cannot be mapped: {error}") from error
