"""Slots: batches' memory, lent to workers, then to tensors, and back when their leases have ended."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Slot
from headrace.coordinate.messages import Order, encoder
from headrace.core.layout import aligned
from headrace.core.places import Place
from headrace.engine.board import PUT_DOWN, UNUSED, Board
from headrace.host.leases import Loan, make_lease

_AGE = 8
"""Batches for which a range is free before its memory is given back."""


@dataclass(eq=False)
class HostSlot(Slot):
    """A slot, and the areas in which the orders for its batch are written down."""

    areas: list[tuple[int, int]] = field(default_factory=list)
    cursor: int = 0
    row: int = -1
    """Of its range on the board's list, if it is there."""


class SlotPool:
    """Allocates slots in one place, and takes back those whose leases have ended.

    Where only a worker finds out how many bytes a batch takes, a slot has no memory before that: the worker takes a
    range from the board's list as it collates, or makes one. So batches that wait to be prepared hold no memory, and
    a few ranges are used over and over.
    """

    def __init__(
        self,
        arena: Arena,
        nbytes: int,
        keep: int,
        board: Board | None = None,
        place: Place | None = None,
    ) -> None:
        """``board``: has the list of ranges; without it those that workers made are freed after use.
        ``place``: where slots are made, if not in the arena. (Orders are written there in any case.)"""
        self._arena, self._board = arena, board
        self._place: Place = arena if place is None else place
        self.nbytes = nbytes
        """Bytes of a new slot; 0: a worker finds out how many it takes."""
        self.keep = keep
        """Free slots that are kept for the next batches."""
        self.beside = 0
        """And so many more, where several come back at a time: when a device has copied from them."""
        self._listed: dict[int, int] = {}
        """Ranges on the board's list: bytes by offset."""
        self._usual = 0
        """Bytes of the last range that a worker told of."""
        self._clock = itertools.count(PUT_DOWN + 1)
        self._owner = os.getpid()
        self._free: list[HostSlot] = []
        self._leases: dict[HostSlot, Loan[HostSlot]] = {}
        self._released: deque[Loan[HostSlot]] = deque()
        """Nothing is left that was made over their memory."""
        self._awaited: list[Loan[HostSlot]] = []
        """Of those, the ones whose events have not happened."""
        self._all: set[HostSlot] = set()

    def acquire(self) -> HostSlot:
        """A free slot, or a new one."""
        self.collect()
        if self._usual and self._board is not None:
            self._list_more(self._board)
        if self._free:
            return self._free.pop()
        slot = HostSlot(0, 0, self._place.memory)
        if self.nbytes:
            slot.offset, slot.nbytes = self._place.allocate(self.nbytes)
        self._all.add(slot)
        return slot

    @property
    def free(self) -> int:
        """Slots that are there to be used again."""
        return len(self._free)

    @property
    def count(self) -> int:
        """Slots that there are."""
        return len(self._all)

    def put_back(self, slot: HostSlot) -> None:
        """Nobody uses this slot now. More than are useful are freed, so memory follows what the user keeps."""
        while len(slot.areas) > 1:
            self._arena.free(*slot.areas.pop(0))
        slot.cursor = 0
        if slot.row >= 0:
            assert self._board is not None
            self._board.release(slot.row, next(self._clock))
            slot.offset = slot.nbytes = 0
            slot.row = -1
        elif not self.nbytes:
            self._free_range(slot)
        stale = slot.nbytes < self.nbytes
        if len(self._free) < self.keep + self.beside and not stale:
            self._free.append(slot)
        else:
            self.discard(slot)

    def discard(self, slot: HostSlot) -> None:
        """Free a slot's memory."""
        for area in slot.areas:
            self._arena.free(*area)
        self._free_range(slot)
        slot.areas = []
        self._all.discard(slot)

    def close(self) -> None:
        """Free every slot but those on loan. Their pages go back even if others hold the arena's file: processes
        that were forked from this one do, for as long as they live. Events of leases are waited for: nobody will
        look for them later."""
        for loan in list(self._leases.values()):
            loan.close()
        self.collect()
        self._free.clear()
        for slot in self._leases:
            self._listed.pop(slot.offset, None)
        for slot in self._all - self._leases.keys():
            self.discard(slot)
        while self._listed:
            self._arena.free(*self._listed.popitem())

    def _free_range(self, slot: HostSlot) -> None:
        if slot.nbytes and slot.row < 0:
            self._place.free(slot.offset, slot.nbytes)
        slot.offset = slot.nbytes = 0
        slot.row = -1

    def fit(self, slot: HostSlot, nbytes: int) -> None:
        """Make a free slot at least so large."""
        if slot.nbytes < nbytes:
            self._free_range(slot)
            slot.offset, slot.nbytes = self._place.allocate(nbytes)
            self.nbytes = max(self.nbytes, nbytes)

    # -- ranges that workers take ---------------------------------------------------------------------------

    def _list_more(self, board: Board) -> None:
        """Workers make ranges at the end of the arena. They need not, where there is one in its gaps for each batch.

        These take no memory before a worker writes to them, so they may well be too many and too large.
        """
        size = max(self._listed.values(), default=self._usual)
        waiting = 1 + len(self._all) - len(self._free) - len(self._leases)
        for _ in range(waiting - board.free_ranges(size)):
            self._arena.require(self._usual)
            offset, nbytes = self._arena.allocate(size, reserve=False)
            row = board.enlist(offset, nbytes)
            if row < 0:
                self._arena.free(offset, nbytes)
                return
            self._listed[offset] = nbytes
            board.release(row, UNUSED)

    def took(self, slot: HostSlot, offset: int, nbytes: int) -> None:
        """A worker put the slot's batch into this range of the arena, which it took or made."""
        assert self._place is self._arena, "workers collate into the arena"
        if offset not in self._listed:
            self._arena.adopt(nbytes)
        slot.offset, slot.nbytes, self._usual = offset, nbytes, nbytes
        if self._board is not None:
            slot.row = self._board.enlist(offset, nbytes)
            if slot.row >= 0:
                self._listed[offset] = nbytes

    def reclaim(self, offset: int, nbytes: int) -> None:
        """A dead worker had this range."""
        if self._board is None or offset not in self._listed:
            self._arena.adopt(nbytes)
            self._arena.free(offset, nbytes)
        else:
            self._board.release(self._board.enlist(offset, nbytes), next(self._clock))

    def rest(self) -> None:
        """No batch will be taken for a while."""
        self.collect()
        if self._board is not None:
            self._trim(self._board, 0)

    def _trim(self, board: Board, age: int = _AGE) -> None:
        """Give ranges to the system that nobody is about to use: in steady use hardly any is free for long."""
        keep = max(1, self.keep // 4)
        for offset, nbytes in board.withdraw(keep, age) if board.free_ranges() > keep else ():
            if self._listed.pop(offset, None) is None:
                self._arena.adopt(nbytes)  # a worker listed it
            self._arena.free(offset, nbytes)

    # -- orders -------------------------------------------------------------------------------------------

    def write_orders(self, slot: HostSlot, orders: list[Order]) -> list[tuple[tuple[int, int], int, int]]:
        """Write orders into the slot's area; where each lies: area, start, length."""
        encoded = [encoder.encode(order) for order in orders]
        needed = sum(aligned(len(data), 8) for data in encoded)
        if not slot.areas or slot.cursor + needed > slot.areas[-1][1]:
            slot.areas.append(self._arena.allocate(max(needed * 2, 4096)))
            slot.cursor = 0
        area = slot.areas[-1]
        buffer = memoryview(self._arena.map(*area))
        places = []
        for data in encoded:
            buffer[slot.cursor : slot.cursor + len(data)] = data
            places.append((area, slot.cursor, len(data)))
            slot.cursor += aligned(len(data), 8)
        return places

    # -- leases -------------------------------------------------------------------------------------------

    def lease(self, slot: HostSlot) -> Any:
        """The slot's memory as an object that arrays can be made over (a ``Lease``). When the last of them is gone,
        and what the lease was told to wait for has happened, the slot comes back by itself."""
        mapped = self._place.map(slot.offset, slot.nbytes)
        loan = Loan(slot)
        lease = make_lease(loan, slot.memory, mapped)
        # The callback may run in any thread and at any point, so it only takes a note. (And in a process that was
        # forked meanwhile, whose copy of the batch is none of ours.)
        released, row, board, clock, owner = self._released, slot.row, self._board, self._clock, self._owner

        def let_go(_: Any) -> None:
            if row >= 0 and board is not None and not loan.awaited and os.getpid() == owner:
                board.release(row, next(clock))
            released.append(loan)

        loan.life = weakref.ref(lease, let_go)
        self._leases[slot] = loan
        return lease

    def collect(self) -> None:
        """Take back slots whose leases have ended. Waits for nothing."""
        while self._released:
            loan = self._released.popleft()
            if loan.awaited:
                self._awaited.append(loan)
            else:
                self._take_back(loan.slot)
        for loan in list(self._awaited) if self._awaited else ():
            if loan.has_happened():
                self._awaited.remove(loan)
                if loan.slot.row >= 0 and self._board is not None:
                    self._board.release(loan.slot.row, next(self._clock))
                self._take_back(loan.slot)
        if self._usual and self._board is not None:  # else no worker has taken a range yet
            self._trim(self._board)

    def _take_back(self, slot: HostSlot) -> None:
        del self._leases[slot]
        if slot.row >= 0:  # its range is free already, and may be another's by now
            slot.offset = slot.nbytes = 0
            slot.row = -1
        self.put_back(slot)

    @property
    def leased(self) -> int:
        """Slots that the user's tensors keep, or events."""
        return len(self._leases) - len(self._released)
