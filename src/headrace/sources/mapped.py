"""Memory that is a file: which file, where in it, and its pages brought in before anybody waits for them."""

from __future__ import annotations

import bisect
import ctypes
import errno
import os
import weakref
from dataclasses import dataclass

_POPULATE, _WILL_NEED = 22, 3
"""MADV_POPULATE_READ, from Linux 5.14 on, waits until the pages are there; MADV_WILLNEED only asks for them."""
_BROKEN = (errno.EFAULT, errno.EIO, 133)
"""Behind the end of the file, unreadable, or in memory that is damaged (EHWPOISON)."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mmap, _munmap = (getattr(ctypes.CDLL(None, use_errno=True), name) for name in ("mmap", "munmap"))
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_READ, _SHARED = 1, 1


def bring_in(address: int, length: int) -> OSError | None:
    """Wait until so many bytes are in memory; others may run meanwhile. Returns why they cannot be read.

    Without it they would come page by page, when they are first touched, and a file that was cut off would end the
    process.
    """
    start = address - address % _PAGE
    size = address + length - start
    if length and _madvise(start, size, _POPULATE):
        failed = ctypes.get_errno()
        if failed in _BROKEN:
            return OSError(failed, os.strerror(failed))
        _madvise(start, size, _WILL_NEED)
    return None


def map_file(descriptor: int, size: int) -> memoryview:
    """The bytes of a file, to be read only, for as long as anybody has a view of them.

    Python's own mappings keep a descriptor each. Where there are thousands of files, these would run out.
    """
    address = _mmap(None, size, _READ, _SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _munmap, address, size).atexit = False
    return memoryview(memory).toreadonly()


@dataclass(frozen=True)
class Place:
    """A part of a file."""

    path: bytes
    version: bytes
    """The file's size and time of change."""
    offset: int


class Maps:
    """The files that this process has in its memory, as of now."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._maps: list[tuple[int, int, int, bytes]] = []
        self._versions: dict[tuple[bytes, int], bytes | None] = {}
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                fields = line.rstrip(b"\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(b"/"):
                    start, stop = (int(edge, 16) for edge in fields[0].split(b"-"))
                    self._starts.append(start)
                    self._maps.append((stop, int(fields[2], 16), int(fields[4]), fields[5]))

    def find(self, address: int) -> Place | None:
        """Of which file this memory is; None for memory without one, or if the file is no longer what it was."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._maps[at][0]:
            return None
        _, offset, inode, path = self._maps[at]
        if (path, inode) not in self._versions:
            self._versions[path, inode] = _version(path, inode)
        version = self._versions[path, inode]
        return None if version is None else Place(path, version, offset + address - self._starts[at])


def _version(path: bytes, inode: int) -> bytes | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if found.st_ino != inode:
        return None
    return b"%x.%x" % (found.st_size, found.st_mtime_ns)
