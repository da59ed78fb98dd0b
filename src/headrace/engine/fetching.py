"""The fetching stage of row orders: the input of every row, from the cache or from the source.

Reads storage and the cache; what the cache admits of the bytes that were read is published on the way.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cache import extents
from headrace.coordinate.messages import Order
from headrace.coordinate.row_work import RUN, RowWork
from headrace.core.forms import Form
from headrace.engine.board import Claim
from headrace.engine.bodies import Layouts
from headrace.engine.disk_stage import DiskStage
from headrace.engine.gate import Gate
from headrace.engine.held import HeldSamples
from headrace.engine.mask_files import MaskFiles
from headrace.engine.publishing import Published, Publisher
from headrace.engine.reader import Reader
from headrace.engine.store import Store
from headrace.planning import Spent
from headrace.planning.window import SharedTime
from headrace.recipes.image.left import Held, is_plain
from headrace.recipes.program import Fault, Work
from headrace.sources.source import Source, pooled_of

_DECODED = 1 << Form.DECODED
# Plain numbers: numpy takes long over enumerations.
_IS_ENCODED, _IS_DECODED, _IS_AUGMENTED = (int(form) for form in (Form.ENCODED, Form.DECODED, Form.AUGMENTED))


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
    to_disk: dict[int, bytes] = field(default_factory=dict)
    """Rows whose decoded form goes to the disk tier, and the samples' names there."""
    begun: float = 0.0
    """When it was claimed."""
    took: float = 0.0
    """Seconds from its claim to its last byte; ``spent.fetch`` is its part of them where others were fetched, too."""


