"""One worker's stages with an arena and caches of their own, without processes."""

import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import RowLayout
from headrace.engine.board import Board
from headrace.engine.rows import RowStages
from headrace.engine.store import Cache, LocalStore
from headrace.recipes import compile_recipe
from tests.recipes.helpers import MemorySource

ENCODED, DECODED, AUGMENTED = (1 << form for form in CACHEABLE)
GARBAGE = 0xAB
Places = dict[int, tuple[int, int]]


class CountingSource(MemorySource):
    """Remembers what was read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reads: list[int] = []

    def read_many(self, indices: Any) -> list[Any]:
        self.reads += [int(index) for index in indices]
        return super().read_many(indices)


class WatchedStore(LocalStore):
    """Remembers what it was told."""

    told: list[OrderDone]

    def finished(self, order: Order, done: OrderDone) -> None:
        super().finished(order, done)
        self.told.append(done)


class Rig:
    """Runs orders one by one. ``learned``: the layout travels with the orders."""

    def __init__(
        self,
        recipe: Any,
        *,
        caches: bool = True,
        budget: int = 1 << 20,
        collator: Any = None,
        learned: bool = False,
    ) -> None:
        self.arena = Arena()
        self.board = Board(self.arena)
        self.budget = budget
        self.cache = Cache(Arena(), 3 * budget)
        os.ftruncate(self.cache.arena.fd, self.cache.span)
        self.levels = {form: at * budget for at, form in enumerate(CACHEABLE)}
        """Where the next block of each form lies."""
        self.store = WatchedStore(self.cache)
        self.store.told = []
        self.source = recipe.source
        self.program: Any = compile_recipe(recipe, caches_decoded=caches)
        if self.program.layout is None and collator is None:
            learning = compile_recipe(recipe, caches_decoded=caches)
            probe = RowStages(recipe.source, self.arena, self.board, self.store, None)
            done = probe.prepare(probe.fetch(self.order([0]), None), learning)
            self.layout: RowLayout = pickle.loads(done.result)
            learned = True
        else:
            self.layout = self.program.layout
        self.encoded = pickle.dumps(self.layout) if learned else b""
        self.store.told.clear()
        if hasattr(self.source, "reads"):
            self.source.reads.clear()
        self.stages = RowStages(
            recipe.source, self.arena, self.board, self.store, None if learned else self.layout, collator
        )

    def close(self) -> None:
        self.board.close()
        self.arena.close()
        self.cache.arena.close()

    def grants(self, keep: np.ndarray) -> bytes:
        """A block for each form of each row that is to be kept, while there is room."""
        block = max(1024, self.budget // 16)
        found = []
        for at, form in enumerate(CACHEABLE):
            for _ in range(int(np.count_nonzero(keep & (1 << form)))):
                if self.levels[form] + block <= (at + 1) * self.budget:
                    found.append((int(form), self.levels[form], block))
                    self.levels[form] += block
        return np.array(found, np.int64).tobytes()

    def order(self, indices: list[int], **options: Any) -> Order:
        seed, epoch = options.pop("seed", 3), options.pop("epoch", 0)
        return Order(
            7, 0, 0, len(indices), 0, seed, epoch, 0, np.array(indices, np.int64).tobytes(), **options
        )

    def run(
        self,
        indices: list[int],
        *,
        entering: dict[int, tuple[Form, int, int]] | None = None,
        keep: int | list[int] = 0,
        fill: bool = False,
        program: Any = None,
        before: int = 0,
        after: int = 0,
        **options: Any,
    ) -> tuple[OrderDone, list[np.ndarray]]:
        """Run an order; ``entering``: row -> form, offset, bytes. ``before`` and ``after``: rows of others."""
        count = len(indices)
        keeps = np.broadcast_to(np.array(keep, np.uint8), (count,))
        cached = [(entering or {}).get(row, (Form.NONE, -1, 0)) for row in range(count)]
        order = self.order(
            indices,
            forms=bytes(int(form) for form, _, _ in cached),
            offsets=np.array([at for _, at, _ in cached], np.int64).tobytes(),
            lengths=np.array([length for _, _, length in cached], np.int64).tobytes(),
            keep=keeps.tobytes(),
            grants=self.grants(keeps),
            layout=self.encoded,
            fill=fill,
            **options,
        )
        out: list[np.ndarray] = []
        if not fill and self.layout is not None:
            order.rows, order.start = before + count + after, before
            order.slot_offset, order.slot_bytes = self.arena.allocate(self.layout.nbytes(order.rows))
            slot = self.arena.map(order.slot_offset, order.slot_bytes)
            slot[:] = bytes([GARBAGE]) * len(slot)
        done = self.stages.prepare(self.stages.fetch(order, None), program or self.program)
        if order.slot_bytes:
            whole = self.layout.views(slot, order.rows)
            for block in whole:
                for others in (block[:before], block[before + count :]):
                    assert (np.ascontiguousarray(others).view(np.uint8) == GARBAGE).all()
            out = [block[before : before + count].copy() for block in whole]
            self.arena.free(order.slot_offset, order.slot_bytes)
        return done, out

    def extent(self, offset: int, nbytes: int) -> memoryview:
        return self.store.extent(self.order([0]), offset, nbytes)


def places(room: list[tuple[int, memoryview] | None]) -> list[int | None]:
    """The addresses at which room was found."""
    return [None if found is None else found[0] for found in room]


def published(done: OrderDone) -> dict[tuple[int, Form], tuple[int, int]]:
    """Row and form -> offset and bytes."""
    rows = np.frombuffer(done.published, np.int64).reshape(-1, 4).tolist()
    found = {(row, Form(form)): (offset, nbytes) for row, form, offset, nbytes in rows}
    assert len(found) == len(rows), "published twice"
    return found


def entered(done: OrderDone, form: Form) -> dict[int, tuple[Form, int, int]]:
    """What an order published of a form, for another that begins with it."""
    return {row: (form, *place) for (row, kind), place in published(done).items() if kind == form}


def only(program: Any, *allowed: str) -> Any:
    """A program of which nothing but ``allowed`` may be called."""

    class Guarded:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            assert name in allowed, f"{name} was called"
            return getattr(program, name)

    return Guarded()
