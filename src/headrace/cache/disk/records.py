"""Records: one sample each, in files that only grow. A record says what it is, so it is served whole or not at all.

A header of 48 bytes (magic, checksum of the content, its length, the key, a checksum of all that) and the content.
Whoever reads compares key, length and both checksums; a write that was cut off, a block that was lost, or a place
that belongs to another sample by now is none.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

KEY_BYTES = 16
_MAGIC = 0x48524431
_HEAD = struct.Struct("<IIQ16sI12x")
HEADER = _HEAD.size
assert HEADER == 48
_PIECES = 1000
"""That are written in one go; the kernel takes 1024."""

Piece = bytes | bytearray | memoryview


def head_of(key: bytes, pieces: Sequence[Piece]) -> bytes:
    """The header of a record with this content."""
    checksum, length = 0, 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
        length += len(piece)
    own = zlib.crc32(struct.pack("<IQ16s", checksum, length, key))
    return _HEAD.pack(_MAGIC, checksum, length, key, own)


def append(fd: int, offset: int, key: bytes, pieces: Sequence[Piece]) -> int:
    """Write a record at ``offset``; returns where it ends. ``OSError`` if not all of it could be written."""
    parts: list[Any] = [head_of(key, pieces), *(piece for piece in pieces if len(piece))]
    if len(parts) > _PIECES:
        parts = [b"".join(parts)]
    whole = sum(len(part) for part in parts)
    done = os.pwritev(fd, parts, offset)
    if done < whole:  # (a signal, or 2 GiB at once; a full disk says so the second time)
        rest = memoryview(b"".join(parts))[done:]
        while rest:
            written = os.pwrite(fd, rest, offset + done)
            done, rest = done + written, rest[written:]
    return offset + whole


def read(fd: int, offset: int, key: bytes, length: int) -> memoryview | None:
    """The content of the record at ``offset``; None unless it is that of the key, whole and unchanged."""
    wanted = HEADER + length
    view = memoryview(np.empty(wanted, np.uint8).data).cast("B")  # (a bytearray would be written twice)
    have = 0
    try:
        while have < wanted:
            got = os.preadv(fd, [view[have:]], offset + have)
            if not got:
                return None
            have += got
    except OSError:
        return None
    magic, checksum, size, found, own = _HEAD.unpack_from(view)
    if magic != _MAGIC or found != key or size != length:
        return None
    content = view[HEADER:]
    if own != zlib.crc32(struct.pack("<IQ16s", checksum, size, key)) or checksum != zlib.crc32(content):
        return None
    return content.toreadonly()
