"""A tier of a cache that is a file on disk: read with pread, written with pwrite when an extent is settled."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cache.tiers import TierMemory


@dataclass
class FileTier:
    """A ``CacheTier``: a file that workers open by its name."""

    path: str
    span: int

    @classmethod
    def make(cls, path: str, span: int) -> FileTier:
        """A new one, with addresses and no bytes."""
        with open(path, "wb") as file:
            file.truncate(span)
        return cls(path, span)

    def open(self) -> TierMemory:
        """See ``CacheTier``."""
        return FileMemory(self.path, self.span)


class FileMemory:
    """The file as one process sees it."""

    def __init__(self, path: str, span: int) -> None:
        self._fd = os.open(path, os.O_RDWR)
        self._span = span

    def _check(self, offset: int, nbytes: int) -> None:
        if nbytes < 0 or offset < 0 or offset + nbytes > self._span:
            raise ValueError(f"extent {offset}+{nbytes} is outside of the cache")

    def extent(self, offset: int, nbytes: int) -> memoryview:
        """See ``TierMemory``."""
        self._check(offset, nbytes)
        found = os.pread(self._fd, nbytes, offset)
        if len(found) < nbytes:
            raise ValueError(f"extent {offset}+{nbytes} is cut off: the file is shorter")
        return memoryview(found)

    def take(self, extents: Sequence[tuple[int, int]]) -> list[memoryview | None]:
        """See ``TierMemory``."""
        out: list[memoryview | None] = []
        for offset, nbytes in extents:
            try:
                self._check(offset, nbytes)
                out.append(memoryview(mmap.mmap(-1, max(1, nbytes)))[:nbytes])
            except ValueError:
                out.append(None)
        return out

    def settle(self, offset: int, memory: memoryview) -> None:
        """See ``TierMemory``."""
        try:
            written = os.pwrite(self._fd, memory, offset)
        except OSError as error:
            raise ValueError(f"extent {offset}+{len(memory)} cannot be written: {error}") from error
        if written < len(memory):
            raise ValueError(f"extent {offset}+{len(memory)} is cut off: the disk is full")

    def close(self) -> None:
        """See ``TierMemory``."""
        os.close(self._fd)
