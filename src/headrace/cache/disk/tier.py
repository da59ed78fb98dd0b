"""A disk tier: samples by key in segment files of one folder, within a number of bytes, for all jobs of a machine.

Invariants:

- What is read is what was written under that key, whole, or nothing (``records``).
- All files together take no more than the budget (``room``).
- What a running job uses is not evicted: with samples in random order, whatever is thrown out is wanted as soon as
  what comes for it. A full tier is only added to at the cost of segments whose dataset no running job has open, and
  that nobody read for a while; the one that was read longest ago goes first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cache.disk import records
from headrace.cache.disk.lock import let_go
from headrace.cache.disk.records import HEADER, Piece
from headrace.cache.disk.room import REST, Room
from headrace.cache.disk.table import as_keys

LEAST = 16 << 20
"""A tier of fewer bytes is not worth its files."""
_FULL = 5.0
"""Seconds for which a tier that had no room is not asked again."""
_FILES = 64
"""Segments that a process has open to read."""


@dataclass(frozen=True)
class DiskTier:
    """A folder as a tier. It travels to workers."""

    path: str
    budget: int
    owner: bytes
    """16 bytes: the dataset, whose segments are not evicted while a job has it open."""

    def open(self) -> OpenDisk:
        """For this process. ``OSError`` if the folder cannot be made or written to."""
        return OpenDisk(self)


class _File:
    """An open segment. Closed when nobody reads it any more."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.fd)


class OpenDisk:
    """A tier as one process sees it. Threads share it. A fork of the process opens its own."""

    def __init__(self, tier: DiskTier) -> None:
        self._room = Room(tier.path, tier.budget, tier.owner)
        self._files: dict[int, _File] = {}
        self._writing = threading.Lock()
        self._segment = self._fd = -1
        self._at = self._end = 0
        self._not_before = self._not_ahead_before = 0.0

    def close(self) -> None:
        """No more of it is needed here. What was written stays."""
        with self._writing:
            self._let_go()
        self._room.close()
        self._files = {}

    @property
    def budget(self) -> int:
        """Bytes that all files may take."""
        return self._room.table.budget

    @property
    def has_room(self) -> bool:
        """Whether there was room when somebody last looked, which is not long ago."""
        return time.monotonic() >= self._not_before

    def has_room_ahead(self, nbytes: float) -> bool:
        """Whether there is room for so many bytes that are copied ahead of need."""
        if self.has_room:
            return True
        if time.monotonic() < self._not_ahead_before:
            return False
        try:
            free, pause = self._room.free_ahead, _FULL / 50
        except OSError:
            free, pause = 0, REST
        if free < nbytes:
            self._not_ahead_before = time.monotonic() + pause
            return False
        return True

    @property
    def taken(self) -> int:
        """Bytes that are taken or reserved."""
        return self._room.taken

    def get_many(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """The content of each key; None for one that is not there."""
        out: list[memoryview | None] = [None] * len(keys)
        if not keys:
            return out
        table = self._room.table
        places = [
            (segment, offset, length, row)
            for row, found in enumerate(table.find(as_keys(list(keys))))
            for segment, offset, length in found
        ]
        if not places:
            return out
        places.sort()
        opened: list[tuple[_File | None, tuple[int, int, int, int]]] = []
        for place in places:  # all of them are announced before the first is read
            file = self._file(place[0])
            if file is not None and len(places) > 1:
                with contextlib.suppress(OSError):
                    os.posix_fadvise(file.fd, place[1], HEADER + place[2], os.POSIX_FADV_WILLNEED)
            opened.append((file, place))
        used = set()
        for file, (segment, offset, length, row) in opened:
            if out[row] is not None:
                continue
            found = None if file is None else records.read(file.fd, offset, keys[row], length)
            if found is None:
                low, high = as_keys([keys[row]])[0].tolist()
                table.forget((low, high), segment, offset)
            else:
                out[row] = found
                used.add(segment)
        if used:
            table.touch(list(used), time.time())
        return out

    def has_many(self, keys: Sequence[bytes]) -> list[bool]:
        """Of each key, whether it is there: nearly always right, and never without a reason."""
        return self._room.table.has(as_keys(list(keys))).tolist() if keys else []

    def _file(self, segment: int) -> _File | None:
        file = self._files.get(segment)
        if file is None:
            try:
                file = _File(self._room.segment_path(segment))
            except OSError:
                return None
            if len(self._files) >= _FILES:
                self._files = {}  # (whoever reads one of them has it until it has read)
            self._files[segment] = file
        return file

    def put_many(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int:
        """Keep samples (key, and the pieces of the content), as far as there is room; returns how many were kept.

        One that is there already is not kept twice. A disk that is full or broken is no error: nothing is kept.
        """
        if not samples or time.monotonic() < self._not_before:
            return 0
        there = self.has_many([key for key, _ in samples])
        fresh = {key: pieces for (key, pieces), known in zip(samples, there, strict=True) if not known}
        kept = 0
        try:
            with self._writing:
                for key, pieces in fresh.items():
                    kept += self._put(key, pieces)
            if self._room.table.crowded:
                self._room.grow()
        except OSError:
            self._not_before = time.monotonic() + REST
        return kept

    def drop_many(self, keys: Sequence[bytes]) -> None:
        """What lies there by these keys is not what should: nothing leads there any more."""
        if not keys:
            return
        table, rows = self._room.table, as_keys(list(keys))
        for (low, high), found in zip(rows.tolist(), table.find(rows), strict=True):
            for segment, offset, _ in found:
                table.forget((low, high), segment, offset)

    def put_ahead(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int | None:
        """Keep samples until they are released; returns what they are released by. None: they are not kept."""
        needed = sum(HEADER + sum(len(piece) for piece in pieces) for _, pieces in samples)
        if needed >> 32:
            return None
        found = None
        try:
            found = self._room.begin_ahead(needed)
            if found is None:
                return None
            number, fd = found
            at = 0
            for key, pieces in samples:
                begun, at = at, records.append(fd, at, key, pieces)
                self._note(key, number, begun, at - begun - HEADER)
            return number
        except OSError:
            return None if found is None else found[0]
        finally:
            if found is not None:
                let_go(found[1])

    def release(self, numbers: Sequence[int]) -> None:
        """What was kept ahead of need was used."""
        self._room.release(numbers)

    def _put(self, key: bytes, pieces: Sequence[Piece]) -> bool:
        length = sum(len(piece) for piece in pieces)
        needed = HEADER + length
        if length >> 32:
            return False
        if (self._fd < 0 or self._end - self._at < needed) and not self._claim(needed):
            return False
        begun = self._at
        self._at = records.append(self._fd, begun, key, pieces)
        self._note(key, self._segment, begun, length)
        return True

    def _note(self, key: bytes, segment: int, offset: int, length: int) -> None:
        low, high = as_keys([key])[0].tolist()
        table = self._room.table
        table.put((low, high), segment, offset, length)
        if table.superseded:  # it grew meanwhile, perhaps without this one
            self._room.table.put((low, high), segment, offset, length)

    def _claim(self, needed: int) -> bool:
        """Go on with a segment that has room for so many bytes. The present one stays if there is none."""
        if time.monotonic() < self._not_before:
            return False
        found = self._room.claim(needed, None if self._fd < 0 else (self._segment, self._at))
        if found is None:
            self._not_before = time.monotonic() + _FULL
            return False
        self._let_go()
        self._segment, self._fd, self._at, self._end = found
        return True

    def _let_go(self) -> None:
        """Write no more to the present segment. The next who has this dataset may."""
        fd, self._fd = self._fd, -1
        let_go(fd)
