"""Sorted names in few bytes: of each, only what differs from the one before, between its beginning and its end."""

from __future__ import annotations

from collections.abc import Iterable

BLOCK = 16
"""Names that are read one after the other to get at the last of them."""


def _number(value: int) -> bytes:
    """A number in as many bytes as it needs, seven bits in each."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def encode(names: Iterable[bytes]) -> bytes:
    """A block of names. Any will do; those that begin or end as the one before take least."""
    out, before = [], b""
    for name in names:
        size = min(len(before), len(name))
        differ = int.from_bytes(before[:size]) ^ int.from_bytes(name[:size])
        head = size - (differ.bit_length() + 7) // 8
        rest = size - head
        tail = 0
        if rest:
            differ = int.from_bytes(before[-rest:], "little") ^ int.from_bytes(name[-rest:], "little")
            tail = rest - (differ.bit_length() + 7) // 8
        middle = name[head : len(name) - tail]
        if head < 128 and tail < 128 and len(middle) < 128:
            out.append(bytes((head, tail, len(middle))))
        else:
            out.append(_number(head) + _number(tail) + _number(len(middle)))
        out.append(middle)
        before = name
    return b"".join(out)


def decode(data: bytes | memoryview, count: int) -> list[bytes]:
    """The first ``count`` names of a block."""
    out: list[bytes] = []
    name, at = b"", 0
    data = bytes(data)
    for _ in range(count):
        head, tail, length = data[at], data[at + 1], data[at + 2]
        if head < 128 and tail < 128 and length < 128:
            at += 3
        else:
            head, at = _read(data, at)
            tail, at = _read(data, at)
            length, at = _read(data, at)
        end = name[len(name) - tail :] if tail else b""
        name = name[:head] + data[at : at + length] + end
        at += length
        out.append(name)
    return out
