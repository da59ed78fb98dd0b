"""Zip archives: what lies where in them, by the directory at their end."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from headrace.core.tar import Damaged, Read

_END, _END64, _PLACE64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_ENTRY, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_LONGEST_COMMENT = 0xFFFF
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF
_STORED, _DEFLATED = 0, 8


class Packed(NamedTuple):
    """A file in an archive."""

    name: bytes
    start: int
    """Where its bytes begin, as they lie there."""
    length: int
    """How many lie there."""
    size: int
    """How many it has."""
    deflated: bool


class _Entry(NamedTuple):
    name: bytes
    header: int
    length: int
    size: int
    deflated: bool


def members(read: Read, size: int) -> Iterator[Packed]:
    """All files of an archive of ``size`` bytes, in the order in which they lie there.

    The directory says where a member's own header is, and only that where its bytes begin, so headers are read too.
    """
    for entry in sorted(_directory(read, size), key=lambda one: one.header):
        header = read(entry.header, 30)
        if header[:4] != _LOCAL or len(header) < 30:
            raise Damaged(f"byte {entry.header}: no header of a member; the archive is damaged")
        name, extra = struct.unpack("<HH", header[26:30])
        start = entry.header + 30 + name + extra
        if start + entry.length > size:
            raise Damaged(f"byte {size}: it ends in the middle of {_shown(entry.name)}")
        yield Packed(entry.name, start, entry.length, entry.size, entry.deflated)


def inflated(data: bytes, size: int) -> bytes:
    """The bytes of a member that was deflated; ``ValueError`` if they are not what it has."""
    try:
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        out = unpacking.decompress(data, size + 1)  # (and no more, whatever it would become)
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated ({error})") from None
    if not unpacking.eof or len(out) != size:
        raise ValueError("it cannot be inflated: it is not whole")
    return out


def _directory(read: Read, size: int) -> Iterator[_Entry]:
    start, length, count = _end(read, size)
    data = read(start, length)
    if len(data) < length:
        raise Damaged(f"byte {size}: it ends in the middle of the directory")
    at = 0
    for _ in range(count):
        if data[at : at + 4] != _ENTRY or at + 46 > length:
            raise Damaged(f"byte {start + at}: no entry of a directory; the archive is damaged")
        flags, method = struct.unpack_from("<HH", data, at + 8)
        packed, whole, named, extras, comment = struct.unpack_from("<IIHHH", data, at + 20)
        (header,) = struct.unpack_from("<I", data, at + 42)
        name = data[at + 46 : at + 46 + named]
        extra = data[at + 46 + named : at + 46 + named + extras]
        whole, packed, header = _large(extra, whole, packed, header)
        at += 46 + named + extras + comment
        if name.endswith(b"/"):
            continue
        if flags & 0x2041:  # encrypted, strongly or with its names
            raise Damaged(f"{_shown(name)} is encrypted; unpack the archive with its password first")
        if method not in (_STORED, _DEFLATED):
            raise Damaged(
                f"{_shown(name)} is packed by method {method}, and only stored and deflated can be read"
            )
        yield _Entry(name, header, packed, whole, method == _DEFLATED)


def _end(read: Read, size: int) -> tuple[int, int, int]:
    """Where the directory begins, its length, and how many entries it has."""
    first = max(0, size - _LONGEST_COMMENT - 22)
    tail = read(first, size - first)
    at = tail.rfind(_END)
    if at < 0 or at + 22 > len(tail):
        raise Damaged(
            f"byte {size}: no directory of a zip archive at its end; it is not whole, or no zip archive"
        )
    disk, first_disk, _, count, length, start = struct.unpack_from("<HHHHII", tail, at + 4)
    if disk not in (0, _MAX16) or first_disk not in (0, _MAX16):
        raise Damaged("it is one of several parts; put them together first")
    if at >= 20 and tail[at - 20 : at - 16] == _PLACE64:
        (place,) = struct.unpack_from("<Q", tail, at - 12)
        record = read(place, 56)
        if record[:4] != _END64 or len(record) < 56:
            raise Damaged(f"byte {place}: no directory of a large zip archive; it is damaged")
        count, length, start = struct.unpack_from("<QQQ", record, 32)
    if start + length > size:
        raise Damaged(f"byte {first + at}: a directory that ends behind the end of the archive")
    return start, length, count


def _large(extra: bytes, whole: int, packed: int, header: int) -> tuple[int, int, int]:
    """Numbers that have no room in an entry stand behind its name."""
    values = [whole, packed, header]
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        length = min(length, len(extra) - at - 4)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            values = [next(numbers, value) if value == _MAX32 else value for value in values]
            break
        at += 4 + length
    return values[0], values[1], values[2]


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))
