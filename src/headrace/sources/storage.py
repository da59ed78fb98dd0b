"""What archives and listings need of the place where data lies: names, sizes, versions, parts of what is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import OptionError
from headrace.sources.local import MAX_BYTES, FileReader
from headrace.sources.location import LocationReader
from headrace.sources.versions import versions


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or an object of a bucket."""

    what: bytes
    """An absolute path, or a URL: as ``Location.what`` has it."""
    size: int
    version: bytes
    """As ``Location.version`` has it: a file's size and time of change, an object's ETag."""


class Storage(LocationReader, Protocol):
    """A place where data lies. It can be pickled, and used after a fork; threads share it."""

    def describe(self, names: Sequence[bytes]) -> list[Entry | BaseException]:
        """What is there under each name (an absolute path or a URL), or the error that kept it from being found."""
        ...

    def below(self, prefix: bytes) -> Iterator[list[Entry]]:
        """All files or objects below a folder or prefix, some at a time, sorted by name over all."""
        ...


class LocalStorage(FileReader):
    """Files of the local (or a mounted) file system."""

    def describe(self, names: Sequence[bytes]) -> list[Entry | BaseException]:
        """See ``Storage``."""
        out: list[Entry | BaseException] = []
        found = versions(list(names)).tolist()
        for name, (size, changed) in zip(names, found, strict=True):
            try:
                os.stat(name)
                out.append(Entry(os.path.abspath(name), size, b"%x.%x" % (size, changed)))
            except OSError as error:
                out.append(error)
        return out

    def below(self, prefix: bytes) -> Iterator[list[Entry]]:
        """See ``Storage``."""
        top = os.path.abspath(prefix)
        paths = sorted(os.path.join(at, name) for at, _, names in os.walk(top) for name in names)
        for start in range(0, len(paths), 1000):
            yield [
                one
                for one in self.describe(paths[start : start + 1000])
                if not isinstance(one, BaseException)
            ]


def is_url(what: str | bytes | os.PathLike[str]) -> bool:
    """Whether it names something elsewhere than in the file system."""
    text = os.fsencode(what)
    return b"://" in text and not text.startswith(b"file://")


def storage_of(what: str | bytes | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Storage:
    """The storage that a path or a URL leads to."""
    if not is_url(what):
        return LocalStorage(max_bytes)
    raise OptionError(f"{os.fsdecode(what)!r} is no path")
