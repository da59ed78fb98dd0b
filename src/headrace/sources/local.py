"""Samples that are files of the local (or a mounted) file system."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.sources.paths import PathTable
from headrace.sources.source import as_targets
from headrace.sources.versions import versions

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
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
    ) -> None:
        self._table = table
        self._targets = as_targets(targets, len(table))
        self._listing: str | None = None
        self._versions: NDArray[np.int64] | None = None
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

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """The bytes of each file, or the error that kept it from being read."""
        paths = self._table.many(indices)
        return read_files(paths) if self.encoded else list(paths)

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
        paths = self._table.many(indices)
        found = versions(paths) if self._versions is None else self._versions[np.asarray(indices, np.int64)]
        return [b"%b\0%x.%x" % (path, *found) for path, found in zip(paths, found.tolist(), strict=True)]

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


def read_files(paths: Sequence[bytes]) -> list[bytes | BaseException]:
    """All bytes of each file; an ``OSError`` is returned in its place, not raised.

    Several files are opened and announced before the first is read, so that a disk or a server works on all of
    them at once: twice as fast when they are not in memory, and hardly slower when they are.
    """
    out: list[bytes | BaseException] = []
    for start in range(0, len(paths), _AT_ONCE):
        waiting = [_open(path) for path in paths[start : start + _AT_ONCE]][::-1]
        try:
            while waiting:
                opened = waiting.pop()
                out.append(opened if isinstance(opened, OSError) else _read(opened, paths[len(out)]))
        finally:
            for opened in waiting:
                if isinstance(opened, int):
                    os.close(opened)
    return out


def _open(path: bytes) -> int | OSError:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        return error
    with contextlib.suppress(OSError):  # it is advice; not every file system takes any
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    return descriptor


def _read(descriptor: int, path: bytes) -> bytes | BaseException:
    try:
        size = os.fstat(descriptor).st_size
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


def files(
    paths: Sequence[str | os.PathLike[str]], targets: Any = None, *, encoded: bool = True
) -> FileSource:
    """A source of the given files, in the given order, with an optional target for each.

    With ``encoded=False`` the files are not read: decode is called with each file's path (as bytes).
    """
    if isinstance(paths, str | bytes | os.PathLike):
        raise OptionError(
            f"files() takes a list of paths, got the single path {paths!r}; write files([{paths!r}])"
        )
    if len(paths) == 0:
        raise OptionError("files() got an empty list of paths")
    return FileSource(PathTable.of(paths), targets, encoded=encoded)
