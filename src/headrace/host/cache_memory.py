"""The memory of the cache that jobs share, as its host has it: an anonymous file, of which it maps nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.core.sparse import make_addresses, punch, resident


class CacheMemory:
    """Plenty of addresses, and as much memory as is filled of them."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("headrace-cache", os.MFD_CLOEXEC)
        self.span = make_addresses(self.fd)
        """Bytes of its addresses."""
        self.gave_back = False
        """Whether some was given back since this was last set."""

    def resident(self) -> int:
        """Bytes that the machine holds for it."""
        return resident(self.fd)

    def give_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Give memory back to the machine."""
        self.gave_back = True
        for start, end in ranges:
            punch(self.fd, start, end)
