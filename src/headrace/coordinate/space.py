"""Where extents lie in the memory of a cache: an allocator of addresses that touches no memory."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.layout import ALIGN, aligned
from headrace.core.ranges import Ranges
from headrace.core.sparse import PAGE

_WORTH_IT = 16
"""Free blocks are put together again when this part of all addresses was freed since the last time."""
_LOST = 32
"""Of a slab, so small a part may be lost at its end."""
_LONGEST = 16
"""Pages of a slab, at most."""


@dataclass(eq=False)
class _Slab:
    """Some pages for small blocks of one size."""

    size: int
    nbytes: int
    free: list[int]


class Space:
    """Blocks of a range of ``span`` bytes of addresses, which cost nothing until something is written there.

    The machine gives out memory in pages, so blocks are whole pages and have none in common. Those smaller than a
    page come from slabs: a few pages that blocks of one size share, and that are free again when all of these are. So
    what is counted is what the machine holds.

    Blocks of one size are used again by others of that size; so giving one out is nearly always taking it from a
    list. Only when no address is left that was never given out are free blocks put together and cut anew.
    """

    def __init__(self, span: int, page: int = PAGE, base: int = 0) -> None:
        """``base``: where the addresses begin."""
        if page < ALIGN or page & (page - 1):
            raise ValueError(f"pages of {page} bytes")
        if span < 0:
            raise ValueError(f"a span of {span} bytes")
        if base & (page - 1):
            raise ValueError(f"addresses from {base} on, with pages of {page} bytes")
        self.span = span & -page
        self.page = page
        self.cuts = 0
        """How often free blocks were put together: the ends of free blocks known before do not hold any more."""
        self.idle = 0
        """Bytes that slabs hold beyond what their blocks in use count for."""
        self.hollow: set[int] = set()
        """Blocks, free or in use, that have no memory but what they are filled with: the rest was given back."""
        self._blocks: dict[int, int] = {}  # offset -> bytes, of those of whole pages
        self._packed: dict[int, int] = {}  # offset -> where its slab begins
        self._slabs: dict[int, _Slab] = {}
        self._partial: defaultdict[int, dict[int, None]] = defaultdict(dict)
        """By size of their blocks: the slabs that have free ones."""
        self._unused: defaultdict[int, int] = defaultdict(int)
        """By size: how many free ones there are in slabs."""
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # bytes -> offsets
        self._uncut = Ranges()
        """From which blocks of any size are cut."""
        if self.span:
            self._uncut.free(base, self.span)
        self._freed = 0
        """Bytes of blocks that were freed since free blocks were put together."""

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._blocks) + len(self._packed)

    def __contains__(self, offset: int) -> bool:
        """Whether a block that is in use begins there."""
        return offset in self._blocks or offset in self._packed

    def size_of(self, offset: int) -> int:
        """The bytes of the block at ``offset``: at least what was asked for."""
        slab = self._packed.get(offset)
        return self._blocks[offset] if slab is None else self._slabs[slab].size

    def is_slab(self, offset: int) -> bool:
        """Whether a slab begins there."""
        return offset in self._slabs

    def packs(self, nbytes: int) -> bool:
        """Whether blocks of ``nbytes`` lie in slabs."""
        return aligned(nbytes) < self.page

    def share(self, nbytes: int) -> int:
        """The memory that a block of ``nbytes`` in a slab counts for."""
        whole, count = _slab_for(aligned(nbytes), self.page)
        return whole // count

    def cost(self, nbytes: int, count: int = 1) -> int:
        """The memory that ``count`` more blocks in slabs would take beyond what slabs hold already."""
        size = aligned(nbytes)
        whole, each = _slab_for(size, self.page)
        return max(0, -(-(count - self._unused[size]) // each)) * whole

    def unused(self, nbytes: int) -> int:
        """How many free blocks for ``nbytes`` there are in slabs."""
        return self._unused[aligned(nbytes)]

    def take(self, nbytes: int, count: int = 1, most: int | None = None) -> list[int]:
        """The offsets of ``count`` new blocks of at least ``nbytes``; of fewer, if there are no more of that size.

        ``most``: bytes that slabs may take beyond what they hold already.
        """
        if nbytes < 1:
            raise ValueError(f"a block of {nbytes} bytes")
        if self.packs(nbytes):
            return self._take_packed(aligned(nbytes), count, self.span if most is None else most)
        size = aligned(nbytes, self.page)
        same = self._free[size]
        found = same[-count:] if count else []
        del same[len(same) - len(found) :]
        self.hollow.difference_update(found)
        if len(found) < count:
            found += self._uncut.take_some(size, count - len(found))
            if len(found) < count and self._freed and self._freed * _WORTH_IT >= self.span:
                self._put_together()
                found += self._uncut.take_some(size, count - len(found))
        self._blocks.update(dict.fromkeys(found, size))
        return found

    def _take_packed(self, size: int, count: int, most: int) -> list[int]:
        partial = self._partial[size]
        found: list[int] = []
        while len(found) < count:
            if not partial:
                nbytes = self._add_slab(size, most)
                if not nbytes:
                    break
                most -= nbytes
            start = next(reversed(partial))
            free = self._slabs[start].free
            some = free[-(count - len(found)) :][::-1]
            del free[len(free) - len(some) :]
            if not free:
                del partial[start]
            self._packed.update(dict.fromkeys(some, start))
            found += some
        self._unused[size] -= len(found)
        self.idle -= len(found) * self.share(size)
        return found

    def _add_slab(self, size: int, most: int) -> int:
        """A new slab for blocks of a size, a short one where there is little room; its bytes, if there is any."""
        nbytes = min(_slab_for(size, self.page)[0], most & -self.page)
        made = self.take(nbytes) if nbytes > 0 else []
        if not made:
            return 0
        (start,) = made
        del self._blocks[start]
        count = nbytes // size
        self._slabs[start] = _Slab(size, nbytes, [start + at * size for at in reversed(range(count))])
        self._partial[size][start] = None
        self._unused[size] += count
        self.idle += nbytes
        return nbytes

    def shrink(self, offset: int, nbytes: int) -> None:
        """Of a block, only the first ``nbytes`` are needed. (Of one in a slab, all stay.)"""
        if offset in self._packed:
            return
        size = aligned(nbytes, self.page)
        whole = self._blocks[offset]
        if size < whole:
            self._blocks[offset] = size
            self._uncut.free(offset + size, whole - size)

    def free(self, offsets: Iterable[int]) -> None:
        """The blocks at ``offsets`` are no longer used."""
        for offset in offsets:
            start = self._packed.pop(offset, None)
            if start is not None:
                self._free_packed(offset, start)
                continue
            size = self._blocks.pop(offset)
            self.hollow.discard(offset)
            self._free[size].append(offset)
            self._freed += size

    def _free_packed(self, offset: int, start: int) -> None:
        slab = self._slabs[start]
        each = slab.nbytes // slab.size
        slab.free.append(offset)
        self._unused[slab.size] += 1
        self.idle += self.share(slab.size)
        if len(slab.free) < each:
            self._partial[slab.size][start] = None
            return
        self._partial[slab.size].pop(start, None)
        del self._slabs[start]
        self._unused[slab.size] -= each
        self.idle -= slab.nbytes
        self._free[slab.nbytes].append(start)
        self._freed += slab.nbytes

    def places(self, offset: int) -> int:
        """How many blocks there are, in use or free, in the slab of one."""
        slab = self._slabs[self._packed[offset]]
        return slab.nbytes // slab.size

    def mates(self, offset: int) -> list[int]:
        """The blocks in use in the slab of one, itself included: its memory is free when all of them are."""
        start = self._packed[offset]
        slab = self._slabs[start]
        places = range(start, start + slab.nbytes - slab.size + 1, slab.size)
        return [place for place in places if place in self._packed]

    def sparse(self, nbytes: int, most: int) -> list[int]:
        """One block in use of each of some slabs that have free ones, of other sizes; the emptiest slabs first."""
        found = []
        for size, starts in self._partial.items():
            if size != aligned(nbytes):
                found += [
                    (1 - len(slab.free) * size / slab.nbytes, start)
                    for start, slab in (
                        (start, self._slabs[start]) for start in itertools.islice(starts, most)
                    )
                ]
        offsets = []
        for _, start in sorted(found)[:most]:
            slab = self._slabs[start]
            places = range(start, start + slab.nbytes, slab.size)
            offsets.append(next(place for place in places if place in self._packed))
        return offsets

    def free_blocks(self) -> list[tuple[int, int]]:
        """Where the pages that were given out and are free now begin and end; of each size, what was used last is
        last, and will be the first that is given out again."""
        return [
            (offset, offset + size)
            for size, offsets in self._free.items()
            for offset in offsets
            if offset not in self.hollow
        ]

    def _put_together(self) -> None:
        """Free blocks become one with the free ranges beside them."""
        self.cuts += 1
        self.hollow.clear()
        self._uncut.free_all((offset, size) for size, offsets in self._free.items() for offset in offsets)
        self._free.clear()
        self._freed = 0


@functools.cache
def _slab_for(size: int, page: int) -> tuple[int, int]:
    """Bytes of a slab for blocks of ``size``, and how many it has: few pages, of which little is lost."""
    least = -(-size // page)
    best = (least * page, least * page // size)
    for pages in range(least, _LONGEST + 1):
        whole = pages * page
        count = whole // size
        lost = whole - count * size
        if lost * _LOST <= whole:
            return whole, count
        if lost * best[0] < (best[0] - best[1] * size) * whole:
            best = whole, count
    return best
