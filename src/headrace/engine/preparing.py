"""The preparing stage of row orders: the program run over fetched rows, straight into the slot.

Writes to slots, and to the cache what it admits of the forms that were reached.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.row_work import DECODE, REST, RUN
from headrace.core.forms import Form
from headrace.core.layout import ALIGN
from headrace.core.places import Place
from headrace.engine import bodies
from headrace.engine.board import Board, Claim
from headrace.engine.bodies import Layouts
from headrace.engine.disk_stage import DiskStage
from headrace.engine.fetching import Fetched
from headrace.engine.gil import GilProbe
from headrace.engine.publishing import Publisher
from headrace.engine.store import Store
from headrace.recipes.program import Fault, Program, Work

_TRACE = 8192
"""Characters of a traceback that travel."""


class Collator(Protocol):
    """Makes a batch of samples where rows will not do: the user's own collate function."""

    def __call__(
        self,
        arena: Arena,
        board: Board,
        order: Order,
        claim: Claim | None,
        samples: list[Any],
        faults: Faults,
    ) -> OrderDone:
        """Collate, write the batch into its slot, and say so."""
        ...


Faults = dict[int, Fault]


class PrepareStage:
    """Prepares the rows of fetched orders, each in the thread that calls."""

    def __init__(
        self,
        arena: Arena,
        board: Board,
        store: Store,
        layouts: Layouts,
        collator: Collator | None = None,
        place: Place | None = None,
        disk: DiskStage | None = None,
    ) -> None:
        """``place``: where slots are, if not in the arena. ``disk``: the tier below the cache, if there is one."""
        self._arena = arena
        self._place: Place = arena if place is None else place
        self._board, self._disk = board, disk
        self._store = store
        self._publisher = Publisher(store)
        self._layouts = layouts
        self._collator = collator
        self._scratch = threading.local()

    def prepare(self, fetched: Fetched, program: Program, probe: GilProbe | None = None) -> OrderDone:
        """Run the program over the rows, into the slot; what was published is open to all thereafter."""
        order, work, spent = fetched.order, fetched.work, fetched.spent
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        done = OrderDone(order.id, [])
        published = fetched.published
        if order.fill or (order.slot_bytes and self._collator is None):
            with probe if probe is not None else contextlib.nullcontext():
                out = self._rows(fetched, program)
            if out is not None and fetched.augmented:
                rows = [row for row in fetched.augmented if row not in work.faults]
                body = self._layouts.find(order.layout)[1]
                published = published + self._publisher.augmented(order, rows, body, out)
        elif self._collator is not None:
            with probe if probe is not None else contextlib.nullcontext():
                samples = program.samples(work)
                collating, collating_cpu = time.perf_counter(), time.thread_time()
                done = self._collator(self._arena, self._board, order, fetched.claim, samples, work.faults)
                work.count_user(time.perf_counter() - collating, time.thread_time() - collating_cpu)
        else:
            program.samples(work)
            done.result = b"" if program.layout is None else pickle.dumps(program.layout)
        taken = time.perf_counter() - begun
        if not fetched.to_disk:
            published = published + self._publisher.decoded(order, work)
        elif self._disk is not None:
            kept = {fetched.to_disk[row]: value for row, value in work.kept.items() if row not in work.faults}
            self._disk.keep_decoded(kept)
        spent.decode = work.seconds.get(Form.DECODED, 0.0)
        spent.augment = max(0.0, taken - spent.decode)
        spent.decoded = work.decoded - len(work.left)
        spent.pixels = work.pixels * spent.decoded // max(work.decoded, 1)
        spent.user, spent.user_cpu = work.user, work.user_cpu
        spent.prepared = int(np.count_nonzero(fetched.ways == RUN)) - len(work.left)
        spent.cpu = time.thread_time() - begun_cpu
        done.faults = [(row, f.reason, f.traceback[-_TRACE:]) for row, f in sorted(work.faults.items())]
        done.published = np.array(published, np.int64).tobytes() if published else b""
        done.left = np.array(work.left, np.int64).tobytes() if work.left else b""
        done.spent = spent
        self._store.finished(order, done)
        return done

    def _rows(self, fetched: Fetched, program: Program) -> list[NDArray[Any]] | None:
        """Do with each run of rows what is to be done with them; returns the memory that they stand in."""
        order, work, ways = fetched.order, fetched.work, fetched.ways
        count = len(ways)
        out: list[NDArray[Any]] | None = None
        if not order.fill:
            layout, _ = self._layouts.find(order.layout)
            buffer = memoryview(self._place.map(order.slot_offset, order.slot_bytes))
            out = layout.views(buffer, order.rows, order.start, order.start + count)
        elif (ways == RUN).any():
            layout, _ = self._layouts.find(order.layout)
            out = layout.views(self._scratch_rows(layout.nbytes(count)), count)
        edges = [0, *(np.flatnonzero(ways[1:] != ways[:-1]) + 1).tolist(), count]
        for start, stop in itertools.pairwise(edges):
            way = int(ways[start]) if count else REST
            if way == REST:
                continue
            whole = stop - start == count
            part = work if whole else work.part(start, stop)
            if way == DECODE:
                program.decode(part)
            else:
                assert out is not None
                into = out if whole else [memory[start:stop] for memory in out]
                if way == RUN:
                    program.run(part, into)
                else:
                    self._copy(order, part, program, into)
            if not whole:
                work.merge(part, start)
        return out

    def _copy(self, order: Order, work: Work, program: Program, out: list[NDArray[Any]]) -> None:
        """Augmented rows: copy what is cached of them, and write their targets."""
        body = self._layouts.find(order.layout)[1]
        bodies.load(work.inputs, body.blocks(out), list(range(len(work.inputs))))
        program.label(work, out[body.fields :])

    def _scratch_rows(self, nbytes: int) -> memoryview:
        """Memory of this thread's own, for rows that go into no batch."""
        memory: NDArray[np.uint8] | None = getattr(self._scratch, "memory", None)
        if memory is None or len(memory) < nbytes:
            memory = np.empty(nbytes + ALIGN, np.uint8)
            memory = memory[-memory.__array_interface__["data"][0] % ALIGN :]
            self._scratch.memory = memory
        return memoryview(memory)  # type: ignore[arg-type]
