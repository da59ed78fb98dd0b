"""Tar archives: what lies where in them. Pure: whoever calls reads the bytes.

All that is written today is understood: ustar, GNU's long names and large numbers, pax headers. Members that have no
bytes of their own (folders, devices) are passed over; links are named, for the caller to follow.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
_EMPTY = bytes(BLOCK)
_LONGEST = 1 << 20
"""Bytes of a long name or of pax headers, at most: more is damage, or is meant to fill the memory."""
_HARD, _SYMBOLIC = b"1", b"2"
_NO_BYTES = (b"3", b"4", b"5", b"6")
_MODULUS = 65521
"""Of the sums in adler32."""
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How compressed files begin."""

Read = Callable[[int, int], bytes]
"""The bytes of a part (start, length); fewer where the archive ends before."""


class Damaged(ValueError):
    """What is there is no tar archive, or not a whole one."""


class Member(NamedTuple):
    """A file in an archive, or a link to one."""

    name: bytes
    head: int
    """Where its headers begin."""
    start: int
    """Where its bytes begin."""
    length: int
    link: bytes = b""
    """The member whose bytes it has, from the top of the archive; empty: it has its own."""


def padded(end: int) -> int:
    """The end of a member's last block."""
    return -(-end // BLOCK) * BLOCK


def members(read: Read, size: int) -> Iterator[Member]:
    """All files of an archive of ``size`` bytes, in order. ``Damaged`` says what is wrong at which byte."""
    common: dict[bytes, bytes] = {}
    at = 0
    while at < size:
        head = at
        given: dict[bytes, bytes] = {}
        while True:  # headers that say more about the member that follows
            header = read(at, BLOCK)
            if header == _EMPTY:
                return
            kind, length = _check(header, at, size)
            start = at + BLOCK
            if kind not in (b"x", b"X", b"g", b"L", b"K"):
                break
            if length > _LONGEST:
                raise Damaged(f"byte {at}: a header of {length} bytes")
            text = _whole(read, start, length, size)
            if kind == b"g":
                common |= _records(text, at)
            elif kind in (b"x", b"X"):
                given |= _records(text, at)
            else:
                given[b"path" if kind == b"L" else b"linkpath"] = text.rstrip(b"\0")
            at = padded(start + length)
            if at >= size:
                raise Damaged(f"byte {size}: it ends where a member should follow")
        known = common | given if common or given else given
        if kind == b"S" or (known and any(key.startswith(b"GNU.sparse.") for key in known)):
            name = known.get(b"GNU.sparse.name") or known.get(b"path") or _name(header)
            raise Damaged(
                f"byte {head}: {_shown(name)} is a sparse file, whose bytes do not lie in one piece; pack it without "
                "--sparse"
            )
        if kind == b"M":
            raise Damaged(f"byte {head}: it is one of several volumes; put them together first")
        name = known.get(b"path") or _name(header)
        if b"size" in known:
            length = _decimal(known[b"size"], head)
        # (old archives have folders that are told by their name alone)
        is_file = kind in (b"0", b"\0", b"7") and not (kind == b"\0" and name.endswith(b"/"))
        if kind in (_HARD, _SYMBOLIC):
            target = known.get(b"linkpath") or _text(header, 157, 100)
            at = start
            yield Member(name, head, start, 0, _followed(name, target, kind == _SYMBOLIC))
            continue
        if kind in _NO_BYTES:
            at = start
            continue
        if start + length > size:
            raise Damaged(
                f"byte {size}: it ends in the middle of {_shown(name)}, which has {length} bytes from byte {start} on"
            )
        at = padded(start + length)
        # What is of no kind that is known here counts as a file, as the standard has it; D and V are GNU's notes.
        if is_file or kind not in (b"\0", b"0", b"7", b"D", b"V", b"N"):
            yield Member(name, head, start, length)


def _check(header: bytes, at: int, size: int) -> tuple[bytes, int]:
    """The kind and the length of a member, if this is a header."""
    if len(header) < BLOCK:
        raise Damaged(f"byte {size}: it ends in the middle of a header")
    field = header[148:156]
    try:
        told = int(field.strip(b" \0") or b"-1", 8)
        length = _number(header[124:136])
    except ValueError:
        told, length = -1, -1
    # (the low half of adler32 is one more than the sum of all bytes: far faster than to add them up here)
    right = told >= 0 and (told - 255 + sum(field)) % _MODULUS == zlib.adler32(header) & 0xFFFF
    if not right:
        rest = header[:148] + b" " * 8 + header[156:]
        right = told in (sum(rest), sum(rest) - 256 * sum(byte > 127 for byte in rest))
    if not right or length < 0:
        for magic, method in COMPRESSED.items():
            if not at and header.startswith(magic):
                raise Damaged(f"it is compressed by {method}")
        raise Damaged(f"byte {at}: no header of a tar archive; it is damaged, or no tar archive")
    return header[156:157], length


def _number(field: bytes) -> int:
    """Octal digits, or a large number as GNU writes it."""
    if field[0] & 0x80:
        return -1 if field[0] & 0x40 else int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _decimal(text: bytes, at: int) -> int:
    if not text.isdigit():
        raise Damaged(f"byte {at}: a size of {_shown(text)}")
    return int(text)


def _text(header: bytes, start: int, length: int) -> bytes:
    return header[start : start + length].partition(b"\0")[0]


def _name(header: bytes) -> bytes:
    name = _text(header, 0, 100)
    if (
        header[257:263] != b"ustar\0"
    ):  # GNU has times and the like where others have the first part of a long name
        return name
    prefix = _text(header, 345, 131 if header[508:512] == b"tar\0" else 155)
    return prefix + b"/" + name if prefix else name


def _whole(read: Read, start: int, length: int, size: int) -> bytes:
    text = read(start, length)
    if len(text) < length:
        raise Damaged(f"byte {size}: it ends in the middle of a header")
    return text


_RECORD = re.compile(rb"(\d{1,20}) ([^=]+)=")


def _records(text: bytes, at: int) -> dict[bytes, bytes]:
    """The pax headers."""
    out = {}
    position = 0
    while position < len(text) and text[position]:
        found = _RECORD.match(text, position)
        end = position + int(found[1]) if found else 0
        if found is None or not found.end() < end <= len(text) or text[end - 1] != 10:
            raise Damaged(f"byte {at}: pax headers that are damaged")
        out[found[2]] = text[found.end() : end - 1]
        position = end
    return out


def _followed(name: bytes, target: bytes, symbolic: bool) -> bytes:
    """What a link leads to, from the top of the archive: symbolic ones start at their own folder."""
    if symbolic:
        target = target if target.startswith(b"/") else b"/".join((*name.split(b"/")[:-1], target))
    parts: list[bytes] = []
    for part in target.split(b"/"):
        if part == b"..":
            parts[-1:] = []
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def header_of(name: bytes, length: int) -> bytes:
    """The headers of a member, as an archive has them in front of its bytes."""
    made = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    made.size = length
    return made.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
