"""The files of a content with their digests, so that damage is found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.datastore.errors import DataError

NAME = "manifest"
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One file, by its path below the content's folder; or a link."""

    path: str
    size: int
    sha256: str
    link: str = ""
    """Where it leads, if it is one."""


def write_manifest(folder: Path, records: Iterable[Record]) -> str:
    """Write it into the folder; its own digest."""
    sha = hashlib.sha256()
    with (folder / NAME).open("wb") as file:
        for one in sorted(records, key=lambda one: one.path):
            path, link = os.fsencode(one.path), os.fsencode(one.link)
            line = b"%b\0%d\0%b\0%b\0" % (one.sha256.encode(), one.size, path, link)
            sha.update(line)
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()


def read_manifest(folder: Path, digest: str) -> list[Record]:
    """The records, if they are what was written: else ``DataError``."""
    try:
        data = (folder / NAME).read_bytes()
    except OSError as error:
        raise DataError(f"{folder / NAME} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(f"{folder / NAME} is not what was written")
    fields = data.split(b"\0")[:-1]
    return [
        Record(os.fsdecode(path), int(size), sha256.decode(), os.fsdecode(link))
        for sha256, size, path, link in zip(*(iter(fields),) * 4, strict=True)
    ]


def fault(folder: Path, one: Record) -> str:
    """What is wrong with a file; empty: nothing."""
    path = folder / one.path
    try:
        if one.link:
            return "" if os.readlink(path) == one.link else "the link leads elsewhere"
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            if size != one.size:
                return f"it has {size} bytes instead of {one.size}"
            return "" if digest_of(file.read, one.size) == one.sha256 else "its bytes have changed"
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def digest_of(read: object, size: int) -> str:
    """The digest of what ``read(n)`` gives, up to its end."""
    assert callable(read)
    sha = hashlib.sha256()
    while piece := read(_PIECE):
        sha.update(piece)
    return sha.hexdigest()


def strangers(folder: Path, records: Iterable[Record]) -> Iterator[str]:
    """Files that are there and should not be."""
    known = {one.path for one in records} | {NAME}
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(at, name), folder)
            if path not in known:
                yield path
