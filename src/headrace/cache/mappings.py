"""What a process has mapped of a file in memory, and when it is unmapped."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import weakref
from typing import Any

import numpy as np

from headrace.core.layout import aligned
from headrace.core.memory import address_limit
from headrace.core.sizes import show_size
from headrace.core.sparse import PAGE

_MOST = 256
"""Ranges that are kept mapped, at most."""
_FEWER = _MOST - _MOST // 8
"""Ranges that are left when there were too many."""
_SHARE = 4
"""Where addresses are limited (``ulimit -v``), this part of them may be taken by ranges that are kept mapped."""


class _Mapping:
    """A range, and when it was last used."""

    __slots__ = ("memory", "used")

    def __init__(self, memory: memoryview, used: int) -> None:
        self.memory, self.used = memory, used


class Mappings:
    """Ranges of one file that a process has mapped. Threads share it.

    Nobody tells a worker which ranges are over, and one that is used again should not be mapped again. So all are
    kept, and those that were used least recently are forgotten when there are too many. What is forgotten is
    unmapped as soon as nobody has a view of it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], _Mapping] = {}
        self._clock = itertools.count()

    def __len__(self) -> int:
        """How many ranges are kept."""
        return len(self._kept)

    def find(self, offset: int, nbytes: int) -> memoryview | None:
        """The bytes of a range, if it is mapped."""
        # No lock: a process may be forked at any point. Each step by itself leaves things in order.
        mapping = self._kept.get((offset, nbytes))
        if mapping is None:
            return None
        mapping.used = next(self._clock)
        return mapping.memory

    def add(self, fd: int, offset: int, nbytes: int) -> memoryview:
        """Map a range."""
        self._make_room(nbytes)
        try:
            memory = map_file(fd, offset, nbytes)
        except OSError as error:
            if error.errno != errno.ENOMEM or not self._kept:
                raise
            self._kept.clear()
            memory = map_file(fd, offset, nbytes)
        self._kept[offset, nbytes] = _Mapping(memory, next(self._clock))
        return memory

    def _make_room(self, nbytes: int) -> None:
        limit = address_limit()
        if len(self._kept) < _MOST and limit is None:
            return
        kept = sorted(self._kept.copy().items(), key=lambda item: item[1].used)
        many = len(kept) - _FEWER if len(kept) >= _MOST else 0
        over = 0 if limit is None else nbytes + sum(size for (_, size), _ in kept) - limit // _SHARE
        for at, ((offset, size), _) in enumerate(kept):
            if at >= many and over <= 0:
                return
            self.forget(offset, size)
            over -= size

    def forget(self, offset: int, nbytes: int) -> None:
        """Do not keep a range mapped any longer."""
        self._kept.pop((offset, nbytes), None)

    def clear(self) -> None:
        """Keep none."""
        self._kept.clear()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_NOTHING, _FIXED = 0, 0x10
"""PROT_NONE and MAP_FIXED, which Python's ``mmap`` does not name."""


def _mmap(place: int | None, nbytes: int, protection: int, flags: int, fd: int, offset: int) -> int:
    address: int = _libc.mmap(place, nbytes, protection, flags, fd, offset)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {show_size(nbytes)} of the arena: {os.strerror(number)}")
    return address


def map_file(fd: int, offset: int, nbytes: int, align: int = 0) -> memoryview:
    """Map a range of a file; it is unmapped when nothing refers to the memory any more.

    ``align``: the address is to be a multiple of it.

    Python's own ``mmap`` duplicates the descriptor for each mapping (before 3.13, always), and a user who
    keeps a thousand batches would run out of them.
    """
    place, flags = None, mmap.MAP_SHARED
    if align:
        # More addresses than needed, of which those before and after are given back.
        spare = _mmap(None, nbytes + align, _NOTHING, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        place, flags = aligned(spare, align), flags | _FIXED
        if place > spare:
            _libc.munmap(spare, place - spare)
        end = place + aligned(nbytes, PAGE)
        if end < spare + nbytes + align:
            _libc.munmap(end, spare + nbytes + align - end)
    address = _mmap(place, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    # Through numpy, because memoryview takes ctypes' bytes for another type than plain ones. Whatever is made
    # over this view holds on to ``memory``.
    return memoryview(np.frombuffer(memory, np.uint8))  # type: ignore[arg-type]
