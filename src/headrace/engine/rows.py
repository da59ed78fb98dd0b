"""Running orders of rows: fetch bytes, prepare them straight into the slot, publish what the cache admits."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.cache import extents
from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone, Spent, decode_order
from headrace.core.errors import OutOfSharedMemory
from headrace.core.forms import Form
from headrace.core.layout import RowLayout, aligned
from headrace.engine.board import Board, Claim
from headrace.engine.gil import GilProbe
from headrace.recipes.program import Fault, Program, Work
from headrace.sources.source import Source

_WIDEST = 32
"""Reads at once, at most, where storage is slow."""
_TRACE = 8192
"""Characters of a traceback that travel."""


@dataclass
class Fetched:
    """An order with its rows' inputs, on its way from fetching to preparing."""

    order: Order
    claim: Claim | None
    work: Work
    published: list[tuple[int, int, int, int]]
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
        cache: tuple[int, int] | None,
        layout: RowLayout | None,
        collator: Collator | None = None,
    ) -> None:
        self._source = source
        self._arena = arena
        self._board = board
        self._cache = cache
        self._layouts: dict[bytes, RowLayout] = {}
        if layout is not None:
            self._layouts[b""] = layout
        self._collator = collator
        self._pool: ThreadPoolExecutor | None = None
        self._read_time = 0.0
        self._prepare_time = 1e-3

    # -- fetching -----------------------------------------------------------------------------------------

    def load(self, claim: Claim) -> Order:
        """The order that a claim stands for. What comes from shared memory is checked."""
        return load_order(self._arena, claim)

    def fetch(self, order: Order, claim: Claim | None) -> Fetched:
        """Get the input of every row: from the cache, or from the source."""
        begun = time.perf_counter()
        indices = order.index_array()
        count = len(indices)
        forms = np.frombuffer(order.forms, np.uint8).copy() if order.forms else np.zeros(count, np.uint8)
        keep = np.frombuffer(order.keep, np.uint8) if order.keep else np.zeros(count, np.uint8)
        inputs: list[Any] = [None] * count
        faults: dict[int, Fault] = {}
        missing = np.flatnonzero(forms == Form.NONE)
        if len(missing) < count:
            self._from_cache(order, forms, inputs, faults)
        spent = Spent()
        if len(missing):
            blobs = self._read(indices[missing])
            for row, blob in zip(missing.tolist(), blobs, strict=True):
                if isinstance(blob, BaseException):
                    faults[row] = Fault.of(blob)
                else:
                    inputs[row] = blob
                    spent.fetched += 1
                    spent.fetched_bytes += len(blob)
            forms[missing] = Form.ENCODED
        work = Work(
            indices=indices,
            seed=order.seed,
            epoch=order.epoch,
            forms=forms,
            inputs=inputs,
            keep=(keep & (1 << Form.DECODED)) != 0,
            reserve=lambda arrays: self._reserve(arrays, claim, taken),
            faults=faults,
        )
        taken: dict[int, tuple[int, int]] = {}
        work.taken = taken
        published = self._publish_encoded(keep, inputs, claim)
        spent.fetch = time.perf_counter() - begun
        return Fetched(order, claim, work, published, spent)

    def _read(self, indices: NDArray[np.int64]) -> Sequence[bytes | BaseException]:
        """Read many samples, as many at once as storage needs to keep up with preparing."""
        count = len(indices)
        begun = time.perf_counter()
        width = min(_WIDEST, count, math.ceil(1.5 * self._read_time / max(self._prepare_time, 1e-6)))
        if width <= 1:
            blobs = self._read_part(indices)
            width = 1
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WIDEST, thread_name_prefix="headrace-fetch")
            parts = np.array_split(indices, width)
            blobs = [blob for part in self._pool.map(self._read_part, parts) for blob in part]
        each = (time.perf_counter() - begun) * width / count
        self._read_time += 0.3 * (each - self._read_time)
        return blobs

    def _read_part(self, indices: NDArray[np.int64]) -> list[bytes | BaseException]:
        """What the source gives. One that raises is asked again for each sample, to find the one at fault."""
        try:
            blobs = list(self._source.read_many(indices))
            if len(blobs) != len(indices):
                raise ValueError(f"the source was asked for {len(indices)} samples and gave {len(blobs)}")
            return blobs
        except Exception as error:
            if len(indices) == 1:
                return [error]
        return [blob for at in range(len(indices)) for blob in self._read_part(indices[at : at + 1])]

    def _from_cache(
        self, order: Order, forms: NDArray[np.uint8], inputs: list[Any], faults: dict[int, Fault]
    ) -> None:
        offsets = np.frombuffer(order.offsets, np.int64).tolist()
        lengths = np.frombuffer(order.lengths, np.int64).tolist()
        for row in np.flatnonzero(forms != Form.NONE).tolist():
            try:
                inputs[row] = self._load(Form(forms[row]), offsets[row], lengths[row])
            except ValueError as error:
                faults[row] = Fault.of(error)

    def _extent(self, offset: int, nbytes: int) -> memoryview:
        assert self._cache is not None
        start, size = self._cache
        if nbytes < 0 or offset < start or offset + nbytes > start + size:
            raise ValueError(f"extent {offset}+{nbytes} is outside of the cache")
        return memoryview(self._arena.map(start, size))[offset - start : offset - start + nbytes]

    def _load(self, form: Form, offset: int, nbytes: int) -> Any:
        extent = self._extent(offset, nbytes)
        return extent if form == Form.ENCODED else extents.load(extent)

    # -- preparing ----------------------------------------------------------------------------------------

    def prepare(self, fetched: Fetched, program: Program, probe: GilProbe | None = None) -> OrderDone:
        """Run the program over the rows, into the slot."""
        order, work, spent = fetched.order, fetched.work, fetched.spent
        begun = time.perf_counter()
        done = OrderDone(order.id, [])
        if self._collator is not None:
            samples = program.samples(work)
            done = self._collator(self._arena, self._board, order, fetched.claim, samples, work.faults)
        elif not order.slot_bytes:
            program.samples(work)
            done.result = b"" if program.layout is None else pickle.dumps(program.layout)
        else:
            layout = self._layout(order.layout)
            buffer = memoryview(self._arena.map(order.slot_offset, order.slot_bytes))
            out = layout.views(buffer, order.rows, order.start, order.start + len(work.indices))
            if probe is not None:
                with probe:
                    program.run(work, out)
            else:
                program.run(work, out)
        taken = time.perf_counter() - begun
        published = fetched.published + self._publish_decoded(work, fetched.claim)
        spent.decode = work.seconds.get(Form.DECODED, 0.0)
        spent.augment = max(0.0, taken - spent.decode)
        self._prepare_time += 0.3 * (taken / max(len(work.indices), 1) - self._prepare_time)
        done.faults = [(row, f.reason, f.traceback[-_TRACE:]) for row, f in sorted(work.faults.items())]
        done.published = np.array(published, np.int64).tobytes() if published else b""
        done.spent = spent
        return done

    def _layout(self, encoded: bytes) -> RowLayout:
        layout = self._layouts.get(encoded)
        if layout is None:
            layout = self._layouts[encoded] = pickle.loads(encoded)
        return layout

    # -- publishing ---------------------------------------------------------------------------------------

    def _take(self, form: Form, sizes: list[int], claim: Claim | None) -> list[int | None]:
        offsets = self._board.take_cache(form, [aligned(size) for size in sizes], claim)
        for at, offset in enumerate(offsets):
            if offset is not None and self._arena.directory is not None:
                try:
                    self._arena.reserve(offset, sizes[at])
                except OutOfSharedMemory:
                    offsets[at] = None
        return offsets

    def _publish_encoded(
        self, keep: NDArray[np.uint8], inputs: list[Any], claim: Claim | None
    ) -> list[tuple[int, int, int, int]]:
        rows = [r for r in np.flatnonzero(keep & (1 << Form.ENCODED)).tolist() if inputs[r] is not None]
        if not rows:
            return []
        sizes = [len(inputs[row]) for row in rows]
        published = []
        for row, size, offset in zip(rows, sizes, self._take(Form.ENCODED, sizes, claim), strict=True):
            if offset is not None:
                self._extent(offset, size)[:] = inputs[row]
                published.append((row, int(Form.ENCODED), offset, size))
        return published

    def _reserve(
        self,
        arrays: Sequence[tuple[tuple[int, ...], str]],
        claim: Claim | None,
        taken: dict[int, tuple[int, int]],
    ) -> list[NDArray[Any] | None]:
        sizes = [extents.array_size(shape, dtype) for shape, dtype in arrays]
        out: list[NDArray[Any] | None] = []
        offsets = self._take(Form.DECODED, sizes, claim)
        for (shape, dtype), size, offset in zip(arrays, sizes, offsets, strict=True):
            if offset is None:
                out.append(None)
                continue
            array = extents.open_array(self._extent(offset, size), shape, dtype)
            taken[array.__array_interface__["data"][0]] = (offset, size)
            out.append(array)
        return out

    def _publish_decoded(self, work: Work, claim: Claim | None) -> list[tuple[int, int, int, int]]:
        published = []
        loose: list[tuple[int, list[Any], int]] = []
        for row, value in work.kept.items():
            if row in work.faults:
                continue
            place = None
            if isinstance(value, np.ndarray):
                place = work.taken.get(value.__array_interface__["data"][0])
            if place is not None:
                published.append((row, int(Form.DECODED), *place))
            else:
                pieces = extents.dump(value)
                if pieces is not None:
                    loose.append((row, pieces, sum(len(piece) for piece in pieces)))
        if loose and not work.taken:
            offsets = self._take(Form.DECODED, [size for _, _, size in loose], claim)
            for (row, pieces, size), offset in zip(loose, offsets, strict=True):
                if offset is not None:
                    extent, at = self._extent(offset, size), 0
                    for piece in pieces:
                        extent[at : at + len(piece)] = piece
                        at += len(piece)
                    published.append((row, int(Form.DECODED), offset, size))
        return published


def load_order(arena: Arena, claim: Claim) -> Order:
    """The order that a claim stands for. Its place is checked against the arena before it is read."""
    if claim.start < 0 or claim.length < 0 or claim.start + claim.length > claim.area[1]:
        raise ValueError(f"order {claim.order} lies outside of its area")
    buffer = memoryview(arena.map(*claim.area))
    return decode_order(buffer[claim.start : claim.start + claim.length])
