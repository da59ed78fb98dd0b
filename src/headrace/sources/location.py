"""Where the bytes of a sample lie, apart from reading them: what, which part of it, in which version. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of one sample lie. Equal for the same sample in every process, order and subset."""

    what: bytes
    """What they are a part of: a file's path, as the operating system takes it."""
    version: bytes = b""
    """Tells it from what had that name before: a file's size and time of change. Empty: it never changes."""
    start: int = 0
    """The first byte."""
    length: int | None = None
    """How many bytes; None: all from ``start`` on."""

    @property
    def identity(self) -> bytes:
        """The identity of the sample that lies there, as ``Source.identity`` gives it."""
        version = b"\0" + self.version if self.version else b""
        if not self.start and self.length is None:
            return self.what + version
        length = b"" if self.length is None else b"%x" % self.length
        return self.what + version + b"\0%x+" % self.start + length


class LocationReader(Protocol):
    """Reads locations of one kind of storage, whichever source named them. It can be pickled."""

    def read(self, locations: Sequence[Location]) -> list[bytes | BaseException]:
        """The bytes of each, or the error that kept them from being read: as ``Source.read_many`` gives them.

        The version is not looked at: what is there now is read.
        """
        ...


class Locating(Protocol):
    """What a source may have beside the methods of ``Source``: it says where samples lie, and who reads them there.

    A source that has it not, or not for all samples, is asked for the bytes themselves.
    """

    def locate(self, indices: Sequence[int] | NDArray[Any]) -> list[Location | None]:
        """Where each sample lies; None for one that lies nowhere but in this process."""
        ...

    def location_reader(self) -> LocationReader:
        """Who reads these locations."""
        ...


def locating(source: object) -> Locating | None:
    """The source, if it says where its samples lie."""
    has_it = hasattr(source, "locate") and hasattr(source, "location_reader")
    return cast(Locating, source) if has_it else None
