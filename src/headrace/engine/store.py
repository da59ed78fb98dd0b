"""Where cached extents lie, and who gives room for new ones: the job's own arena, or a cache that jobs share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.cache.arena import Arena
from headrace.cache.windows import Windows
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import OutOfSharedMemory
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sparse import make_addresses


@dataclass
class Cache:
    """The memory of a job's own cache."""

    arena: Arena
    span: int
    """Addresses."""
    budget: int = 0
    """Bytes of memory that it may hold."""

    @classmethod
    def make(cls, budget: int = 0) -> Cache:
        """One with plenty of addresses, and no memory yet."""
        arena = Arena()
        return cls(arena, make_addresses(arena.fd), budget)


class Store(Protocol):
    """Where cached extents lie, and who gives room for new ones. Threads of one worker share it."""

    def extent(self, order: Order, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent. Bounds are checked: ``ValueError`` if it lies outside of the cache."""
        ...

    def take(self, order: Order, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """Offsets for new extents of the given sizes, to be written by this order; None where no room is."""
        ...

    def finished(self, order: Order, done: OrderDone) -> None:
        """Called before the job is told: what was published is open to all."""
        ...

    def close(self) -> None:
        """No more of it is needed here."""
        ...


class LocalStore:
    """Extents in the memory of the job's own cache; None: it has none."""

    def __init__(self, cache: Cache | None) -> None:
        self._cache = cache
        self._windows: Windows | None = None
        self._grants: dict[int, Grants] = {}

    def extent(self, order: Order, offset: int, nbytes: int) -> memoryview:
        """See ``Store``."""
        if self._cache is None:
            raise ValueError(f"extent {offset}+{nbytes} is outside of the cache, which there is none of")
        return self._open(self._cache).view(offset, nbytes)

    def _open(self, cache: Cache) -> Windows:
        if self._windows is None:
            self._windows = Windows(cache.arena.fd, cache.span)
        return self._windows

    def take(self, order: Order, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """See ``Store``."""
        grants = self._grants.get(order.id)
        if grants is None:
            if not order.grants or self._cache is None:
                return [None] * len(sizes)
            grants = self._grants[order.id] = Grants(order.grants)
        offsets = grants.take(form, sizes)
        for at, offset in enumerate(offsets):
            if offset is not None and self._cache is not None:
                try:
                    self._cache.arena.reserve(offset, sizes[at])
                except OutOfSharedMemory:
                    offsets[at] = None
        self._settle([(at, size) for at, size in zip(offsets, sizes, strict=True) if at is not None])
        return offsets

    def _settle(self, extents: list[tuple[int, int]]) -> None:
        """Take the memory of what is about to be filled all at once; elsewhere than in a memfd it is there."""
        if extents and self._cache is not None and self._cache.arena.directory is None:
            self._open(self._cache).settle(self._cache.arena.fd, extents, self._cache.budget)

    def finished(self, order: Order, done: OrderDone) -> None:
        """See ``Store``. The job's own directory learns from what the job is told."""
        grants = self._grants.pop(order.id, None)
        if grants is not None:
            done.wanted = grants.largest_wanted

    def close(self) -> None:
        """See ``Store``."""
        self._windows = None


class Grants:
    """The blocks of a cache that one order may fill (``Order.grants``), each for one extent."""

    def __init__(self, grants: bytes) -> None:
        self._blocks: dict[int, list[tuple[int, int]]] = {}
        for form, offset, capacity in np.frombuffer(grants, np.int64).reshape(-1, 3).tolist():
            self._blocks.setdefault(form, []).append((capacity, offset))
        for blocks in self._blocks.values():
            blocks.sort()
        self.wanted: dict[Form, int] = {}
        """Of each form, the largest size that found no block."""

    @property
    def largest_wanted(self) -> tuple[int, int, int]:
        """Of each form, the largest size that found no block; 0: all did."""
        encoded, decoded, augmented = (self.wanted.get(form, 0) for form in CACHEABLE)
        return encoded, decoded, augmented

    def take(self, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """For each size the offset of the smallest unused block that holds it, or None."""
        blocks = self._blocks.get(form, [])
        out: list[int | None] = []
        for size in sizes:
            at = bisect_left(blocks, (size, -1))
            if at < len(blocks):
                out.append(blocks.pop(at)[1])
            else:
                out.append(None)
                self.wanted[form] = max(size, self.wanted.get(form, 0))
        return out
