"""Where extents lie in the memory of the shared cache: an allocator of offsets that touches no memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable

_WORTH_IT = 16
"""Free blocks are put together again when this part of all addresses was freed since the last time."""


class Space:
    """Blocks of a range of ``span`` bytes of addresses, which cost nothing until something is written there.

    Blocks of one size are used again by others of that size; so giving one out is nearly always taking it from a
    list. Only when no address is left that was never given out are free blocks put together and cut anew.
    """

    def __init__(self, span: int, align: int = 64) -> None:
        if align < 1 or align & (align - 1):
            raise ValueError(f"align={align} is not a power of two")
        if span < 0:
            raise ValueError(f"a span of {span} bytes")
        self.span = span & -align
        self.cuts = 0
        """How often free blocks were put together: the ends of free blocks known before do not hold any more."""
        self._align = align
        self._blocks: dict[int, int] = {}  # offset -> bytes
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # bytes -> offsets
        self._uncut = [(self.span, 0)] if self.span else []
        """Ranges from which blocks of any size are cut: (bytes, offset), the smallest first."""
        self._freed = 0
        """Bytes of blocks that were freed since free blocks were put together."""

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    def __contains__(self, offset: int) -> bool:
        """Whether a block that is in use begins there."""
        return offset in self._blocks

    def size_of(self, offset: int) -> int:
        """The bytes of the block at ``offset``: at least what was asked for."""
        return self._blocks[offset]

    def take(self, nbytes: int, count: int = 1) -> list[int]:
        """The offsets of ``count`` new blocks of at least ``nbytes``; of fewer, if there are no more of that size."""
        if nbytes < 1:
            raise ValueError(f"a block of {nbytes} bytes")
        size = (nbytes + self._align - 1) & -self._align
        same = self._free[size]
        found = same[-count:] if count else []
        del same[len(same) - len(found) :]
        self._blocks.update(dict.fromkeys(found, size))
        while len(found) < count and (offset := self._cut(size)) is not None:
            found.append(offset)
            self._blocks[offset] = size
        return found

    def shrink(self, offset: int, nbytes: int) -> None:
        """Of a block, only the first ``nbytes`` are needed."""
        size = (nbytes + self._align - 1) & -self._align
        whole = self._blocks[offset]
        if size < whole:
            self._blocks[offset] = size
            insort(self._uncut, (whole - size, offset + size))

    def free(self, offsets: Iterable[int]) -> None:
        """The blocks at ``offsets`` are no longer used."""
        for offset in offsets:
            size = self._blocks.pop(offset)
            self._free[size].append(offset)
            self._freed += size

    def free_blocks(self) -> list[tuple[int, int]]:
        """Where the blocks that were given out and are free now begin and end."""
        return [(offset, offset + size) for size, offsets in self._free.items() for offset in offsets]

    def _cut(self, size: int) -> int | None:
        at = bisect_left(self._uncut, (size, 0))
        if at == len(self._uncut):
            if self._freed * _WORTH_IT < self.span or not self._freed:
                return None
            self._put_together()
            at = bisect_left(self._uncut, (size, 0))
            if at == len(self._uncut):
                return None
        whole, start = self._uncut.pop(at)
        if whole > size:
            insort(self._uncut, (whole - size, start + size))
        return start

    def _put_together(self) -> None:
        """Neighbouring free blocks become one range."""
        self.cuts += 1
        self._free.clear()
        self._freed = 0
        self._uncut = []
        end = 0
        for offset, size in sorted(self._blocks.items()):
            if end < offset:
                self._uncut.append((offset - end, end))
            end = offset + size
        if end < self.span:
            self._uncut.append((self.span - end, end))
        self._uncut.sort()
