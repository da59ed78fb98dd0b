"""A listing of a bucket as a file: names, sizes, versions and classes of millions of objects, mapped into memory.

It is never read as a whole. Its pages are those of the file, which all processes of the machine share, and of which
only those are in memory that were looked at: opening it takes as long for ten million objects as for ten.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.files import PARTIAL
from headrace.sources.buckets.front_coding import BLOCK, decode, encode

_MAGIC = b"HRBUCKET"
_FORMAT = 2
_ALIGN = 4096
_FLUSH = 1 << 20


class Header(msgspec.Struct):
    """What a manifest says of itself."""

    format: int
    url: str
    """Of the folder that was listed; names are relative to it."""
    count: int
    bytes: int
    """Of the names, as they are encoded."""
    wide: bool
    """Whether sizes take 8 bytes each: some object has 4 GiB or more."""
    classes: list[str] | None
    listed: float
    """When, in seconds since 1970."""
    listing: str = ""
    """A digest of all names in order."""
    fingerprint: str = ""
    """The same, and of all versions."""


def _places(count: int, wide: bool, labels: bool) -> dict[str, tuple[int, int]]:
    """Where each part begins, after the header, and how long it is; the names come last."""
    out, at = {}, 0
    lengths = {
        "blocks": (-(-count // BLOCK) + 1) * 8,
        "sizes": count * (8 if wide else 4),
        "versions": count * 16,
        "targets": count * 8 if labels else 0,
    }
    for name, length in lengths.items():
        out[name] = (at, length)
        at += -(-length // 64) * 64
    out["names"] = (at, 0)
    return out


class Manifest:
    """A manifest that was opened. It can be pickled: as the file's path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ``OSError`` or ``ValueError`` for what is no manifest, or no whole one."""
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            start = file.read(12)
            if len(start) < 12 or start[:8] != _MAGIC:
                raise ValueError(f"{self.path} is no manifest")
            (length,) = struct.unpack("<I", start[8:])
            try:
                self.header = msgspec.json.decode(file.read(length), type=Header)
            except msgspec.DecodeError as error:
                raise ValueError(f"{self.path} is no manifest: {error}") from None
            if self.header.format != _FORMAT:
                raise ValueError(f"{self.path} is of format {self.header.format}")
            base = _after(length)
            places = _places(self.header.count, self.header.wide, self.header.classes is not None)
            size = base + places["names"][0] + self.header.bytes
            if os.fstat(file.fileno()).st_size != size:
                raise ValueError(f"{self.path} is cut off")
            self._map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)

        def part(name: str, kind: str) -> NDArray[Any]:
            at, length = places[name]
            found = np.frombuffer(self._map, np.uint8, length, base + at)
            return found.view(kind)

        self._blocks = part("blocks", "<u8")
        self._sizes = part("sizes", "<u8" if self.header.wide else "<u4")
        self._versions = part("versions", "V16")
        self.targets: NDArray[np.int64] | None = None
        if self.header.classes is not None:
            self.targets = part("targets", "<i8")
        self._names = base + places["names"][0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.path, self.header.fingerprint)

    def __len__(self) -> int:
        return self.header.count

    def names(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The names of some objects, from the folder on."""
        at = np.asarray(indices, np.int64)
        if at.size and (int(at.min()) < 0 or int(at.max()) >= len(self)):
            raise IndexError(
                f"sample indices must lie in 0..{len(self) - 1}, got {int(at.min())}..{int(at.max())}"
            )
        out: list[bytes] = []
        last, block = -1, list[bytes]()
        for index in at.tolist():
            number, row = divmod(index, BLOCK)
            if number != last or row >= len(block):
                start, stop = int(self._blocks[number]), int(self._blocks[number + 1])
                data = self._map[self._names + start : self._names + stop]
                # The rest of the block, if others of it follow; so all blocks are read once where all names are.
                count = min(BLOCK, len(self) - number * BLOCK) if row == 0 else row + 1
                last, block = number, decode(data, count)
            out.append(block[row])
        return out

    def versions(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The version of each object, as ``version_of`` gives it."""
        return [bytes(one).hex().encode() for one in self._versions[np.asarray(indices, np.int64)]]

    def sizes(self, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Bytes of each object."""
        return self._sizes[np.asarray(indices, np.int64)].astype(np.int64)


def _again(path: str, fingerprint: str) -> Manifest:
    found = Manifest(path)
    if found.header.fingerprint != fingerprint:
        raise ValueError(f"{path} is another listing than the one that was meant")
    return found


def _after(length: int) -> int:
    return -(-(12 + length) // _ALIGN) * _ALIGN


class Writer:
    """Writes a manifest: all objects in order, some at a time. Memory does not grow with their number."""

    def __init__(
        self, folder: Path, url: str, count: int, *, wide: bool, classes: Sequence[str] | None, listed: float
    ) -> None:
        self.header = Header(
            _FORMAT,
            url,
            count,
            0,
            wide,
            None if classes is None else list(classes),
            listed,
            "0" * 64,
            "0" * 64,
        )
        self.header.bytes = 1 << 62  # (the header is as long in the end)
        self._base = _after(len(msgspec.json.encode(self.header)))
        self._places = _places(count, wide, classes is not None)
        descriptor, self._path = tempfile.mkstemp(prefix=".", suffix=PARTIAL, dir=folder)
        self._file = os.fdopen(descriptor, "wb")
        self._parts: dict[str, tuple[bytearray, int]] = {
            name: (bytearray(), self._base + at) for name, (at, _) in self._places.items()
        }
        self._pending: list[bytes] = []
        self._have = self._names = 0
        self._listing = hashlib.sha256(b"bucket " + url.encode() + b"\0")
        self._content = hashlib.sha256(b"versions")
        self._add("blocks", struct.pack("<Q", 0))

    def append(
        self, names: Sequence[bytes], sizes: Sequence[int], versions: bytes, target: int | None = None
    ) -> None:
        """More objects. ``versions``: 16 bytes of each. ``target``: the number of their class."""
        count = len(names)
        self._listing.update(b"\0".join(names) + b"\0")
        self._content.update(versions)
        self._add("sizes", np.array(sizes, "<u8" if self.header.wide else "<u4").tobytes())
        self._add("versions", versions)
        if target is not None:
            self._add("targets", np.full(count, target, "<i8").tobytes())
        self._have += count
        pending = self._pending
        pending.extend(names)
        whole = len(pending) // BLOCK * BLOCK
        self._encode(pending[:whole])
        del pending[:whole]

    def _encode(self, names: list[bytes]) -> None:
        ends = []
        for start in range(0, len(names), BLOCK):
            block = encode(names[start : start + BLOCK])
            self._add("names", block)
            self._names += len(block)
            ends.append(self._names)
        self._add("blocks", struct.pack(f"<{len(ends)}Q", *ends))

    def _add(self, part: str, data: bytes) -> None:
        buffer = self._parts[part][0]
        buffer += data
        if len(buffer) >= _FLUSH:
            self._flush(part)

    def _flush(self, part: str) -> None:
        buffer, at = self._parts[part]
        if buffer:
            self._file.seek(at)
            self._file.write(buffer)
            self._parts[part] = (bytearray(), at + len(buffer))

    def finish(self, path: Path) -> Manifest:
        """Put it in its place: there is all of it, or none."""
        if self._have != self.header.count:
            raise ValueError(f"{self._have} objects of {self.header.count}")
        self._encode(self._pending)
        for part in self._parts:
            self._flush(part)
        self.header.bytes = self._names
        self.header.listing = self._listing.hexdigest()
        self._content.update(self.header.listing.encode())
        self.header.fingerprint = self._content.hexdigest()
        text = msgspec.json.encode(self.header)
        # What follows begins where the header was expected to end: blanks fill it up.
        text += b" " * (self._base - 12 - len(text))
        self._file.seek(0)
        self._file.write(_MAGIC + struct.pack("<I", len(text)) + text)
        self._file.truncate(self._base + self._places["names"][0] + self._names)
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self._file.close()
        os.replace(self._path, path)
        return Manifest(path)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