class FetchStage:
    """Fetches the rows of orders."""

    def __init__(
        self,
        source: Source,
        store: Store,
        layouts: Layouts,
        *,
        collates: bool,
        masks: MaskFiles | None = None,
        gate: Gate | None = None,
        disk: DiskStage | None = None,
        held: HeldSamples | None = None,
    ) -> None:
        """``collates``: samples are collated, and do not become rows. ``masks``: reads the files that targets name,
        where they do. ``gate``: told what is being read, in a worker. ``disk``: the tier below the cache, if there is
        one. ``held``: samples that need not be fetched, as a device holds them."""
        self._held = held
        self._reader = Reader(source, gate)
        self._pooled = pooled_of(source)
        self._masks, self._disk = masks, disk
        self._time, self._timing = SharedTime(), threading.Lock()
        self._store = store
        self._publisher = Publisher(store)
        self._layouts = layouts
        self._collates = collates

    def prepared(self, rows: int, seconds: float) -> None:
        """Take note of how long preparing takes: reading need not be faster."""
        self._reader.prepared(rows, seconds)
        if self._masks is not None:
            self._masks.reader.prepared(rows, seconds)

    @property
    def patience(self) -> float:
        """Seconds for which storage is asked again."""
        return self._reader.patience

    def fetch(self, order: Order, claim: Claim | None) -> Fetched:
        """Get the input of every row: from the cache, or from the source. Several threads may, each for an order.

        What is only to be cached is not waited for where storage does not give it just now.
        """
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        with self._timing:
            part = self._time.begin(begun)
        try:
            fetched = self._fetch(order, claim)
        finally:
            ended = time.perf_counter()
            with self._timing:
                fetch = self._time.end(part, ended)
        fetched.took, fetched.spent.fetch = ended - begun, fetch
        fetched.spent.fetch_cpu = time.thread_time() - begun_cpu
        return fetched

    def _fetch(self, order: Order, claim: Claim | None) -> Fetched:
        indices = order.index_array()
        count = len(indices)
        todo = RowWork(order, makes_rows=self._makes_rows(order))
        forms, keep, ways = todo.forms, todo.keep, todo.ways
        inputs: list[Any] = [None] * count
        held = np.empty(0, np.intp)
        if self._held is not None and not order.fill:
            sides = self._held.sides(indices)
            held = todo.are_held(sides[:, 0] > 0)
            for row, (height, width) in zip(held.tolist(), sides[held].tolist(), strict=True):
                inputs[row] = Held(height, width)
        faults: dict[int, Fault] = {}
        cached = todo.cached()
        if len(cached):
            self._from_cache(order, cached.tolist(), todo, inputs)
        lacking = missing = todo.missing()
        spent, names = Spent(), {}
        to_disk: dict[int, bytes] = {}
        disk = self._disk if self._disk is not None and len(missing) and self._disk.in_use else None
        if disk is not None:
            names = dict(zip(missing.tolist(), disk.names(indices[missing]), strict=True))
            missing = self._from_disk(disk, order, names, todo, inputs, spent)
            if disk.has_room and not order.fill and not (keep & _DECODED).any():
                to_disk = {
                    row: name
                    for row, name in names.items()
                    if forms[row] != _IS_DECODED and disk.is_decoded(name)
                }
        if len(missing):
            blobs, each = self._reader.read(indices[missing], patient=not order.fill)
            spent.reading = each * len(missing)
            if self._pooled is not None:
                spent.pooled, spent.pooled_bytes, spent.pooled_kept = self._pooled()
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
            reserve=(
                (lambda arrays: [None] * len(arrays))
                if to_disk
                else (lambda arrays: self._publisher.reserve(order, arrays, taken))
            ),
            faults=faults,
            words=np.frombuffer(order.words, np.int64) if order.words else None,
            leave=todo.left(0 if to_disk else order.leave, holds=order.holds),
        )
        taken: dict[int, tuple[int, int]] = {}
        work.taken = taken
        work.keep[list(to_disk)] = True
        work.keep[held] = False
        if order.holds and work.leave is not None:
            room = order.slot_bytes // max(order.rows, 1)
            for row in np.flatnonzero(work.leave & work.keep).tolist():
                work.keep[row] = len(inputs[row]) > room or not is_plain(inputs[row])
        if self._masks is not None:
            work.beside, seconds = self._masks.read(
                indices, np.flatnonzero(ways == RUN).tolist(), patient=not order.fill
            )
            spent.reading += seconds
        fresh = [
            row
            for row in todo.encoded(lacking).tolist()
            if inputs[row] is not None and forms[row] == _IS_ENCODED
        ]
        published = self._publisher.encoded(order, fresh, inputs)
        if disk is not None and len(missing):
            # (what goes there decoded does so once it is)
            rows = [row for row in missing.tolist() if row not in to_disk]
            self._to_disk(disk, rows, names, inputs, published)
        augmented = todo.augmented().tolist()
        return Fetched(order, claim, work, ways, augmented, published, spent, to_disk)

    def _makes_rows(self, order: Order) -> bool:
        """Whether samples of an order stand in rows: they are not collated, and it is known how rows lie."""
        known = order.layout or self._layouts.known if order.fill else order.slot_bytes
        return not self._collates and bool(known)

    def _from_disk(
        self,
        disk: DiskStage,
        order: Order,
        names: dict[int, bytes],
        todo: RowWork,
        inputs: list[Any],
        spent: Spent,
    ) -> NDArray[np.intp]:
        """Take from the disk tier what it has; returns the rows that it has not."""
        begun = time.perf_counter()
        rows = list(names)
        # (what is only to be cached is decoded as it was planned)
        found = disk.find(list(names.values()), decoded=not order.fill)
        decoded = {
            name: one[1]
            for name, one in zip(names.values(), found, strict=True)
            if one is not None and one[0] == Form.DECODED
        }
        values = disk.open_decoded(decoded) if decoded else {}
        for row, one in zip(rows, found, strict=True):
            if one is None:
                continue
            form, content = one
            if form == Form.DECODED and names[row] not in values:
                continue
            inputs[row] = values[names[row]] if form == Form.DECODED else content
            todo.forms[row] = int(form)
            spent.from_disk += 1
            spent.disk_bytes += len(content)
        spent.disk = time.perf_counter() - begun
        return np.array([row for row in rows if inputs[row] is None], np.intp)

    def _to_disk(
        self,
        disk: DiskStage,
        rows: list[int],
        names: dict[int, bytes],
        inputs: list[Any],
        published: Published,
    ) -> None:
        """Give the disk tier what storage gave."""
        cached = {row for row, *_ in published}
        given = [row for row in rows if inputs[row] is not None]
        disk.keep_encoded(
            [names[row] for row in given],
            [inputs[row] for row in given],
            [row in cached for row in given],
        )

    def _from_cache(self, order: Order, rows: list[int], todo: RowWork, inputs: list[Any]) -> None:
        """Open the extents of rows. One that cannot be read is none: its row is fetched from the source."""
        offsets = np.frombuffer(order.offsets, np.int64).tolist()
        lengths = np.frombuffer(order.lengths, np.int64).tolist()
        kinds = todo.forms.tolist()
        body = self._layouts.find(order.layout)[1].nbytes if _IS_AUGMENTED in kinds else 0
        for row in rows:
            kind, nbytes = kinds[row], lengths[row]
            try:
                extent = self._store.extent(order, offsets[row], nbytes)
                if kind == _IS_AUGMENTED and nbytes != body:
                    raise ValueError(f"an augmented sample of {nbytes} bytes, where rows have {body}")
                inputs[row] = extents.load(extent) if kind == _IS_DECODED else extent
            except ValueError:
                todo.unreadable(row)
