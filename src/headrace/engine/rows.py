"""Running orders of rows: fetch bytes, prepare them straight into the slot, publish what the cache admits."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.cache import extents
from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone, Spent, decode_order
from headrace.core.forms import Form
from headrace.core.layout import ALIGN, RowLayout
from headrace.core.places import Place
from headrace.engine import bodies
from headrace.engine.board import Board, Claim
from headrace.engine.bodies import Body
from headrace.engine.gil import GilProbe
from headrace.engine.mask_files import MaskFiles
from headrace.engine.publishing import Published, Publisher
from headrace.engine.reader import Reader
from headrace.engine.store import Store
from headrace.recipes.program import Fault, Program, Work
from headrace.sources.source import Source

_TRACE = 8192
"""Characters of a traceback that travel."""
_ENCODED, _DECODED, _AUGMENTED = (1 << form for form in (Form.ENCODED, Form.DECODED, Form.AUGMENTED))
# Plain numbers: numpy takes long over enumerations.
_IS_NONE, _IS_ENCODED, _IS_DECODED, _IS_AUGMENTED = (
    int(form) for form in (Form.NONE, Form.ENCODED, Form.DECODED, Form.AUGMENTED)
)
_REST, _COPY, _DECODE, _RUN = range(4)
"""What is done with a row: nothing beyond fetching; copy its augmented form; decode it; run the program."""


@dataclass
class Fetched:
    """An order with its rows' inputs, on its way from fetching to preparing."""

    order: Order
    claim: Claim | None
    work: Work
    ways: NDArray[np.uint8]
    """What is to be done with each row."""
    augmented: list[int]
    """Rows whose augmented form the cache would admit."""
    published: Published
    spent: Spent


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


