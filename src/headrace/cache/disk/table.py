"""The table of a disk tier: which segment files there are, and a hint where each key's record lies.

It is one file, which all processes map. Segments are entered and removed under a lock (see ``room``). The hints have
none: a slot that two processes wrote at once, or that a killed one left half written, leads to a record that says
that it is another's, and that is a sample that is not there. So nothing has to be mended after a crash.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = 1
ROWS = 4096
"""Segments that there may be. The low bits of a segment's number are its row."""
WAYS = 8
"""Slots of a bucket. A key has two buckets to lie in."""
_COUNTS = 0xFFFFE
"""After so many segments of a row, their numbers begin again."""
_PAGE = 4096
_MAGIC = b"HRDISK01"
_HEADER = struct.Struct("<8sIIQI")
"""Magic, version, bits of the number of buckets, how often it grew, a checksum."""
# Number, or 0; bytes that it takes or may take; when it was last read; its dataset; whether it is written to; how
# many segments the row has had; whether it was copied ahead of need, and goes when it was used.
_SEGMENT = np.dtype(
    [
        ("number", "<u8"),
        ("reserved", "<u8"),
        ("used", "<f8"),
        ("owner", "V16"),
        ("open", "<u8"),
        ("count", "<u8"),
        ("ahead", "<u8"),
    ]
)
_SLOT = np.dtype([("low", "<u8"), ("high", "<u8"), ("segment", "<u4"), ("length", "<u4"), ("offset", "<u8")])
assert _SEGMENT.itemsize == 64 and _SLOT.itemsize == 32
_SLOTS_AT = _PAGE + ROWS * _SEGMENT.itemsize
_FULL = 0.6
"""Part of the slots that are in use when the table grows."""

Keys = NDArray[np.uint64]
"""A row of two numbers each."""


def as_keys(keys: list[bytes]) -> Keys:
    """Keys of 16 bytes as numbers."""
    return np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)


