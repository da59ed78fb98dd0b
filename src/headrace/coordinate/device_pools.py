"""Decoded images in the memory of one device that several jobs hold together: who may write where.

A pool is made of chunks of memory that jobs make, and hand to the host to keep. Images are added and never taken out,
so whoever has found one may read it for as long as it has the chunk. What has to hold:

- A chunk has at most one writer. It gets another only when the one before has said that it is done, or its process
  has ended.
- No number is given to two chunks, whichever hosts come and go.
- There are as many chunks as the largest budget of those who are there has room for.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.errors import ProtocolError

FREE, FULL, UNKNOWN = 0, -1, -2
"""In the place of a chunk's writer: anybody may go on with it; nobody needs to; one may be there that has not come
back since the host before was lost."""
LEAST_CHUNK, MOST_CHUNK = 16 << 20, 1 << 30
_CHUNKS = 32
"""A pool is made of about so many."""


def chunk_bytes(budget: int, granularity: int) -> int:
    """Bytes of each chunk of a pool; 0: there is no room for any."""
    wanted = min(max(budget // _CHUNKS, LEAST_CHUNK), MOST_CHUNK, budget)
    return wanted // granularity * granularity


class DevicePool:
    """Who may write to which chunk. Members are numbers from 1 on."""

    def __init__(self, chunk: int, number: Callable[[], int | None]) -> None:
        """``chunk``: bytes of each; ``number``: gives one that no chunk of this pool has had; None: there is none."""
        self.chunk = chunk
        self._number = number
        self.members: dict[int, int] = {}
        """Who is there, and the budget of each."""
        self.chunks: dict[int, int] = {}
        """By number: its writer."""
        self._granted: dict[int, int] = {}
        """Chunks that are to be made, and by whom."""
        self._refused: set[int] = set()

    @property
    def budget(self) -> int:
        """Bytes for all of it."""
        return max(self.members.values(), default=0)

    def attach(self, member: int, budget: int) -> None:
        """Somebody has come."""
        self.members[member] = budget

    def offer(self, member: int, number: int, *, writing: bool) -> bool:
        """Somebody has a chunk from the time of a host before; whether it is news."""
        news = number not in self.chunks
        if writing and self.chunks.get(number, UNKNOWN) not in (UNKNOWN, member):
            raise ProtocolError(f"chunk {number} has a writer")
        if news or writing:
            self.chunks[number] = member if writing else UNKNOWN
        return news

    def want(self, member: int) -> tuple[int, bool] | None:
        """Somebody has no room left where it writes: the number of a chunk, and whether there is one already that
        it may go on with, else it is to be made. None: there is no room."""
        for number, writer in self.chunks.items():
            if writer == member:
                self.chunks[number] = FULL
        for number, writer in self.chunks.items():
            if writer == FREE:
                self.chunks[number] = member
                return number, True
        fits = (len(self.chunks) + len(self._granted) + 1) * self.chunk <= self.budget
        found = self._number() if fits and member not in self._granted.values() else None
        if found is None:
            self._refused.add(member)
            return None
        self._granted[found] = member
        return found, False

    def made(self, member: int, number: int) -> bool:
        """Somebody has a new chunk; whether it is the one that it was to make. It writes there."""
        if self._granted.get(number) != member:
            return False
        del self._granted[number]
        self.chunks[number] = member
        return True

    def failed(self, member: int) -> None:
        """Somebody cannot make what it was to make."""
        self._granted = {number: one for number, one in self._granted.items() if one != member}

    def leave(self, member: int) -> bool:
        """Somebody is not there any more; whether it may still write."""
        self.members.pop(member, None)
        self._refused.discard(member)
        self.failed(member)
        return member in self.chunks.values()

    def come_back(self, before: int, member: int) -> None:
        """Somebody who left is there again, under another number."""
        for number, writer in self.chunks.items():
            if writer == before:
                self.chunks[number] = member

    def done(self, member: int) -> None:
        """Somebody writes no more: it has said so, or its process has ended."""
        for number, writer in self.chunks.items():
            if writer == member:
                self.chunks[number] = FREE

    def take_hopeful(self) -> set[int]:
        """Those who were refused, if there is room by now."""
        free = FREE in self.chunks.values()
        fits = (len(self.chunks) + len(self._granted) + 1) * self.chunk <= self.budget
        if not free and not fits:
            return set()
        hopeful, self._refused = self._refused, set()
        return hopeful