class RowStages:
    """The two stages of a row order. ``fetch`` and ``prepare`` may run in different threads."""

    def __init__(
        self,
        source: Source,
        arena: Arena,
        board: Board,
        store: Store,
        layout: RowLayout | None,
        collator: Collator | None = None,
        masks: MaskFiles | None = None,
        place: Place | None = None,
    ) -> None:
        """``masks``: reads the files that targets name, where they do. ``place``: where slots are, if not in the
        arena."""
        self._reader = Reader(source)
        self._masks = masks
        self._targets = source.targets is not None
        self._arena = arena
        self._place: Place = arena if place is None else place
        self._board = board
        self.store = store
        self._publisher = Publisher(store)
        self._layouts: dict[bytes, tuple[RowLayout, Body]] = {}
        if layout is not None:
            self._layouts[b""] = layout, Body.of(layout, targets=self._targets)
        self._collator = collator
        self._scratch = threading.local()

    # -- fetching -----------------------------------------------------------------------------------------

    def load(self, claim: Claim) -> Order:
        """The order that a claim stands for. What comes from shared memory is checked."""
        return load_order(self._arena, claim)

    def fetch(self, order: Order, claim: Claim | None) -> Fetched:
        """Get the input of every row: from the cache, or from the source."""
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        indices = order.index_array()
        count = len(indices)
        forms = np.frombuffer(order.forms, np.uint8).copy() if order.forms else np.zeros(count, np.uint8)
        keep = np.frombuffer(order.keep, np.uint8) if order.keep else np.zeros(count, np.uint8)
        ways, needed = self._ways(order, forms, keep)
        inputs: list[Any] = [None] * count
        faults: dict[int, Fault] = {}
        cached = np.flatnonzero((forms != _IS_NONE) & needed)
        if len(cached):
            self._from_cache(order, cached.tolist(), forms, ways, inputs)
        missing = np.flatnonzero((forms == _IS_NONE) & needed)
        spent = Spent()
        if len(missing):
            blobs, each = self._reader.read(indices[missing])
            spent.reading = each * len(missing)
            for row, blob in zip(missing.tolist(), blobs, strict=True):
                if isinstance(blob, BaseException):
                    faults[row] = Fault.of(blob)
                else:
                    inputs[row] = blob
                    spent.fetched += 1
                    spent.fetched_bytes += len(blob)
            forms[missing] = _IS_ENCODED
        work = Work(
            indices=indices,
            seed=order.seed,
            epoch=order.epoch,
            forms=forms,
            inputs=inputs,
            keep=(keep & _DECODED) != 0,
            reserve=lambda arrays: self._publisher.reserve(order, arrays, taken),
            faults=faults,
            words=np.frombuffer(order.words, np.int64) if order.words else None,
        )
        taken: dict[int, tuple[int, int]] = {}
        work.taken = taken
        if self._masks is not None:
            work.beside, seconds = self._masks.read(indices, np.flatnonzero(ways == _RUN).tolist())
            spent.reading += seconds
        fresh = [row for row in missing.tolist() if keep[row] & _ENCODED and inputs[row] is not None]
        published = self._publisher.encoded(order, fresh, inputs)
        # One that came from the cache stands there; a second extent of it would be served as another.
        augmented = np.flatnonzero(((keep & _AUGMENTED) != 0) & (ways == _RUN)).tolist()
        spent.fetch = time.perf_counter() - begun
        spent.fetch_cpu = time.thread_time() - begun_cpu
        return Fetched(order, claim, work, ways, augmented, published, spent)

    def _ways(
        self, order: Order, forms: NDArray[np.uint8], keep: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """What is to be done with each row, and which rows need an input for it."""
        ready = forms == _IS_AUGMENTED
        if not order.fill:
            if ready.any() and (self._collator is not None or not order.slot_bytes):
                raise ValueError(f"order {order.id} has augmented rows, and its samples are collated")
            return np.where(ready, _COPY, _RUN).astype(np.uint8), np.ones(len(forms), np.bool_)
        ways = np.full(len(forms), _REST, np.uint8)
        ways[((keep & _DECODED) != 0) & (forms < _IS_DECODED)] = _DECODE
        if self._collator is None and (order.layout or b"" in self._layouts):
            ways[((keep & _AUGMENTED) != 0) & ~ready] = _RUN
        return ways, (ways != _REST) | (((keep & _ENCODED) != 0) & (forms == _IS_NONE))

    def _from_cache(
        self,
        order: Order,
        rows: list[int],
        forms: NDArray[np.uint8],
        ways: NDArray[np.uint8],
        inputs: list[Any],
    ) -> None:
        """Open the extents of rows. One that cannot be read is none: its row is fetched from the source."""
        offsets = np.frombuffer(order.offsets, np.int64).tolist()
        lengths = np.frombuffer(order.lengths, np.int64).tolist()
        kinds = forms.tolist()
        body = self._layout(order.layout)[1].nbytes if _IS_AUGMENTED in kinds else 0
        for row in rows:
            kind, nbytes = kinds[row], lengths[row]
            try:
                extent = self.store.extent(order, offsets[row], nbytes)
                if kind == _IS_AUGMENTED and nbytes != body:
                    raise ValueError(f"an augmented sample of {nbytes} bytes, where rows have {body}")
                inputs[row] = extents.load(extent) if kind == _IS_DECODED else extent
            except ValueError:
                forms[row] = _IS_NONE
                ways[row] = _RUN if ways[row] == _COPY else ways[row]

    # -- preparing ----------------------------------------------------------------------------------------

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
                body = self._layout(order.layout)[1]
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
        published = published + self._publisher.decoded(order, work)
        spent.decode = work.seconds.get(Form.DECODED, 0.0)
        spent.augment = max(0.0, taken - spent.decode)
        spent.decoded = work.decoded
        spent.pixels, spent.user, spent.user_cpu = work.pixels, work.user, work.user_cpu
        spent.prepared = int(np.count_nonzero(fetched.ways == _RUN))
        spent.cpu = time.thread_time() - begun_cpu
        for reader in (self._reader, *([] if self._masks is None else [self._masks.reader])):
            reader.prepared(int(np.count_nonzero(fetched.ways >= _DECODE)), taken)
        done.faults = [(row, f.reason, f.traceback[-_TRACE:]) for row, f in sorted(work.faults.items())]
        done.published = np.array(published, np.int64).tobytes() if published else b""
        done.spent = spent
        self.store.finished(order, done)
        return done

    def _rows(self, fetched: Fetched, program: Program) -> list[NDArray[Any]] | None:
        """Do with each run of rows what is to be done with them; returns the memory that they stand in."""
        order, work, ways = fetched.order, fetched.work, fetched.ways
        count = len(ways)
        out: list[NDArray[Any]] | None = None
        if not order.fill:
            layout, _ = self._layout(order.layout)
            buffer = memoryview(self._place.map(order.slot_offset, order.slot_bytes))
            out = layout.views(buffer, order.rows, order.start, order.start + count)
        elif (ways == _RUN).any():
            layout, _ = self._layout(order.layout)
            out = layout.views(self._scratch_rows(layout.nbytes(count)), count)
        edges = [0, *(np.flatnonzero(ways[1:] != ways[:-1]) + 1).tolist(), count]
        for start, stop in itertools.pairwise(edges):
            way = int(ways[start]) if count else _REST
            if way == _REST:
                continue
            whole = stop - start == count
            part = work if whole else work.part(start, stop)
            if way == _DECODE:
                program.decode(part)
            else:
                assert out is not None
                into = out if whole else [memory[start:stop] for memory in out]
                if way == _RUN:
                    program.run(part, into)
                else:
                    self._copy(order, part, program, into)
            if not whole:
                work.merge(part, start)
        return out

    def _copy(self, order: Order, work: Work, program: Program, out: list[NDArray[Any]]) -> None:
        """Augmented rows: copy what is cached of them, and write their targets."""
        body = self._layout(order.layout)[1]
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

    def _layout(self, encoded: bytes) -> tuple[RowLayout, Body]:
        found = self._layouts.get(encoded)
        if found is None:
            layout: RowLayout = pickle.loads(encoded)
            found = self._layouts[encoded] = layout, Body.of(layout, targets=self._targets)
        return found


def load_order(arena: Arena, claim: Claim) -> Order:
    """The order that a claim stands for. Its place is checked against the arena before it is read."""
    if claim.start < 0 or claim.length < 0 or claim.start + claim.length > claim.area[1]:
        raise ValueError(f"order {claim.order} lies outside of its area")
    buffer = memoryview(arena.map(*claim.area))
    return decode_order(buffer[claim.start : claim.start + claim.length])
