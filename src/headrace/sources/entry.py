"""What a storage says of what lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.sources.location import LocationReader


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
