"""Images of any format into arrays, in Python: what the kernels do not take, and what they fall back to.

JPEG goes through simplejpeg, the rest through OpenCV; Pillow is used for what those two cannot read (damaged JPEG,
CMYK JPEG with its Adobe inversion, rarer formats). What a header claims is checked before anything is decoded.
"""

from __future__ import annotations

import io
import struct
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headrace.recipes.image.claims import claimed_sizes, is_png, is_webp
from headrace.recipes.image.opencv import cv2
from headrace.recipes.image.rowspec import MAX_PIXELS, Blob

Mode: TypeAlias = Literal["RGB", "GRAY", "RGBA", "UNCHANGED"]
MODES = ("RGB", "GRAY", "RGBA", "UNCHANGED")
MIRRORS_X = (2, 3, 6, 7)
MIRRORS_Y = (3, 4, 7, 8)
TRANSPOSES = (5, 6, 7, 8)

_NATIVE_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
_NOT_FRAMES = (0xC4, 0xC8, 0xCC)
MOST_SCANS = 500
"""A small file can ask for any number of passes over a large image."""
_PILLOW = ["AVIF", "BMP", "DDS", "DIB", "GIF", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "PSD", "QOI", "SGI"]
_PILLOW += ["SUN", "TGA", "TIFF", "WEBP", "XBM"]
"""Formats whose header, as Pillow reads it, is what will be decoded; not so containers of other images."""


class Header(NamedTuple):
    """What the markers of a JPEG say. ``kind`` 1 is everything but a JPEG of 8 bits and 1 or 3 components that is not
    too short for its size."""

    kind: int
    width: int
    height: int
    orientation: int
    components: int
    scan: int
    """Where the first scan starts; 0 when there is none."""
    least: int = 0
    """Bytes from there on without which no such image can be."""
    claims: tuple[int, int] = (0, 0)
    """Width and height as stored, of every kind; of several frames, the largest."""

    def too_short(self, size: int) -> bool:
        """Whether so many bytes cannot hold what the header claims: such a file is of kind 1."""
        return self.scan > 0 and size - self.scan < self.least


