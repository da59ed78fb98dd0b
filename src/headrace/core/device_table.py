"""The table of a pool of images in the memory of a device: a file in memory that all who share the pool map.

It outlives hosts: whoever of the jobs is left has it. First comes a word for each chunk, with its bytes that are
used; that of chunk 0, which there is none of, is the number of the chunk made last. Then comes a word for each
sample: where its image lies, and how large it is; 0: it is not held. Words are written at once, and after what
they tell of.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ProtocolError

UNIT = 1024
"""Bytes: where images may begin."""
CHUNKS = 1 << 16
_WORD = 8
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_CHUNK_BITS, _PLACE_BITS, _SIDE_BITS = 16, 20, 14
LONGEST = (1 << _SIDE_BITS) - 1
"""Pixels of a side that a word has room for."""


def make_table(samples: int) -> int:
    """A descriptor of a new table, in which nothing is held."""
    fd = os.memfd_create("headrace-device", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, table_bytes(samples))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def table_bytes(samples: int) -> int:
    """Bytes of a table."""
    return _WORD * (CHUNKS + samples)


def check_table(fd: int, samples: int) -> None:
    """Raises ProtocolError for what is no table of so many samples."""
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        size = os.fstat(fd).st_size if sealed else -1
    except OSError as error:
        raise ProtocolError(f"a table of images cannot be looked at: {error}") from None
    if size != table_bytes(samples):
        raise ProtocolError("a table of images can be cut short, or is of other samples")


def next_chunk(fd: int) -> int | None:
    """A number that no chunk has had; None: there is none left. One process at a time may ask."""
    last = int.from_bytes(os.pread(fd, _WORD, 0), "little")
    if last + 1 >= CHUNKS:
        return None
    os.pwrite(fd, (last + 1).to_bytes(_WORD, "little"), 0)
    return last + 1


class DeviceTable:
    """A table, mapped."""

    def __init__(self, fd: int, samples: int) -> None:
        """The descriptor is not kept."""
        check_table(fd, samples)
        words = np.frombuffer(mmap.mmap(fd, table_bytes(samples)), np.int64)
        self._used, self.words = words[:CHUNKS], words[CHUNKS:]

    def used(self, chunk: int) -> int:
        """Bytes of a chunk, from its beginning on, that may not be written any more."""
        return int(self._used[chunk])

    def use(self, chunk: int, end: int) -> None:
        """A chunk's bytes are not to be written any more, up to here. To be said before an image is told of."""
        self._used[chunk] = end


def word_of(chunk: int, offset: int, height: int, width: int) -> int:
    """Where an image lies, and how large it is, in one number."""
    place = (chunk << _PLACE_BITS | offset // UNIT) << 2 * _SIDE_BITS | height << _SIDE_BITS | width
    return place - (1 << 64) if place >> 63 else place


def read_words(words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each: the chunk, the offset there, and height and width."""
    plain = words.view(np.uint64)

    def bits(first: int, count: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = ((plain >> np.uint64(first)) & np.uint64((1 << count) - 1)).astype(
            np.int64
        )
        return found

    sides = np.stack([bits(_SIDE_BITS, _SIDE_BITS), bits(0, _SIDE_BITS)], 1)
    place = 2 * _SIDE_BITS
    return bits(place + _PLACE_BITS, _CHUNK_BITS), bits(place, _PLACE_BITS) * UNIT, sides
