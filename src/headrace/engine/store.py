"""Where cached extents lie, and who gives room for new ones: the job's own arena, or a cache that jobs share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import OutOfSharedMemory
from headrace.core.forms import Form
from headrace.core.layout import aligned
from headrace.engine.board import Board, Claim


class Store(Protocol):
    """Where cached extents lie, and who gives room for new ones. Threads of one worker share it."""

    def extent(self, order: Order, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent. Bounds are checked: ``ValueError`` if it lies outside of the cache."""
        ...

    def take(self, order: Order, claim: Claim | None, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """Offsets for new extents of the given sizes, to be written by this order; None where no room is."""
        ...

    def finished(self, order: Order, done: OrderDone) -> None:
        """Called before the job is told: what was published is open to all."""
        ...


class LocalStore:
    """Extents in the job's own arena. ``cache``: the range of the arena that they lie in."""

    def __init__(self, arena: Arena, board: Board, cache: tuple[int, int] | None) -> None:
        self._arena, self._board, self._cache = arena, board, cache

    def extent(self, order: Order, offset: int, nbytes: int) -> memoryview:
        """See ``Store``."""
        start, size = self._cache or (0, 0)
        if nbytes < 0 or offset < start or offset + nbytes > start + size:
            raise ValueError(f"extent {offset}+{nbytes} is outside of the cache")
        return memoryview(self._arena.map(start, size))[offset - start : offset - start + nbytes]

    def take(self, order: Order, claim: Claim | None, form: Form, sizes: Sequence[int]) -> list[int | None]:
        """See ``Store``."""
        offsets = self._board.take_cache(form, [aligned(size) for size in sizes], claim)
        for at, offset in enumerate(offsets):
            if offset is not None and self._arena.directory is not None:
                try:
                    self._arena.reserve(offset, sizes[at])
                except OutOfSharedMemory:
                    offsets[at] = None
        return offsets

    def finished(self, order: Order, done: OrderDone) -> None:
        """See ``Store``. The job's own directory learns it from what the job is told."""


class Grants:
    """The blocks of a shared cache that one order may fill (``Order.grants``), each for one extent."""

    def __init__(self, grants: bytes) -> None:
        self._blocks: dict[int, list[tuple[int, int]]] = {}
        for form, offset, capacity in np.frombuffer(grants, np.int64).reshape(-1, 3).tolist():
            self._blocks.setdefault(form, []).append((capacity, offset))
        for blocks in self._blocks.values():
            blocks.sort()
        self.wanted: dict[Form, int] = {}
        """Of each form, the largest size that found no block."""

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
