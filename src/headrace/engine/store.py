"""Where cached extents lie, and who gives room for new ones: the job's own cache, or one that jobs share."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from headrace.cache.arena import Arena
from headrace.cache.tiers import ArenaMemory, CacheTier, TierMemory
from headrace.coordinate.grants import Grants
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.addresses import SHIFT, SPAN, Tier
from headrace.core.forms import Form
from headrace.core.sparse import make_addresses

Room = tuple[int, memoryview]
"""Address of a new extent, and memory to write it into."""
_ARENA = int(Tier.ARENA)


@dataclass
class Cache:
    """The memory of a job's own cache: the tier of the arena, and others where there are any."""

    arena: Arena
    span: int
    """Addresses."""
    budget: int = 0
    """Bytes of memory that it may hold."""
    beside: Mapping[Tier, CacheTier] = field(default_factory=dict)

    @classmethod
    def make(cls, budget: int = 0) -> Cache:
        """One with plenty of addresses, and no memory yet."""
        arena = Arena()
        return cls(arena, make_addresses(arena.fd), budget)

    def open(self) -> TierMemory:
        """The tier of the arena, for this process."""
        return ArenaMemory(self.arena, self.span, self.budget)


class Store(Protocol):
    """Where cached extents lie, and who gives room for new ones. Threads of one worker share it."""

    def extent(self, order: Order, address: int, nbytes: int) -> memoryview:
        """The bytes of an extent. ``ValueError`` if it lies outside of the cache, or in a tier that is not here."""
        ...

    def take(self, order: Order, form: Form, sizes: Sequence[int]) -> list[Room | None]:
        """Room for new extents of the given sizes, to be written by this order; None where there is none."""
        ...

    def finished(self, order: Order, done: OrderDone) -> None:
        """Called before the job is told: what was published is open to all."""
        ...

    def close(self) -> None:
        """No more of it is needed here."""
        ...


@dataclass(eq=False)
class _Open:
    """What an order that is under way has of the store."""

    grants: Grants
    written: dict[int, memoryview] = field(default_factory=dict)
    """By address, what it writes elsewhere than in the arena."""


class LocalStore:
    """Extents in the memory of the job's own cache, by the tier in which each lies; None: it has none."""

    def __init__(self, cache: Cache | None) -> None:
        tiers: dict[Tier, CacheTier] = {} if cache is None else {Tier.ARENA: cache, **cache.beside}
        self._tiers = {int(tier): made for tier, made in tiers.items()}
        self._memories: dict[int, TierMemory] = {}
        self._opening = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._read: dict[int, dict[int, list[float]]] = {}
        """By order, what was read of tiers beside the arena: bytes and seconds."""

    def _memory(self, tier: int) -> TierMemory:
        memory = self._memories.get(tier)
        if memory is None:
            with self._opening:
                memory = self._memories.get(tier)
                if memory is None:
                    if tier not in self._tiers:
                        raise ValueError(f"tier {tier} is outside of the cache")
                    memory = self._memories[tier] = self._tiers[tier].open()
        return memory

    def extent(self, order: Order, address: int, nbytes: int) -> memoryview:
        """See ``Store``."""
        tier = address >> SHIFT
        memory = self._memory(tier)
        if tier == _ARENA:
            return memory.extent(address, nbytes)
        begun = time.perf_counter()
        found = memory.extent(address & (SPAN - 1), nbytes)
        read = self._read.setdefault(order.id, {}).setdefault(tier, [0, 0.0])
        read[0] += nbytes
        read[1] += time.perf_counter() - begun
        return found

    def take(self, order: Order, form: Form, sizes: Sequence[int]) -> list[Room | None]:
        """See ``Store``."""
        opened = self._open.get(order.id)
        if opened is None:
            if not order.grants or not self._tiers:
                return [None] * len(sizes)
            opened = self._open[order.id] = _Open(Grants(order.grants))
        out: list[Room | None] = [None] * len(sizes)
        by_tier: dict[int, list[tuple[int, int]]] = {}
        for at, address in enumerate(opened.grants.take(form, sizes)):
            if address is not None:
                by_tier.setdefault(address >> SHIFT, []).append((at, address))
        for tier, places in by_tier.items():
            if tier not in self._tiers:
                continue
            extents = [(address & (SPAN - 1), sizes[at]) for at, address in places]
            for (at, address), memory in zip(places, self._memory(tier).take(extents), strict=True):
                if memory is not None:
                    out[at] = address, memory
                    if tier != _ARENA:
                        opened.written[address] = memory
        return out

    def finished(self, order: Order, done: OrderDone) -> None:
        """See ``Store``. The job's own directory learns from what the job is told."""
        if self._read:
            read = self._read.pop(order.id, {})
            done.read = [(tier, int(nbytes), seconds) for tier, (nbytes, seconds) in read.items()]
        opened = self._open.pop(order.id, None)
        if opened is not None:
            done.wanted = opened.grants.largest_wanted
            if opened.written and done.published:
                done.published = self._settle(opened.written, done.published)

    def _settle(self, written: dict[int, memoryview], published: bytes) -> bytes:
        """What was published, but for what could not be written."""
        rows = np.frombuffer(published, np.int64).reshape(-1, 4)
        stands = np.ones(len(rows), np.bool_)
        for at, address in enumerate(rows[:, 2].tolist()):
            memory = written.get(address)
            if memory is not None:
                try:
                    self._memory(address >> SHIFT).settle(address & (SPAN - 1), memory)
                except ValueError:
                    stands[at] = False
        return rows[stands].tobytes()

    def close(self) -> None:
        """See ``Store``."""
        memories, self._memories = self._memories, {}
        for memory in memories.values():
            memory.close()
