"""Blocks of a cache's addresses: whose each is, what fills it, and what of it the machine could have back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headrace.coordinate.shelf import Shelf
from headrace.coordinate.space import Space
from headrace.core.forms import Form
from headrace.core.layout import aligned

_FIRST = 64
"""Extents of which the size cannot be guessed may each fill this part of the budget."""


class Blocks:
    """The blocks that were given out of a space.

    Addresses are plenty and cost nothing, so an extent of unknown size gets more of them than it will need, and
    what counts is what it fills. What was filled and is free again stays in the machine's memory, to be filled anew
    at little cost; when that becomes too much, ``loose`` says what to give back.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._held: dict[int, tuple[Shelf, int, int]] = {}
        """Of each block: whose it is, the bytes that count, and the sample that fills it; -1: none yet."""
        self._unsized: set[int] = set()
        """Blocks for extents of which nobody could guess the size."""
        self._loose: list[tuple[int, int]] = []
        self._cuts = 0

    def sizes_for(self, shelf: Shelf, budget: int) -> tuple[int, int]:
        """The block that an extent gets, and the bytes to count for it until it is known what it fills.

        While nobody can guess, that is all that it may fill: some large ones must not be more than the budget.
        """
        page = self.space.page
        block = aligned(shelf.capacity if shelf.known else min(shelf.capacity, budget // _FIRST or 1))
        if self.space.packs(block):
            return block, self.space.share(block)
        return aligned(block, page), aligned(shelf.expected) if shelf.known else block

    def unused(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Bytes that slabs hold anyway for extents of such sizes."""
        return sum(nbytes * self.space.unused(block) for block, nbytes in sizes)

    def take(self, shelf: Shelf, sizes: tuple[int, int], count: int, available: int) -> list[tuple[int, int]]:
        """New blocks for extents of a shelf: address and capacity of each; fewer where addresses lack."""
        places: list[tuple[int, int]] = []
        block, nbytes = sizes
        packed = self.space.packs(block)
        least = block if packed else aligned(nbytes, self.space.page)
        for capacity in (block, least):  # the second if addresses are cut up
            addresses = self.space.take(capacity, count - len(places), available)
            self._held.update(dict.fromkeys(addresses, (shelf, nbytes, -1)))
            places += [(address, capacity) for address in addresses]
            if not shelf.known:
                self._unsized.update(addresses)
            if len(places) == count:
                break
        if self.space.cuts != self._cuts:  # ends of free blocks that were found do not hold any more
            self._cuts, self._loose = self.space.cuts, []
        return places

    def fill(
        self, shelf: Shelf, samples: Sequence[int], addresses: Sequence[int], sizes: Sequence[int]
    ) -> int:
        """Samples stand in their blocks. Returns the bytes that count for them beyond what did before."""
        held, size_of, page = self._held, self.space.size_of, self.space.page
        more = 0
        for sample, address, nbytes in zip(samples, addresses, sizes, strict=True):
            if address in self._unsized:  # nobody knew how small it is
                self._unsized.discard(address)
                self.space.shrink(address, nbytes)
                self._loose = []  # an end that was found may be another block's now
            block, kept = size_of(address), held[address][1]
            # Of a block that is not filled, the machine holds the pages that are; of one in a slab, all.
            if block >= page:
                filled = min(block, aligned(nbytes, page))
                more += filled - kept
                kept = filled
            held[address] = (shelf, kept, sample)
        return more

    def give_back(self, addresses: Collection[int], used: dict[Form, int]) -> None:
        """Blocks that nobody fills or reads any more; what they counted for is taken off ``used``."""
        self._unsized.difference_update(addresses)
        held = self._held
        for address in addresses:
            shelf, size, _ = held.pop(address)
            used[shelf.form] -= size
        self.space.free(addresses)

    def filled_with(self, address: int) -> tuple[Shelf, int]:
        """Whose block that is, and the sample that fills it; -1: none yet."""
        shelf, _, sample = self._held[address]
        return shelf, sample

    def slab_of(self, address: int) -> tuple[dict[Shelf, list[int]], int]:
        """The samples that lie with one in its slab and could go, by shelf; and how many blocks there could not."""
        victims: dict[Shelf, list[int]] = {}
        stay = 0
        for mate in self.space.mates(address):
            owner, _, sample = self._held[mate]
            if sample < 0 or owner.busy.get(sample):
                stay += 1
            else:
                victims.setdefault(owner, []).append(sample)
        return victims, stay

    # -- the machine's memory -------------------------------------------------------------------------------

    def forget_loose(self) -> None:
        """Nothing has to be given back for now."""
        self._loose = []

    def loose(self, most: int) -> list[tuple[int, int]]:
        """Ranges that are not filled, to be given back to the machine; some at a time."""
        if not self._loose:
            self._loose = self._find_loose()
        found, self._loose = self._loose[-most:], self._loose[:-most]
        ranges = {block: self._unfilled(block, end) for block, end in found}
        ranges = {block: (start, end) for block, (start, end) in ranges.items() if start < end}
        self.space.hollow.update(ranges)
        return list(ranges.values())

    def _find_loose(self) -> list[tuple[int, int]]:
        """Blocks that are not filled, and their ends. Those last of which most is free, as little is soon filled
        again; of equal ones, those that are filled again last."""
        space = self.space
        blocks = [
            (address, address + space.size_of(address))
            for address in self._held
            if address not in space.hollow
        ]
        found = [
            (end - start, block, end)
            for block, end in [*reversed(space.free_blocks()), *blocks]
            if (start := self._unfilled(block, end)[0]) + space.page <= end
        ]
        return [(block, end) for _, block, end in sorted(found, key=lambda item: item[0])]

    def _unfilled(self, block: int, end: int) -> tuple[int, int]:
        """The part of a block that is free as it is now. (What was a block may be a slab: all of that is in use.)"""
        if self.space.is_slab(block):
            return end, end
        _, nbytes, sample = self._held.get(block, (None, 0, 0))
        return block + nbytes if sample >= 0 else end, end