def tiff_orientation(tiff: memoryview) -> int:
    """The orientation (1 to 8) in a TIFF structure, such as EXIF; 0 when it says none."""
    if len(tiff) < 8 or bytes(tiff[:4]) not in (b"II*\0", b"MM\0*"):
        return 0
    order = "<" if tiff[0] == ord("I") else ">"
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at > len(tiff) - 2:
        return 0
    (count,) = struct.unpack_from(order + "H", tiff, at)
    for entry in range(at + 2, min(at + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, entry)
        if tag != 0x0112:
            continue
        value = struct.unpack_from(order + {3: "H", 4: "I"}.get(kind, "0s"), tiff, entry + 8)[0]
        return value if isinstance(value, int) and 1 <= value <= 8 else 0
    return 0


def _least_bytes(marker: int, width: int, height: int, components: bytes) -> int:
    """See ``read_samplings`` in ``header.c``."""
    samplings = [(each >> 4, each & 15) for each in components[1::3]]
    max_h = max([1, *(h for h, _ in samplings)])
    max_v = max([1, *(v for _, v in samplings)])
    blocks = sum(-(-width * h // (8 * max_h)) * -(-height * v // (8 * max_v)) for h, v in samplings)
    return blocks // (512 if marker >= 0xC9 else 8 if marker == 0xC2 else 4)


def jpeg_header(blob: Blob) -> Header:
    """Read the markers of a JPEG up to its first scan; anything else is of kind 1."""
    data = memoryview(blob).cast("B")
    size, at, orientation, frames, scan = len(data), 2, 0, 0, 0
    kind, width, height, components, least = 1, 0, 0, 0, 0
    claims = (0, 0)
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return Header(1, 0, 0, 1, 0, 0)
    while size - at >= 4:
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0xFF:
            at += 1
            continue
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            at += 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if marker == 0xD9 or length < 2:
            break
        if marker == 0xDA:
            scan = at
            break
        if length > size - at - 2:
            break
        body = data[at + 4 : at + 2 + length]
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_FRAMES and length >= 8:
            precision, height, width, components = struct.unpack_from(">BHHB", body)
            takes = marker in _NATIVE_FRAMES and precision == 8 and components in (1, 3)
            kind = int(not (takes and width and height))
            least = _least_bytes(marker, width, height, bytes(body[6 : 6 + 3 * components]))
            claims = max(claims, (width, height), key=lambda side: side[0] * side[1])
            frames += 1
        elif marker == 0xE1 and not orientation and bytes(body[:6]) == b"Exif\0\0":
            orientation = tiff_orientation(body[6:])
        at += 2 + length
    if kind or frames != 1 or (scan and size - scan < least):
        return Header(1, 0, 0, orientation or 1, 0, scan, least, claims)
    if orientation in TRANSPOSES:
        width, height = height, width
    return Header(0, width, height, orientation or 1, components, scan, least, claims)


def _riff_chunk(data: memoryview, name: bytes) -> memoryview | None:
    at = 12
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 4)
        if bytes(data[at : at + 4]) == name:
            return data[at + 8 : at + 8 + length]
        at += 8 + length + (length & 1)
    return None


def _png_chunk(data: memoryview, name: bytes) -> memoryview | None:
    at = 8
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if bytes(data[at + 4 : at + 8]) == name:
            return data[at + 8 : at + 8 + length]
        at += 12 + length
    return None


def _orientation(data: memoryview) -> int:
    """The orientation that formats other than JPEG carry. (OpenCV turns TIFF itself.)"""
    exif = None
    if is_png(data):
        exif = _png_chunk(data, b"eXIf")
    elif is_webp(data):
        exif = _riff_chunk(data, b"EXIF")
        if exif is not None and bytes(exif[:6]) == b"Exif\0\0":
            exif = exif[6:]
    return (tiff_orientation(exif) if exif is not None else 0) or 1


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Refuse an image of more pixels than allowed."""
    if width * height > max_pixels:
        raise ValueError(
            f"image of {width}x{height} pixels is over the limit of {max_pixels} pixels; raise max_pixels="
        )


def check_plausible(data: bytes, header: Header) -> None:
    """Refuse a JPEG that cannot hold what it claims, before memory is taken, or that has too many scans."""
    if header.too_short(len(data)):
        raise ValueError("truncated JPEG: it is shorter than any image of its size")
    if data.count(b"\xff\xda", header.scan) > MOST_SCANS:
        raise ValueError(f"broken JPEG: it has more than {MOST_SCANS} scans")


def _reaches_end(data: bytes, at: int) -> bool:
    """Whether the end marker is reached from the first scan on, over scans and segments between: ``find_end``."""
    while (at := data.find(b"\xff", at)) >= 0 and at + 1 < len(data):
        marker = data[at + 1]
        if marker == 0xD9:
            return True
        if marker == 0xFF:
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


def oriented(image: NDArray[Any], orientation: int) -> NDArray[Any]:
    """A stored image as it is shown."""
    if orientation in TRANSPOSES:
        image = image.swapaxes(0, 1)
    if orientation in MIRRORS_X:
        image = image[:, ::-1]
    if orientation in MIRRORS_Y:
        image = image[::-1]
    return np.ascontiguousarray(image)


def _by_pillow(data: bytes, mode: str, width: int, height: int, scale: int) -> NDArray[np.uint8]:
    """What libjpeg makes of a JPEG that simplejpeg objects to: only errors fail, not warnings."""
    from PIL import Image

    size = (-(-width // scale), -(-height // scale))
    image = Image.frombytes(mode, size, data, "jpeg", mode, "", scale, 0)
    return np.asarray(image)


def decode_jpeg(
    blob: Blob, header: Header, channels: int, *, scale: int = 1, max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Decode a JPEG of kind 0 to (height, width, channels), turned as shown, at ``1/scale`` of its size."""
    check_size(header.width, header.height, max_pixels)
    width, height = header.width, header.height
    if header.orientation in TRANSPOSES:
        width, height = height, width
    options: dict[str, Any] = {
        "colorspace": "RGB" if channels == 3 else "GRAY",
        "fastdct": False,
        "fastupsample": False,
    }
    if scale > 1:
        options.update(min_height=-(-height // scale), min_width=-(-width // scale), min_factor=scale)
    data = bytes(blob)
    check_plausible(data, header)
    try:
        image = simplejpeg.decode_jpeg(data, strict=True, **options)
    except ValueError as error:
        if not _reaches_end(data, header.scan or 2):
            raise ValueError(f"truncated JPEG: {error}") from error
        try:  # it may be a warning only, or a sampling that simplejpeg does not know
            image = _by_pillow(data, "RGB" if channels == 3 else "L", width, height, scale)
        except ValueError as fatal:
            if "not enough" in str(fatal):
                raise ValueError(f"truncated JPEG: {error}") from error
            raise ValueError(f"broken JPEG: {error}") from error
    if image.ndim == 2:
        image = image[:, :, None]
    return oriented(image, header.orientation)


def _with_pillow(data: memoryview, max_pixels: int) -> NDArray[Any] | None:
    """What Pillow makes of it, in the channel order of OpenCV; None where it fails."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=_PILLOW) as image:
            check_size(image.width, image.height, max_pixels)
            image.load()
            turned = ImageOps.exif_transpose(image)
    except Image.DecompressionBombError as error:  # allowed here, and not there
        raise ValueError(f"{error}; raise PIL.Image.MAX_IMAGE_PIXELS, too") from error
    except (OSError, SyntaxError, struct.error):
        return None
    alpha = turned.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in turned.info
    if turned.mode in ("L", "I;16", "1"):
        return np.asarray(turned.convert("L") if turned.mode == "1" else turned)
    array = np.asarray(turned.convert("RGBA" if alpha else "RGB"))
    return array[:, :, [2, 1, 0, 3][: array.shape[2]]]


def _read(data: memoryview, max_pixels: int) -> NDArray[Any]:
    """Any format as OpenCV returns it: (h, w) or (h, w, BGR or BGRA), any depth, turned as shown."""
    start = bytes(data[:8])
    if start[:2] == b"\xff\xd8":
        # of several kinds OpenCV reads few, and CMYK without regard to profiles or inversion; so Pillow alone
        header = jpeg_header(data)
        check_size(*header.claims, max_pixels)
        check_plausible(bytes(data), header)
        if not _reaches_end(bytes(data), header.scan or 2):
            raise ValueError("truncated JPEG: it has no end")
        image = _with_pillow(data, max_pixels)
        if image is None:
            raise ValueError("truncated JPEG: it ends before its pixels, or it is broken")
        return image
    known = claimed_sizes(data)
    for width, height in known:
        check_size(width, height, max_pixels)
    if is_png(data) and _png_chunk(data, b"IEND") is None:
        raise ValueError("truncated PNG: it has no end")
    if is_webp(data) and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise ValueError("truncated WebP: it is shorter than its header says")
    if known:
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        except cv2.error:
            image = None
        if image is not None:
            return oriented(image, _orientation(data))
    image = _with_pillow(data, max_pixels)
    if image is not None:
        return image
    if not len(data):
        raise ValueError("not an image: it is empty")
    raise ValueError(f"not an image: unknown format or broken (starts with {start!r})")


def decode_any(blob: Blob, *, mode: Mode = "RGB", max_pixels: int = MAX_PIXELS) -> NDArray[Any]:
    """Decode an image of any format, turned as its EXIF orientation says; of an animation, the first frame.

    ``RGB`` gives (h, w, 3) uint8, ``GRAY`` (h, w, 1), ``RGBA`` (h, w, 4). Grey is repeated, alpha is dropped
    (not composited), palettes are expanded, and of 16 bits the upper 8 are kept. ``UNCHANGED`` keeps depth
    and channels, the latter in the order RGB or RGBA. Raises ValueError with the reason.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}; possible are {', '.join(MODES)}")
    header = jpeg_header(blob)
    if header.kind == 0:
        channels = 1 if mode == "GRAY" or (mode == "UNCHANGED" and header.components == 1) else 3
        image: NDArray[Any] = decode_jpeg(blob, header, channels, max_pixels=max_pixels)
        image = image[:, :, ::-1] if channels == 3 else image
    else:
        image = _read(memoryview(blob).cast("B"), max_pixels)
        check_size(image.shape[1], image.shape[0], max_pixels)
    if image.ndim == 2:
        image = image[:, :, None]
    if mode != "UNCHANGED" and image.dtype != np.uint8:
        if image.dtype != np.uint16:
            raise ValueError(f'image of {image.dtype} pixels; decode it with mode="UNCHANGED"')
        image = (image >> 8).astype(np.uint8)
    return _converted(image, mode)


def decode_stored(blob: Blob, *, mode: str = "RGB", max_pixels: int = MAX_PIXELS) -> NDArray[Any]:
    """Decode an image of any format as ``Image.open(...).convert(mode)`` of Pillow does, to (h, w, channels)."""
    from PIL import Image

    data = memoryview(blob).cast("B")
    with Image.open(io.BytesIO(data)) as image:
        check_size(image.width, image.height, max_pixels)
        pixels = np.asarray(image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _converted(image: NDArray[Any], mode: Mode) -> NDArray[Any]:
    channels = image.shape[2]
    if mode == "GRAY" and channels >= 3:
        return np.asarray(cv2.cvtColor(np.ascontiguousarray(image[:, :, :3]), cv2.COLOR_BGR2GRAY))[:, :, None]
    if mode == "GRAY" or (mode == "UNCHANGED" and channels < 3):
        return np.ascontiguousarray(image if mode == "UNCHANGED" else image[:, :, :1])
    if channels < 3:
        # one channel, or grey and alpha
        image = np.concatenate([image[:, :, :1]] * 3 + ([image[:, :, 1:]] if channels == 2 else []), axis=2)
        channels = image.shape[2]
    swapped = image[:, :, [2, 1, 0, 3][:channels]]
    if mode == "RGB":
        swapped = swapped[:, :, :3]
    elif mode == "RGBA" and channels == 3:
        swapped = np.concatenate([swapped, np.full_like(swapped[:, :, :1], 255)], axis=2)
    return np.ascontiguousarray(swapped)
