"""Samples that are files of the local (or a mounted) file system."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size, show_size
from headrace.sources.location import Location
from headrace.sources.paths import PathTable
from headrace.sources.source import as_targets
from headrace.sources.versions import versions

MAX_BYTES = 1 << 30
"""Larger files are refused unless the caller allows them: one sample should not fill the memory."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Nonblocking for the sake of what is no file: opening a FIFO waits for somebody who writes to it."""
_AT_ONCE = 32
"""Files that one call has open at a time: far below any limit, with many threads at work."""


class FileSource:
    """One file per sample. ``classes`` are the names of the targets where these are class numbers."""

    def __init__(
        self,
        table: PathTable,
        targets: Any = None,
        *,
        classes: Sequence[str] | None = None,
        encoded: bool = True,
        max_bytes: int | str = MAX_BYTES,
        listed: Mapping[str, Any] | None = None,
    ) -> None:
        """``listed``: the arguments of ``folder``, where it is that which found the files."""
        self._max_bytes = parse_size(max_bytes, total=0, option="max_bytes")
        if not self._max_bytes:
            raise OptionError(f"max_bytes={max_bytes!r}: must be positive")
        self._table = table
        self._targets = as_targets(targets, len(table))
        self._listing: str | None = None
        self._versions: NDArray[np.int64] | None = None
        self._listed = listed
        self.encoded = encoded
        self.classes = None if classes is None else list(classes)

    @property
    def targets(self) -> NDArray[Any] | list[Any] | None:
        """The target of each sample, or None where samples have none."""
        return self._targets

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The class number of each class name."""
        return {name: number for number, name in enumerate(self.classes or ())}

    @property
    def root(self) -> str:
        """The folder that all files lie below."""
        return self._table.root

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        return f"FileSource({self.root!r}: {len(self)} files{classes})"

    def definition(self) -> tuple[str, dict[str, Any]]:
        """The function that makes it, and its arguments as plain data: for files, their paths below one root."""
        if self._listed is not None:
            return "folder", {**self._listed, "max_bytes": self._max_bytes}
        arguments = {"targets": self._targets, "encoded": bool(self.encoded), "max_bytes": self._max_bytes}
        return "files", {"root": self.root, "paths": self._table.relative(), **arguments}

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """The bytes of each file, or the error that kept it from being read."""
        paths = self._table.many(indices)
        return read_files(paths, self._max_bytes) if self.encoded else list(paths)

    def locate(self, indices: Sequence[int] | NDArray[Any]) -> list[Location | None]:
        """See ``Locating``. Files count as they do for ``identity_bytes``."""
        paths, found = self._versioned(indices)
        return [
            Location(path, b"%x.%x" % tuple(one)) for path, one in zip(paths, found.tolist(), strict=True)
        ]

    def location_reader(self) -> FileReader:
        """See ``Locating``."""
        return FileReader(self._max_bytes)

    def name(self, index: int) -> str:
        """The file's path."""
        return self._table[index]

    def identity(self, index: int) -> str:
        """The file's path, size and time of change: stable over processes, orders and subsets."""
        return os.fsdecode(self.identity_bytes([index])[0])

    def identity_bytes(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes]:
        """The identity of each sample as the bytes that a digest is taken of; for many samples at once.

        Files count as they were when the fingerprint was last taken, else as they are now.
        """
        paths, found = self._versioned(indices)
        return [b"%b\0%x.%x" % (path, *found) for path, found in zip(paths, found.tolist(), strict=True)]

    def _versioned(self, indices: Sequence[int] | NDArray[Any]) -> tuple[list[bytes], NDArray[np.int64]]:
        """Path and version of each sample's file."""
        paths = self._table.many(indices)
        if self._versions is not None:
            return paths, self._versions[np.asarray(indices, np.int64)]
        return paths, versions(paths)

    def listing(self) -> str:
        """A digest of all paths in order, whatever the files hold."""
        if self._listing is None:
            self._listing = self._table.digest()
        return self._listing

    def fingerprint(self) -> str:
        """A digest of all paths in order, and of each file's size and time of change as they are now.

        Whoever shares asks for it anew with each loader, so a file that was changed in place is another sample to
        the next one.
        """
        self._versions = versions(self._table.many(np.arange(len(self))))
        sha = hashlib.sha256(b"versions")
        sha.update(self.listing().encode())
        sha.update(self._versions.astype("<i8").data)
        return sha.hexdigest()


