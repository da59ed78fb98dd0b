"""Tiers of a cache as one process sees them: memory that extents are read from and written to. The arena is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.cache.arena import Arena
from headrace.cache.windows import Windows
from headrace.core.errors import OutOfSharedMemory


class TierMemory(Protocol):
    """The memory of one tier. Offsets are its own; whoever has an address knows the tier. Threads share it."""

    def extent(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent; ``ValueError`` if they cannot be had, all of them."""
        ...

    def take(self, extents: Sequence[tuple[int, int]]) -> list[memoryview | None]:
        """Memory to write new extents (offset and bytes) into; None where there is none."""
        ...

    def settle(self, offset: int, memory: memoryview) -> None:
        """An extent that was taken is written, and will be read by others from now on; ``ValueError`` if it cannot
        be. (One that is not settled was given up.)"""
        ...

    def close(self) -> None:
        """No more of it is needed here."""
        ...


class CacheTier(Protocol):
    """A tier that workers may open. It travels to them."""

    def open(self) -> TierMemory:
        """Its memory, for this process."""
        ...


class ArenaMemory:
    """The tier of the arena: what is written there is open to all at once."""

    def __init__(self, arena: Arena, span: int, budget: int) -> None:
        """``span``: its addresses. ``budget``: bytes that it may hold."""
        self._arena, self._budget = arena, budget
        self._windows = Windows(arena.fd, span)

    def extent(self, offset: int, nbytes: int) -> memoryview:
        """See ``TierMemory``."""
        return self._windows.view(offset, nbytes)

    def take(self, extents: Sequence[tuple[int, int]]) -> list[memoryview | None]:
        """See ``TierMemory``."""
        out: list[memoryview | None] = []
        found = []
        for offset, nbytes in extents:
            try:
                view = self._windows.view(offset, nbytes)
                self._arena.reserve(offset, nbytes)
                out.append(view)
                found.append((offset, nbytes))
            except (OutOfSharedMemory, ValueError):
                out.append(None)
        # Take the memory of what is about to be filled all at once; elsewhere than in a memfd it is there.
        if found and self._arena.directory is None:
            self._windows.settle(self._arena.fd, found, self._budget)
        return out

    def settle(self, offset: int, memory: memoryview) -> None:
        """See ``TierMemory``."""

    def close(self) -> None:
        """See ``TierMemory``. What somebody has a view of stays mapped until it is gone."""
