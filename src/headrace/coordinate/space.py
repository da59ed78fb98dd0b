"""Where extents lie in the memory of the shared cache: an allocator of offsets that touches no memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain

_BITS = 48
"""Offsets and sizes are below 2**48, so that (size, offset) is one integer: compared and kept at little cost."""
_OFFSET = (1 << _BITS) - 1
_CHUNK = 256
"""Keys in one part of the sorted list; inserting into a part moves half of it on average."""


class Space:
    """Blocks of a range of ``span`` bytes of addresses, which cost nothing until something is written there.

    The free block that fits best is taken, the lowest of several; with ``high=True`` the highest, and of it the
    upper end. So two kinds of extents grow towards each other and meet late. Neighbouring free blocks are one.
    """

    def __init__(self, span: int, align: int = 64) -> None:
        if align < 1 or align & (align - 1):
            raise ValueError(f"align={align} is not a power of two")
        if not 0 <= span <= _OFFSET:
            raise ValueError(f"a span of {span} bytes")
        self.span = span & -align
        self.used = 0
        """Bytes in blocks, what alignment adds included."""
        self._align = align
        self._blocks: dict[int, int] = {}  # offset -> bytes
        # Free blocks: start -> end and end -> start. As no two of them touch, one dict does for both.
        self._edges: dict[int, int] = {}
        self._free = _Keys()  # the same, sorted by size and then offset
        if self.span:
            self._free.add(self._note(0, self.span))

    @property
    def largest(self) -> int:
        """The most that can be taken at once."""
        return self._free.last() >> _BITS

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    def size_of(self, offset: int) -> int:
        """The bytes of the block at ``offset``: at least what was asked for."""
        return self._blocks[offset]

    def take(self, nbytes: int, *, high: bool = False) -> int | None:
        """The offset of a new block of at least ``nbytes``; None if no free block is that large."""
        if nbytes < 1:
            raise ValueError(f"a block of {nbytes} bytes")
        size = (nbytes + self._align - 1) & -self._align
        key = self._free.pop_best(size, high)
        if key is None:
            return None
        start, rest = key & _OFFSET, (key >> _BITS) - size
        end = start + size + rest
        edges = self._edges
        if not rest:
            del edges[start], edges[end]
        elif high:
            del edges[end]
            end = start + rest
            edges[start] = end
            edges[end] = start
            self._free.add(rest << _BITS | start)
            start = end
        else:
            del edges[start]
            middle = start + size
            edges[middle] = end
            edges[end] = middle
            self._free.add(rest << _BITS | middle)
        self._blocks[start] = size
        self.used += size
        return start

    def free(self, offset: int) -> None:
        """The block at ``offset`` is no longer used."""
        size = self._blocks.pop(offset)
        self.used -= size
        self._release(offset, offset + size)

    def trim(self, offset: int, nbytes: int) -> None:
        """Only the first ``nbytes`` of the block at ``offset`` are used: its tail is free again."""
        size, keep = self._blocks[offset], (nbytes + self._align - 1) & -self._align
        if not 0 < keep <= size:
            raise ValueError(f"{nbytes} bytes of a block of {size}")
        if keep < size:
            self._blocks[offset] = keep
            self.used -= size - keep
            self._release(offset + keep, offset + size)

    def free_blocks(self) -> list[tuple[int, int]]:
        """Where the free blocks begin and end, the smallest first."""
        return [(key & _OFFSET, (key & _OFFSET) + (key >> _BITS)) for key in self._free]

    def is_free(self, start: int, end: int) -> bool:
        """Whether there is a free block with just these ends."""
        return start < end and self._edges.get(start) == end

    def _release(self, start: int, end: int) -> None:
        """Make a range free, together with its free neighbours."""
        edges = self._edges
        before = edges.pop(start, None)
        if before is not None:
            self._free.remove((start - before) << _BITS | before)
            start = before
        after = edges.pop(end, None)
        if after is not None:
            self._free.remove((after - end) << _BITS | end)
            end = after
        self._free.add(self._note(start, end))

    def _note(self, start: int, end: int) -> int:
        self._edges[start] = end
        self._edges[end] = start
        return (end - start) << _BITS | start


class _Keys:
    """Distinct integers in order, in parts, so that adding and removing one moves few others."""

    __slots__ = ("_lasts", "_parts")

    def __init__(self) -> None:
        self._parts: list[list[int]] = []
        self._lasts: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._parts)

    def add(self, key: int) -> None:
        """Put in a key that is not there."""
        lasts, parts = self._lasts, self._parts
        if not parts:
            parts.append([key])
            lasts.append(key)
            return
        at = bisect_left(lasts, key)
        if at == len(parts):
            at -= 1
            parts[at].append(key)
            lasts[at] = key
        else:
            insort(parts[at], key)
        part = parts[at]
        if len(part) > _CHUNK:
            half = _CHUNK // 2
            parts[at : at + 1] = [part[:half], part[half:]]
            lasts.insert(at, part[half - 1])

    def remove(self, key: int) -> None:
        """Take out a key that is there."""
        lasts = self._lasts
        at = bisect_left(lasts, key)
        part = self._parts[at]
        where = bisect_left(part, key)
        del part[where]
        if not part:
            del self._parts[at], lasts[at]
        elif where == len(part):
            lasts[at] = part[-1]

    def pop_best(self, size: int, high: bool) -> int | None:
        """Take out the key of the smallest free block of at least ``size``: the lowest of these, or the highest."""
        lasts, parts = self._lasts, self._parts
        wanted = size << _BITS
        at = bisect_left(lasts, wanted)
        if at == len(lasts):
            return None
        part = parts[at]
        where = bisect_left(part, wanted)
        if high:
            # The last key of the same size: the one before the first of a larger size.
            wanted = (part[where] | _OFFSET) + 1
            at = bisect_left(lasts, wanted)
            where = bisect_left(parts[at], wanted) - 1 if at < len(lasts) else -1
            if where < 0:
                at -= 1
                where = len(parts[at]) - 1
            part = parts[at]
        key = part.pop(where)
        if not part:
            del parts[at], lasts[at]
        elif where == len(part):
            lasts[at] = part[-1]
        return key

    def last(self) -> int:
        """The largest key, or 0."""
        return self._lasts[-1] if self._lasts else 0
