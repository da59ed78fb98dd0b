"""Tiers by key: where samples are kept below the cache in memory, for all jobs and for the next start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Piece = Any
"""Bytes, or what shows as such."""


class OpenTier(Protocol):
    """A tier as one process sees it. Threads share it. A fork of the process opens its own."""

    @property
    def budget(self) -> int:
        """Bytes that all samples may take."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether there was room when somebody last looked."""
        ...

    def has_room_ahead(self, nbytes: float) -> bool:
        """Whether there is room for so many bytes that are copied ahead of need."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """The content of each key, whole; None for one that is not there."""
        ...

    def has_many(self, keys: Sequence[bytes]) -> list[bool]:
        """Of each key, whether it is there."""
        ...

    def put_many(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int:
        """Keep samples (key, and the pieces of the content), as far as there is room; returns how many were kept."""
        ...

    def drop_many(self, keys: Sequence[bytes]) -> None:
        """What lies there by these keys is not what should: it is as if it had not been put, if that can be done."""
        ...

    def put_ahead(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int | None:
        """Keep samples until they are released by the number that is returned. None: they are not kept."""
        ...

    def release(self, numbers: Sequence[int]) -> None:
        """What was kept ahead of need was used."""
        ...

    def close(self) -> None:
        """No more of it is needed here. What was written stays."""
        ...


class KeyTier(Protocol):
    """Where such a tier is. It travels to workers."""

    @property
    def path(self) -> str:
        """For people."""
        ...

    @property
    def budget(self) -> int:
        """Bytes that all samples may take."""
        ...

    def open(self) -> OpenTier:
        """For this process. ``OSError`` if it cannot be had."""
        ...