def read_files(paths: Sequence[bytes], max_bytes: int = MAX_BYTES) -> list[bytes | BaseException]:
    """All bytes of each file; an ``OSError`` is returned in its place, not raised.

    What is no regular file, or larger than ``max_bytes``, is refused before anything is read.

    Several files are opened and announced before the first is read, so that a disk or a server works on all of
    them at once: twice as fast when they are not in memory, and hardly slower when they are.
    """
    out: list[bytes | BaseException] = []
    for start in range(0, len(paths), _AT_ONCE):
        waiting = [_open(path, max_bytes) for path in paths[start : start + _AT_ONCE]][::-1]
        try:
            while waiting:
                opened = waiting.pop()
                out.append(opened if isinstance(opened, OSError) else _read(*opened, paths[len(out)]))
        finally:
            for opened in waiting:
                if not isinstance(opened, OSError):
                    os.close(opened[0])
    return out


class FileReader:
    """Reads files, and parts of files."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes

    def read(self, locations: Sequence[Location]) -> list[bytes | BaseException]:
        """See ``LocationReader``. A part that the file ends before the end of is an error."""
        if all(one.length is None and not one.start for one in locations):
            return read_files([one.what for one in locations], self._max_bytes)
        return [self._one(one) for one in locations]

    def _one(self, one: Location) -> bytes | BaseException:
        if one.length is None and not one.start:
            return read_files([one.what], self._max_bytes)[0]
        opened = _open(one.what, sys.maxsize, one.start, one.length or 0)
        if isinstance(opened, OSError):
            return opened
        descriptor, size = opened
        name = os.fsdecode(one.what)
        try:
            length = max(0, size - one.start) if one.length is None else one.length
            if length > self._max_bytes:
                return OSError(errno.EFBIG, f"a part of {show_size(length)} is too large to be read", name)
            parts, have = [], 0
            while have < length:
                parts.append(os.pread(descriptor, length - have, one.start + have))
                have += len(parts[-1])
                if not parts[-1]:
                    return OSError(errno.ENODATA, f"it ends before byte {one.start + length}", name)
            return b"".join(parts)
        except OSError as error:
            error.filename = name
            return error
        finally:
            os.close(descriptor)


def _open(path: bytes, max_bytes: int, start: int = 0, length: int = 0) -> tuple[int, int] | OSError:
    """A descriptor and the file's size. The part that will be read is announced; 0 bytes: all from ``start`` on."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        return error
    try:
        found = os.fstat(descriptor)
        refused = _refusal(found, path, max_bytes)
    except OSError as error:
        refused = error
    if refused is not None:
        os.close(descriptor)
        return refused
    with contextlib.suppress(OSError):  # it is advice; not every file system takes any
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
    return descriptor, found.st_size


def _refusal(found: os.stat_result, path: bytes, max_bytes: int) -> OSError | None:
    name = os.fsdecode(path)
    if stat.S_ISDIR(found.st_mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(found.st_mode):
        what = "a FIFO" if stat.S_ISFIFO(found.st_mode) else "a device or socket"
        return OSError(errno.EINVAL, f"{what}, and not a regular file", name)
    if found.st_size > max_bytes:
        large = f"it has {show_size(found.st_size)}, and at most {show_size(max_bytes)} are read; if it is meant to "
        return OSError(errno.EFBIG, large + "be so large, pass max_bytes= to files() or folder()", name)
    return None


def _read(descriptor: int, size: int, path: bytes) -> bytes | BaseException:
    try:
        data = os.read(descriptor, size)
        if len(data) == size:
            return data
        # A single read stops short at 2 GiB, at signals, and on some network file systems.
        parts, have = [data], len(data)
        while data and have < size:
            data = os.read(descriptor, size - have)
            parts.append(data)
            have += len(data)
        return b"".join(parts)
    except OSError as error:
        if error.filename is None:
            error.filename = os.fsdecode(path)
        return error
    finally:
        os.close(descriptor)


def is_url(what: str | bytes | os.PathLike[str]) -> bool:
    """Whether it names something elsewhere than in the file system."""
    text = os.fsencode(what)
    return b"://" in text and not text.startswith(b"file://")


def local_path(what: str | bytes | os.PathLike[str]) -> str:
    """A path, also where it was written as a ``file://`` URL."""
    text = os.fsdecode(what)
    if not text.startswith("file://"):
        return text
    path = unquote(text.removeprefix("file://").removeprefix("localhost"))
    if not path.startswith("/"):
        raise OptionError(f"{text!r} is no URL of a file; expected file:///path")
    return path
