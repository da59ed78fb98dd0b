"""Where batches are made: kinds of memory, and what is asked of a place that has some."""

from __future__ import annotations

import enum
from typing import Protocol


class Memory(enum.Enum):
    """What kind of memory a batch lies in."""

    ARENA = "arena"
    """Shared memory of this host, which workers write to."""
    PAGE_LOCKED = "page-locked"
    """Memory that stays where it is, so that devices can read it by themselves."""
    DEVICE = "device"
    """Memory of an accelerator."""
    REMOTE = "remote"
    """Memory of another machine."""

    @property
    def in_reach(self) -> bool:
        """Whether this machine's processors read and write it in place."""
        return self in (Memory.ARENA, Memory.PAGE_LOCKED)


class Place(Protocol):
    """Memory for slots. Offsets are the place's own addresses."""

    @property
    def memory(self) -> Memory:
        """What kind of memory it has."""
        ...

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Memory for a slot of at least ``nbytes`` bytes: its offset and bytes. Raises ``OutOfSharedMemory``."""
        ...

    def free(self, offset: int, nbytes: int) -> None:
        """It is not needed any more: no lease is left."""
        ...

    def map(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of a slot, for rows to be written to and read from. They stay for as long as anybody has a view
        of them, whatever becomes of the place."""
        ...
