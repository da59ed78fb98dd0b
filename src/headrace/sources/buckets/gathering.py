"""Objects as a listing gives them, put in the order that folders have: set aside in a file until all are known."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

_TOGETHER = 8192
"""Objects of one listing that are held in memory."""
Part = tuple[list[bytes], Sequence[int], bytes]
"""Names, sizes and versions of some objects."""


class Found(NamedTuple):
    """An object of a listing."""

    name: bytes
    """From the folder that is listed on."""
    size: int
    version: bytes
    """In hexadecimal digits: see ``version_of``."""


class Spill:
    """A file that is there while it is open, for several threads to set things aside in."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._lock = threading.Lock()
        self._end = 0

    def put(self, data: bytes) -> int:
        """Where it lies from now on."""
        with self._lock:
            at, self._end = self._end, self._end + len(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), data[done:], at + done)
        return at

    def get(self, at: int, length: int) -> bytes:
        """What lies there."""
        return os.pread(self._file.fileno(), length, at)

    def close(self) -> None:
        """All of it is gone."""
        self._file.close()


class _Folder:
    """The objects right below one folder."""

    __slots__ = ("chunks", "count", "last", "pending", "sorted")

    def __init__(self) -> None:
        self.pending: list[Found] = []
        self.chunks: list[tuple[int, int, int]] = []
        """Where the names of some objects are, how long they are, and how many."""
        self.count = 0
        self.last = b""
        self.sorted = True


class Gathering:
    """The objects below one prefix: folder by folder, and by name in each. Used by one thread at a time."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._folders: dict[bytes, _Folder] = {}
        self._waiting: list[_Folder] = []
        self._pending = 0
        self.count = self.largest = 0

    def add(self, objects: Iterable[Found]) -> None:
        """More of them, as they come."""
        for one in objects:
            above, _, name = one.name.rpartition(b"/")
            folder = self._folders.get(above)
            if folder is None:
                folder = self._folders[above] = _Folder()
            if not folder.pending:
                self._waiting.append(folder)
            folder.sorted &= name > folder.last or not folder.count
            folder.last = name
            folder.pending.append(Found(name, one.size, one.version))
            folder.count += 1
            self._pending += 1
            self.count += 1
            self.largest = max(self.largest, one.size)
        if self._pending >= _TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Hold nothing in memory."""
        for folder in self._waiting:
            pending, folder.pending = folder.pending, []
            names = b"\0".join([one.name for one in pending])
            versions = bytes.fromhex(b"".join([one.version for one in pending]).decode())
            sizes = np.array([one.size for one in pending], "<u8").tobytes()
            at = self._spill.put(names + versions + sizes)
            folder.chunks.append((at, len(names), len(pending)))
        self._waiting.clear()
        self._pending = 0

    def all(self) -> Iterator[Part]:
        """Names, sizes and versions of all objects in order, some at a time."""
        self.settle()
        for above in sorted(self._folders):
            folder = self._folders[above]
            prefix = above + b"/" if above else b""
            parts: Iterable[Part] = (self._chunk(*chunk) for chunk in folder.chunks)
            if not folder.sorted:  # (S3 lists by name; not every server does)
                parts = [_sort(list(parts))]
            for names, sizes, versions in parts:
                yield [prefix + name for name in names], sizes, versions

    def _chunk(self, at: int, length: int, count: int) -> Part:
        data = self._spill.get(at, length + 24 * count)
        sizes = np.frombuffer(data, "<u8", count, length + 16 * count).tolist()
        return data[:length].split(b"\0"), sizes, data[length : length + 16 * count]


def _sort(
    parts: list[Part],
) -> Part:
    names = [name for part in parts for name in part[0]]
    sizes = [size for part in parts for size in part[1]]
    versions = b"".join(part[2] for part in parts)
    order = sorted(range(len(names)), key=names.__getitem__)
    cut = [versions[16 * row : 16 * row + 16] for row in order]
    return [names[row] for row in order], [sizes[row] for row in order], b"".join(cut)
