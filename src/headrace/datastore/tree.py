"""Writes what comes out of an archive into a folder, and nothing outside of it; each file's digest with it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from headrace.datastore.errors import BadArchive, UnsafeArchive
from headrace.datastore.layout import BLOCK, on_disk
from headrace.datastore.manifest import Record

PIECE = 1 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Meter(Protocol):
    """Counts what is about to be written, and may refuse it."""

    def take(self, count: int) -> None:
        """So many bytes more. Raises ``NoRoom``, or ``Stopped`` where somebody asked for an end."""
        ...


class Tree:
    """A folder that is filled. Threads may fill it together.

    There are no links in it until all else is written, so that no name can lead out of it by one.
    """

    def __init__(self, folder: Path, top: str, meter: Meter, archive: str) -> None:
        """``top``: the sub-folder into which it goes. ``archive``: what it is called in errors."""
        self._folder, self._top, self._meter, self._archive = folder, top, meter, archive
        self._records: dict[str, Record] = {}
        self._links: dict[str, str] = {}
        self._made: set[str] = set()
        self._lock = threading.Lock()
        self._make(top)

    def folder(self, name: str) -> None:
        """A folder."""
        self._make(self._clean(name))

    def file(
        self, name: str, read: Callable[[int], bytes], mode: int = 0, changed: float | None = None
    ) -> None:
        """A file; ``read(n)`` gives its bytes until there are no more. One of that name that was there goes."""
        path = self._clean(name)
        self._make(os.path.dirname(path))
        full = self._folder / path
        with self._lock:
            self._links.pop(path, None)
            replaced = self._records.pop(path, None)
        if replaced is not None:
            full.unlink()
        try:
            descriptor = os.open(full, _FLAGS, 0o644)
        except (FileExistsError, IsADirectoryError):
            raise self._twice(name) from None
        with open(descriptor, "wb", buffering=0) as file:
            record = copy(read, file, self._meter, path)
            os.fchmod(descriptor, 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
            if changed is not None and 0 <= changed < 1 << 40:
                os.utime(descriptor, (changed, changed))
        with self._lock:
            self._records[path] = record

    def same(self, name: str, other: str) -> None:
        """A second name of a file that is there."""
        path, target = self._clean(name), self._clean(other)
        with self._lock:
            record = self._records.get(target)
        if record is None:
            raise BadArchive(
                f"{self._archive} is damaged: {name!r} is said to be the file {other!r}, which it has not"
            )
        if path == target:
            return
        self._make(os.path.dirname(path))
        with self._lock:
            self._links.pop(path, None)
            replaced = self._records.pop(path, None)
        if replaced is not None:
            (self._folder / path).unlink()
        try:
            os.link(self._folder / target, self._folder / path)
        except FileExistsError:
            raise self._twice(name) from None
        with self._lock:
            self._records[path] = Record(path, record.size, record.sha256)

    def link(self, name: str, target: str) -> None:
        """A link, which is made in the end."""
        path = self._clean(name)
        if path == self._top:
            raise self._unsafe(name, "it would be its own folder")
        with self._lock:
            if path in self._records:
                raise self._twice(name)
            self._links[path] = target

    def finish(self) -> list[Record]:
        """Make links, look that none of them leads out; all that is there."""
        top = os.path.realpath(self._folder / self._top)
        for path, target in self._links.items():
            if os.path.isabs(target) or "\0" in target:
                raise self._unsafe(path, f"it is a link to {target!r}")
            self._make(os.path.dirname(path))
            try:
                os.symlink(target, self._folder / path)
            except FileExistsError:
                raise self._twice(path) from None
        for path, target in self._links.items():
            # Each by itself may look harmless, and lead out by way of another.
            leads = os.path.realpath(self._folder / path)
            if leads != top and not leads.startswith(top + os.sep):
                raise self._unsafe(path, f"it is a link to {target!r}, out of the archive's folder")
        records = list(self._records.values())
        return records + [Record(path, 0, "", target) for path, target in self._links.items()]

    def _clean(self, name: str) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise self._unsafe(name, "it would lie outside of the archive's folder")
        return "/".join([self._top, *parts])

    def _make(self, path: str) -> None:
        if path in self._made:
            return
        if "/" in path:
            self._make(os.path.dirname(path))
        self._meter.take(BLOCK)
        try:
            os.mkdir(self._folder / path)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(self._folder / path).st_mode):
                raise self._twice(path) from None
        self._made.add(path)

    def _unsafe(self, name: str, why: str) -> UnsafeArchive:
        return UnsafeArchive(
            f"{self._archive} is not unpacked: of {name!r} in it, {why}. If you trust it, unpack it by yourself and "
            "add the folder"
        )

    def _twice(self, name: str) -> BadArchive:
        return BadArchive(f"{self._archive} cannot be unpacked: it has {name!r} twice, as different things")


def copy(read: Callable[[int], bytes], file: Any, meter: Meter, path: str) -> Record:
    """Write all that ``read(n)`` gives, each piece after it was metered."""
    sha, size = hashlib.sha256(), 0
    while piece := read(PIECE):
        meter.take(on_disk(size + len(piece)) - on_disk(size))
        size += len(piece)
        sha.update(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[file.write(rest) :]
    return Record(path, size, sha.hexdigest())


def delete(path: Path) -> None:
    """Delete a folder with all that is in it, whoever else may be at it."""
    for _ in range(3):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            return
    shutil.rmtree(path)
