"""What image files claim to be: width and height as their headers have them, read before anything is decoded.

A few bytes can ask for any amount of memory. OpenCV is only given formats that are read here, and Pillow, which
reads headers first by itself, the others. Where a format says its size in several places, the largest counts, and a
header that cannot be read is refused: what a decoder would make of it is not known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

Sizes: TypeAlias = list[tuple[int, int]]

_TEXT = 1 << 16
"""Bytes within which a header made of text must end."""
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_TIFF_TYPES = {1: 1, 3: 2, 4: 4, 16: 8}
"""Sizes of the integer types of TIFF."""


def is_webp(data: memoryview) -> bool:
    """Whether it starts as a WebP image."""
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WEBP"


def is_png(data: memoryview) -> bool:
    """Whether it starts as a PNG image."""
    return bytes(data[:8]) == b"\x89PNG\r\n\x1a\n"


def _png(data: memoryview) -> Sizes:
    return [struct.unpack_from(">II", data, 16)]


def _gif(data: memoryview) -> Sizes:
    sizes: Sizes = [struct.unpack_from("<HH", data, 6)]
    flags, at = data[10], 13
    at += 3 << ((flags & 7) + 1) if flags & 0x80 else 0
    while at < len(data):
        if data[at] == 0x2C:  # the first frame, which may be larger than the screen
            left, top, width, height = struct.unpack_from("<4H", data, at + 1)
            sizes.append((left + width, top + height))
            break
        if data[at] != 0x21:
            break
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    return sizes


def _bmp(data: memoryview) -> Sizes:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if size == 12 else "<ii", data, 18)
    return [(abs(width), abs(height))]


def _webp(data: memoryview) -> Sizes:
    kind = bytes(data[12:16])
    if kind == b"VP8X":
        return [(1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little"))]
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return [(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return [(width & 0x3FFF, height & 0x3FFF)]
    return []


def _tiff(data: memoryview) -> Sizes:
    order = "<" if data[0] == ord("I") else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
    at += 8 if big else 2
    sides = {256: 0, 257: 0, 322: 0, 323: 0}  # of the image, and of a tile, for which memory is taken, too
    for entry in range(min(count, 1 << 16)):
        tag, kind = struct.unpack_from(order + "HH", data, at + (20 if big else 12) * entry)
        if tag in sides:
            value = at + (20 if big else 12) * entry + (12 if big else 8)
            letter = {1: "B", 2: "H", 4: "I", 8: "Q"}[_TIFF_TYPES[kind]]
            sides[tag] = max(sides[tag], struct.unpack_from(order + letter, data, value)[0])
    return [(sides[256], sides[257]), *([(sides[322], sides[323])] if sides[322] else [])]


def _pnm(data: memoryview) -> Sizes:
    found = re.match(rb"P." + _GAP + rb"(\d{1,9})" + _GAP + rb"(\d{1,9})\D", bytes(data[:_TEXT]), re.DOTALL)
    return [(int(found[1]), int(found[2]))] if found else []


def _pam(data: memoryview) -> Sizes:
    head, end, _ = bytes(data[:_TEXT]).partition(b"ENDHDR")
    widths, heights = (re.findall(name + rb"\s+(\d{1,9})", head) for name in (b"WIDTH", b"HEIGHT"))
    return [(max(map(int, widths)), max(map(int, heights)))] if end and widths and heights else []


def _radiance(data: memoryview) -> Sizes:
    found = re.findall(rb"[-+]Y +(\d{1,9}) +[-+]X +(\d{1,9})\n", bytes(data[:_TEXT]))
    return [(int(width), int(height)) for height, width in found]


def _sun(data: memoryview) -> Sizes:
    return [struct.unpack_from(">II", data, 4)]


def _codestream(data: memoryview) -> Sizes:
    right, bottom, left, top = struct.unpack_from(">4I", data, 8)
    (components,) = struct.unpack_from(">H", data, 40)
    if bytes(data[:4]) != b"\xff\x4f\xff\x51" or left > right or top > bottom or components > 4:
        return []
    return [(right - left, bottom - top)]


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The boxes of an ISO media file, or of a part of one: their types and contents."""
    at = 0
    while at + 8 <= len(data):
        size, head = struct.unpack_from(">I", data, at)[0], 8
        if size == 1:
            size, head = struct.unpack_from(">Q", data, at + 8)[0], 16
        end = at + size if size else len(data)
        if end < at + head:
            return
        yield bytes(data[at + 4 : at + 8]), data[at + head : end]
        at = end


def _jpeg_2000(data: memoryview) -> Sizes:
    for name, content in _boxes(data):
        if name == b"jp2c":
            return _codestream(content)
    return []


def _avif(data: memoryview) -> Sizes:
    """Of every item that there is. (The decoder has a limit of its own for frames that are larger.)"""
    sizes: Sizes = []
    for name, content in _boxes(data):
        if name == b"meta":
            head = bytes(content)
            sizes += [struct.unpack_from(">II", head, at.end() + 4) for at in re.finditer(b"ispe", head)]
    return sizes


_READERS: tuple[tuple[str, bytes, Callable[[memoryview], Sizes]], ...] = (
    ("PNG", rb"\x89PNG\r\n\x1a\n", _png),
    ("GIF", rb"GIF8", _gif),
    ("BMP", rb"BM", _bmp),
    ("WebP", rb"RIFF....WEBP", _webp),
    ("TIFF", rb"II[*+]\0|MM\0[*+]", _tiff),
    ("PNM", rb"P[1-6fF]\s", _pnm),
    ("PAM", rb"P7\s", _pam),
    ("Radiance image", rb"#\?R", _radiance),
    ("Sun raster", rb"\x59\xa6\x6a\x95", _sun),
    ("JPEG 2000", rb"\xff\x4f\xff\x51", _codestream),
    ("JPEG 2000", rb"\0\0\0\x0cjP  ", _jpeg_2000),
    ("AVIF", rb"....ftyp", _avif),
)
_SIGNATURES = [(name, re.compile(start, re.DOTALL), read) for name, start, read in _READERS]


def claimed_sizes(data: memoryview) -> Sizes:
    """Every width and height that an image of a known format (other than JPEG) claims; none: it is of no known one.

    ValueError: it starts as an image of a known format, and its size cannot be read.
    """
    start, sizes = bytes(data[:16]), []
    for name, signature, read in _SIGNATURES:
        if not signature.match(start):
            continue
        try:
            found = read(data)
        except (struct.error, IndexError, KeyError):
            found = []
        if not found or not all(width and height for width, height in found[:1]):
            raise ValueError(f"truncated or broken {name}: its header does not say how large it is")
        sizes += found
    return sizes
