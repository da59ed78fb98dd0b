"""What a helper has been taught: a recipe that is ready to be used by each of its threads."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections import OrderedDict
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from headrace.cache.arena import Arena
from headrace.cluster.keyed_tier import use_nodes
from headrace.cluster.limits import limit_of
from headrace.cluster.messages import MEASURED, Grant, Teach
from headrace.cluster.pooled import Pool, PooledSource
from headrace.coordinate.messages import Order
from headrace.core.errors import OptionError
from headrace.core.layout import RowLayout
from headrace.engine.board import Board
from headrace.engine.rows import RowStages
from headrace.engine.task import RecipeTask
from headrace.recipes.plain import source_from_plain
from headrace.recipes.program import Program
from headrace.recipes.recipe import Recipe

_PROBES = 8
"""Samples of which one has to be good, to see how rows look."""
_generators = threading.Lock()
"""Of random numbers, which all threads of a process share: who draws from them is alone."""


class Known:
    """A recipe that is ready to be used by each thread."""

    def __init__(self, teach: Teach, path: str, code: tuple[str, ...]) -> None:
        plain = json.loads(teach.source)
        source = source_from_plain(plain)
        if source.fingerprint() != teach.dataset:
            raise OptionError("this node sees other files there than the job does")
        pool = Pool(path, teach.dataset, teach.source, limit_of(plain))
        self._source = PooledSource(source, pool)
        recipe = Recipe.from_dict(json.loads(teach.definition), source=self._source, trust_code=code)
        if recipe.collate is not None:
            raise OptionError("collate= is called with whole batches, which helpers have not")
        # (of other versions of the same code, rows may look alike; and a table of other labels names the same files)
        if recipe.rows_key != teach.key:
            raise OptionError(
                "this node has other code, other targets or another headrace than the job: rows would differ"
            )
        # (how much nodes may hold is of interest to those who plan)
        tier = use_nodes(recipe, pool, 0, measured=teach.tier == MEASURED) if teach.tier else None
        # What is held there was decoded as it is for a cache. So has to be what is given there, whatever was said.
        self._task = RecipeTask(recipe, None, None, teach.decoded or tier is not None, disk=tier)
        self.samples = len(source)
        self.layout = self._find_layout()
        self._task = replace(self._task, layout=self.layout)
        self.row = sum(field.nbytes for field in self.layout.fields)
        self._here = threading.local()
        self._alone = recipe.user_randomness

    def _find_layout(self) -> RowLayout:
        """How rows look. Where code of the user's makes them, only a first one shows it."""
        program = self._task.compile()
        if program.layout is None:
            with contextlib.closing(Arena()) as arena, contextlib.closing(Board(arena)) as board:
                self._make_first(self._task.stages(arena, board), program)
        if program.layout is None:
            raise OptionError("rows of this recipe are of no known size")
        return program.layout

    def _make_first(self, stages: RowStages, program: Program) -> None:
        """Make samples until one is good."""
        for index in range(min(_PROBES, self.samples)):
            order = Order(-1, 0, 0, 1, 0, 0, 0, 0, np.array([index], np.int64).tobytes())
            with _generators:
                stages.prepare(stages.fetch(order, None), program)
            if program.layout is not None:
                return

    def read_ahead(self, samples: NDArray[np.int64]) -> None:
        """Get what this thread makes next: from nodes that hold it decoded, what these have not, from the source."""
        self._source.read_ahead(samples[self.bench().look_ahead(samples)])

    def make(self, grant: Grant) -> tuple[list[Any], list[tuple[int, str, str]], float]:
        """See ``Bench``."""
        with _generators if self._alone else contextlib.nullcontext():
            return self.bench().make(grant)

    def bench(self) -> Bench:
        """What this thread prepares with."""
        found: Bench | None = getattr(self._here, "bench", None)
        if found is None:
            arena = Arena()
            board = Board(arena)
            stages = self._task.stages(arena, board)
            found = self._here.bench = Bench(arena, stages, self._task.compile(), self.layout)
            # (a recipe may be forgotten while it is used: its memory goes with whoever used it last)
            weakref.finalize(found, _let_go, arena, board).atexit = False
        return found


def _let_go(arena: Arena, board: Board) -> None:
    board.close()
    arena.close()


class Recipes:
    """Those that a helper knows: the ones that somebody has, and the ones that were used last. Threads share it.

    To make one ready takes as long as to list its dataset. So none is forgotten that a connection uses; where these
    are too many, another is refused.
    """

    MOST = 16
    """That are known in any case; and, while somebody has them,"""
    MOST_USED = 64
    """so many,"""
    MOST_SAMPLES = 4 << 20
    """if they have no more samples than these, all together: each takes about 70 bytes."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Known] = WeakValueDictionary()
        self._last: OrderedDict[str, Known] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, name: str) -> Known | None:
        """One to be used now."""
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._use(name, known)
            return known

    def has_room(self) -> bool:
        """Whether there may be another one. What nobody has goes for it, if need be."""
        held: OrderedDict[str, Known] = OrderedDict()
        with self._lock:
            while self._last and self._is_full():
                name = next(iter(self._last))
                del self._last[name]
                known = self._known.get(name)
                if known is not None:  # (a connection has it, so nothing is gained by forgetting it)
                    held[name] = known
            self._last = held | self._last
            return not self._is_full()

    def keep(self, name: str, known: Known) -> None:
        """Another one."""
        with self._lock:
            self._known[name] = known
            self._use(name, known)

    def _use(self, name: str, known: Known) -> None:
        self._last[name] = known
        self._last.move_to_end(name)
        if len(self._last) > self.MOST:
            self._last.popitem(last=False)

    def _is_full(self) -> bool:
        known = list(self._known.values())
        return len(known) >= self.MOST_USED or (
            len(known) >= self.MOST and sum(one.samples for one in known) >= self.MOST_SAMPLES
        )


class Bench:
    """Memory, stages and program of one thread."""

    def __init__(self, arena: Arena, stages: RowStages, program: Program, layout: RowLayout) -> None:
        self._arena, self._stages, self._program, self._layout = arena, stages, program, layout
        self._slot = (0, 0)

    def look_ahead(self, samples: NDArray[np.int64]) -> list[int]:
        """Get those samples that the tier has; returns which it has not."""
        return self._stages.look_ahead(samples)

    def make(self, grant: Grant) -> tuple[list[Any], list[tuple[int, str, str]], float]:
        """Rows, field by field; what is wrong with some; and the CPU seconds that they took."""
        begun = time.thread_time()
        count = len(grant.samples) // 8
        nbytes = self._layout.nbytes(count)
        if self._slot[1] < nbytes:
            before, self._slot = self._slot, (0, 0)
            if before[1]:
                self._arena.free(*before)
            self._slot = self._arena.allocate(nbytes)
        order = Order(
            0, self._slot[0], nbytes, count, 0, grant.seed, grant.epoch, grant.step, grant.samples, words=grant.words
        )  # fmt: skip
        done = self._stages.prepare(self._stages.fetch(order, None), self._program)
        views = self._layout.views(memoryview(self._arena.map(self._slot[0], nbytes)), count)
        return views, done.faults, time.thread_time() - begun