class Table:
    """The table as one process sees it. Threads share it."""

    def __init__(self, fd: int) -> None:
        """``fd`` becomes the table's own. ``ValueError`` if it is none of this version, whole."""
        self._file = os.fstat(fd)
        size = self._file.st_size
        try:
            if size < _SLOTS_AT:
                raise ValueError("it is cut off")
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        magic, version, bits, grown, checksum = _HEADER.unpack_from(self._map)
        if magic != _MAGIC or version != VERSION or checksum != _checksum(bits, grown):
            raise ValueError("it is no table of this version")
        if size < table_bytes(bits):
            raise ValueError("it is cut off")
        self.grown, self.bits = int(grown), int(bits)
        buckets = 1 << bits
        self.nbytes = size
        self._words: NDArray[Any] = np.frombuffer(self._map, "<u8", 8, 64)
        """Whether a larger table has taken its place; slots in use; bytes that segments may take."""
        self.segments: NDArray[Any] = np.frombuffer(self._map, _SEGMENT, ROWS, _PAGE)
        self._slots: NDArray[Any] = np.frombuffer(self._map, _SLOT, buckets * WAYS, _SLOTS_AT).reshape(
            buckets, WAYS
        )
        self._mask = np.uint64(buckets - 1)

    @property
    def superseded(self) -> bool:
        """Whether there is a larger one by now, under the same name."""
        return bool(self._words[0])

    @superseded.setter
    def superseded(self, value: bool) -> None:
        self._words[0] = value

    def is_at(self, path: str) -> bool:
        """Whether this is the table that lies there now."""
        try:
            return os.path.samestat(os.stat(path), self._file)
        except OSError:
            return False

    @property
    def budget(self) -> int:
        """Bytes that all files may take."""
        return int(self._words[2])

    @budget.setter
    def budget(self, nbytes: int) -> None:
        self._words[2] = nbytes

    @property
    def crowded(self) -> bool:
        """Whether it is time for a larger one."""
        return bool(self._words[1] > _FULL * self._slots.size)

    def find(self, keys: Keys) -> list[list[tuple[int, int, int]]]:
        """For each key, where its record may lie: segment, offset and length. Most often one place, or none."""
        slots = self._slots[keys & self._mask].reshape(len(keys), -1)
        match = (slots["low"] == keys[:, :1]) & (slots["high"] == keys[:, 1:]) & (slots["segment"] != 0)
        out: list[list[tuple[int, int, int]]] = [[] for _ in range(len(keys))]
        for row, slot in np.argwhere(match).tolist():
            found = slots[row, slot]
            place = int(found["segment"]), int(found["offset"]), int(found["length"])
            if place not in out[row]:  # (both buckets of a key may be one)
                out[row].append(place)
        return out

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Of each key, whether there is a hint of its record."""
        slots = self._slots[keys & self._mask].reshape(len(keys), -1)
        match = (slots["low"] == keys[:, :1]) & (slots["high"] == keys[:, 1:]) & (slots["segment"] != 0)
        return np.asarray(match.any(1))

    def put(self, key: tuple[int, int], segment: int, offset: int, length: int) -> None:
        """Note where a record lies. In the emptier one of its buckets; if both are full, in the place of another."""
        mask = int(self._mask)
        buckets = key[0] & mask, key[1] & mask
        free = [np.flatnonzero(self._is_free(self._slots[at]["segment"])) for at in buckets]
        which = 0 if len(free[0]) >= len(free[1]) else 1
        at = buckets[which]
        numbers = self._slots[at]["segment"]
        # (of those, one that leads nowhere rather than one that was never used)
        slot = int(max(free[which], key=numbers.__getitem__)) if len(free[which]) else (key[1] >> 32) % WAYS
        if len(free[which]) and not self._slots[at, slot]["segment"]:
            self._words[1] += 1
        self._slots[at, slot] = (key[0], key[1], segment, length, offset)

    def _is_free(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Of each slot, whether it leads to no segment that there is."""
        return np.asarray((numbers == 0) | (self.segments["number"][numbers & (ROWS - 1)] != numbers))

    def forget(self, key: tuple[int, int], segment: int, offset: int) -> None:
        """A hint led nowhere."""
        mask = int(self._mask)
        for at in (key[0] & mask, key[1] & mask):
            bucket = self._slots[at]
            wrong = (
                (bucket["low"] == key[0])
                & (bucket["high"] == key[1])
                & (bucket["segment"] == segment)
                & (bucket["offset"] == offset)
            )
            for slot in np.flatnonzero(wrong).tolist():
                self._slots[at, slot]["segment"] = 0

    def enter(self, row: int, size: int, owner: bytes, now: float, *, ahead: bool = False) -> int:
        """A new segment in an empty row, under the lock; its number, which no segment had for long."""
        count = int(self.segments[row]["count"]) % _COUNTS + 1
        number = count * ROWS + row
        self.segments[row] = (number, size, now, owner, not ahead, count, ahead)
        return number

    def remove(self, row: int) -> None:
        """A segment is gone."""
        self.segments[row] = (0, 0, 0.0, bytes(16), 0, int(self.segments[row]["count"]), 0)

    def touch(self, segments: NDArray[np.uint64] | list[int], now: float) -> None:
        """Segments were read just now."""
        self.segments["used"][np.asarray(segments, np.int64) & (ROWS - 1)] = now

    def mend(self) -> None:
        """Free the rows that somebody who was killed left half written, under the lock."""
        numbers, rows = self.segments["number"], np.arange(ROWS)
        left = (numbers == 0) & ((self.segments["reserved"] != 0) | (self.segments["ahead"] != 0))
        wrong = (numbers != 0) & ((numbers & (ROWS - 1) != rows) | (numbers >> 32 != 0))
        for row in np.flatnonzero(left | wrong).tolist():
            self.remove(row)

    def recount(self) -> None:
        """Count the slots in use anew: segments go, and what led there is free."""
        self._words[1] = int(np.count_nonzero(~self._is_free(self._slots["segment"])))

    def larger(self, path: str) -> None:
        """Put a table of four times as many slots in the place of this one, under the lock.

        First of all the others are told, who wait for the lock then: what they enter from now on goes into the larger
        one. Whoever is killed here leaves one table that all find, this or the larger (see ``Room._load``).
        """
        grown = create(path + ".new", self.bits + 2, self.grown + 1)
        self.superseded = True
        try:
            grown._words[2] = self._words[2]
            grown.segments[:] = self.segments
            slots = self._slots.reshape(-1)
            grown._fill(slots[~self._is_free(slots["segment"])])
            os.replace(path + ".new", path)
        except BaseException:
            self.superseded = False
            raise

    def _fill(self, entries: NDArray[Any]) -> None:
        """Enter many at once, into an empty table: into their first buckets, and what finds no room, one by one."""
        buckets = (entries["low"] & self._mask).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        entries, buckets = entries[order], buckets[order]
        begins = np.searchsorted(buckets, buckets, side="left")
        places = np.arange(len(buckets)) - begins
        fits = places < WAYS
        self._slots[buckets[fits], places[fits]] = entries[fits]
        self._words[1] = int(np.count_nonzero(fits))
        for one in entries[~fits]:
            key = int(one["low"]), int(one["high"])
            self.put(key, int(one["segment"]), int(one["offset"]), int(one["length"]))


def table_bytes(bits: int) -> int:
    """The size of a table's file."""
    return _SLOTS_AT + (_SLOT.itemsize * WAYS << bits)


def _checksum(bits: int, grown: int) -> int:
    return zlib.crc32(struct.pack("<IIQ", VERSION, bits, grown))


def create(path: str, bits: int, grown: int = 0) -> Table:
    """A new, empty table at ``path``, in the place of whatever is there."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, table_bytes(bits))  # writing to a map of a file that finds no room is fatal
        os.pwrite(fd, _HEADER.pack(_MAGIC, VERSION, bits, grown, _checksum(bits, grown)), 0)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return Table(fd)
