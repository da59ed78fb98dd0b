"""Slots: batches' memory, lent to workers, then to tensors, and back when those are gone."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Slot
from headrace.coordinate.messages import Order, encoder
from headrace.core.layout import aligned


@dataclass(eq=False)
class HostSlot(Slot):
    """A slot, and the areas in which the orders for its batch are written down."""

    areas: list[tuple[int, int]] = field(default_factory=list)
    cursor: int = 0


class SlotPool:
    """Allocates slots, and takes back those whose tensors were garbage-collected."""

    def __init__(self, arena: Arena, nbytes: int, keep: int) -> None:
        self._arena = arena
        self.nbytes = nbytes
        """Bytes of a new slot; 0: a worker finds out how many it takes, and later ones begin with what most have."""
        self._usual = 0
        self.keep = keep
        """Free slots that are kept for the next batches."""
        self._free: list[HostSlot] = []
        self._released: deque[HostSlot] = deque()
        self._leases: dict[HostSlot, Any] = {}
        self._all: set[HostSlot] = set()

    def acquire(self) -> HostSlot:
        """A free slot, or a new one."""
        self.collect()
        if self._free:
            return self._free.pop()
        slot = HostSlot(0, 0)
        if self.nbytes or self._usual:
            slot.offset, slot.nbytes = self._arena.allocate(self.nbytes or self._usual)
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
        stale = slot.nbytes < self.nbytes
        if len(self._free) < self.keep and not stale:
            self._free.append(slot)
        else:
            self.discard(slot)

    def discard(self, slot: HostSlot) -> None:
        """Free a slot's memory."""
        for area in slot.areas:
            self._arena.free(*area)
        self._free_range(slot)
        slot.areas, slot.nbytes = [], 0
        self._all.discard(slot)

    def close(self) -> None:
        """Free every slot but those on loan. Their pages go back even if others hold the arena's file: processes
        that were forked from this one do, for as long as they live."""
        self.collect()
        self._free.clear()
        for slot in self._all - self._leases.keys():
            self.discard(slot)

    def _free_range(self, slot: HostSlot) -> None:
        if slot.nbytes:
            self._arena.free(slot.offset, slot.nbytes)

    def fit(self, slot: HostSlot, nbytes: int) -> None:
        """Make a free slot at least so large."""
        if slot.nbytes < nbytes:
            self._free_range(slot)
            slot.nbytes = 0
            slot.offset, slot.nbytes = self._arena.allocate(nbytes)
            self.nbytes = max(self.nbytes, nbytes)

    def replace(self, slot: HostSlot, offset: int, nbytes: int) -> None:
        """A worker needed a larger range for its result, and allocated it."""
        self._free_range(slot)
        self._arena.adopt(nbytes)
        slot.offset, slot.nbytes = offset, nbytes
        # Of those that there are, so that a single large one does not make all others large. Were new ones empty,
        # each would be made at the end of the arena, and no free range would be used again.
        sizes = sorted(other.nbytes for other in self._all if other.nbytes)
        self._usual = sizes[len(sizes) // 2] if sizes else nbytes

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
        """The slot's memory as an object that arrays can be made over. When the last of them is gone, the slot
        comes back by itself."""
        mapped = self._arena.map(slot.offset, slot.nbytes)
        buffer = _buffer_type(slot.nbytes).from_buffer(mapped)
        # The callback may run in any thread and at any point, so it only takes a note.
        released = self._released
        self._leases[slot] = weakref.ref(buffer, lambda _: released.append(slot))
        return buffer

    def collect(self) -> None:
        """Take released slots back."""
        while self._released:
            slot = self._released.popleft()
            del self._leases[slot]
            self.put_back(slot)

    @property
    def leased(self) -> int:
        """Slots that the user's tensors keep."""
        return len(self._leases) - len(self._released)


@functools.lru_cache(maxsize=256)
def _buffer_type(nbytes: int) -> Any:
    # A subclass, because plain ctypes arrays cannot be weakly referenced.
    return type("Lease", (ctypes.c_char * nbytes,), {})
