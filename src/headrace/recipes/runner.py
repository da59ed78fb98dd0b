"""A compiled recipe at work on the rows of an order."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.forms import Form
from headrace.core.layout import Field, RowLayout
from headrace.core.tree import LEAF, Spec, flatten
from headrace.recipes.chain import Chain, State
from headrace.recipes.decoders import CallDecoder, Decoder, NoDecoder
from headrace.recipes.image.annotations import Track
from headrace.recipes.image.rows import from_storage
from headrace.recipes.op import Columns
from headrace.recipes.order import Batch, Order
from headrace.recipes.placing import as_arrays, field_of, write_leaf
from headrace.recipes.program import Work
from headrace.recipes.targets import FollowingTargets, Targets
from headrace.recipes.values import Unpackable, pack, unpack

_ENCODED, _DECODED = np.uint8(Form.ENCODED), np.uint8(Form.DECODED)


class RecipeProgram:
    """See ``compile_recipe``.

    ``lead`` makes the decoded form, ``trunk`` what all views have in common, and each of ``outlets`` a view.
    ``forked``: samples are lists of views; else there is one outlet. ``whole``: the decoded form is the finished row.
    ``raw``: samples go to a collate, as user code made them.
    """

    def __init__(
        self,
        decoder: Decoder,
        lead: Chain,
        trunk: Chain,
        outlets: list[Chain],
        targets: Targets,
        columns: Columns,
        *,
        forked: bool,
        whole: bool,
        caches: bool,
        raw: bool,
    ) -> None:
        self._decoder, self._lead, self._trunk, self._targets = decoder, lead, trunk, targets
        self._outlets, self._columns = outlets, columns
        self._forked, self._whole, self._caches, self._raw = forked, whole, caches, raw
        self._states = [chain.state for chain in outlets]
        self._writes = lead.writes if whole else all(chain.writes for chain in outlets)
        after = [trunk] if trunk.stages else outlets
        # Straight into the cache's memory only where nothing that follows may write there.
        self._direct = not lead.stages and all(chain.reads_only for chain in after)
        self._layout = self._laid_out([([state.field], LEAF) for state in self._states], None)

    @property
    def layout(self) -> RowLayout | None:
        """The rows that ``run`` writes: declared, or learned from the first of ``samples``."""
        return self._layout

    @property
    def runs_user_code(self) -> bool:
        """Whether Python code of the user's runs, which holds the GIL and draws from global generators."""
        called = isinstance(self._decoder, CallDecoder) or self._targets.user_code
        return called or any(chain.user_code for chain in (self._lead, self._trunk, *self._outlets))

    def run(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Prepare every row of ``work`` into ``out``."""
        order = self._order(work)
        into = out[: len(self._outlets)] if self._writes else None
        views = self._prepare(order, into)
        begin = time.perf_counter()
        # (rows whose finished form was cached are values, although there is memory to write to)
        stands = into is not None and all(v.block is memory for v, memory in zip(views, into, strict=True))
        first, last = len(views) if stands else 0, len(out)
        columns = [] if stands else [view.values for view in views]
        if self._targets:
            if self._targets.field is not None:
                self._targets.write(order, out[-1])
                last -= 1
            else:
                columns.append(self._targets.take(order))
        if columns:
            self._place(order, columns, out[first:last])
        _count(work, Form.AUGMENTED, time.perf_counter() - begin)

    def label(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Write only the targets of the rows: ``out`` has one array per target field."""
        if not self._targets:
            return
        begin = time.perf_counter()
        order = Order(work, self._columns)
        if self._targets.field is not None:
            self._targets.write(order, out[0])
        else:
            self._place(order, [self._targets.take(order)], out)
        _count(work, Form.AUGMENTED, time.perf_counter() - begin)

    def decode(self, work: Work) -> None:
        """Bring rows to their decoded form, which the cache would keep, and no further."""
        if not self._caches:
            return
        order = Order(work, self._columns)
        begin = time.perf_counter()
        rows = [row for row in np.flatnonzero(work.forms == _ENCODED).tolist() if not order.failed(row)]
        if rows:
            self._decode(order.part(rows), [work.inputs[row] for row in rows], None)
        _count(work, Form.DECODED, time.perf_counter() - begin)

    def samples(self, work: Work) -> list[Any]:
        """Prepare every row as a sample of its own."""
        order = self._order(work)
        views = [view.values for view in self._prepare(order, None)]
        if self._layout is None:
            self._learn(order, views)
        shown = [self._shown(order, *view) for view in zip(views, self._states, strict=True)]
        values = [list(row) for row in zip(*shown, strict=True)] if self._forked else shown[0]
        if self._targets:
            values = [*zip(values, self._targets.take(order), strict=True)]
        return [None if order.failed(row) else value for row, value in enumerate(values)]

    def _order(self, work: Work) -> Order:
        """An order whose rows are prepared, with a note of how, where targets follow that."""
        return Order(
            work, self._columns, track=Track() if isinstance(self._targets, FollowingTargets) else None
        )

    def _shown(self, order: Order, values: list[Any], state: State) -> list[Any]:
        """Values of one view as user code, or whoever looks at samples, gets them."""
        out = list(values)
        for row, value in enumerate(values):
            if order.failed(row):
                continue
            if state.kind != "any":
                value = value if value.flags.writeable else value.copy()  # a read-only one is the cache's
                out[row] = state.presented(from_storage(value, state.finish.dtype))
            elif not self._raw:
                out[row] = as_arrays(value)
        return out

    def _prepare(self, order: Order, into: list[NDArray[Any]] | None) -> list[Batch]:
        """The finished value of every row, view by view, in ``into`` where that is given."""
        work, rows = order.work, order.size
        for row, value in enumerate(work.inputs):
            if value is None:
                order.fault(row, "there is no input for it")
        encoded = np.flatnonzero(work.forms == _ENCODED).tolist()
        decoded = np.flatnonzero(work.forms == _DECODED).tolist()
        if work.faults:
            encoded = [row for row in encoded if row not in work.faults]
            decoded = [row for row in decoded if row not in work.faults]
        if decoded and not self._caches:
            raise ValueError("the program was compiled with caches_decoded=False, and got decoded inputs")
        begin = time.perf_counter()
        batch = Batch([None] * rows)
        if encoded:
            part = order if len(encoded) == rows else order.part(encoded)
            whole_into = into[0] if into is not None and self._whole and part is order else None
            fresh = self._decode(part, [work.inputs[row] for row in encoded], whole_into)
            batch = fresh if part is order else _scattered(fresh, encoded, rows)
        _count(work, Form.DECODED, time.perf_counter() - begin)
        begin = time.perf_counter()
        if decoded:
            values, free = batch.values, self._lead.state.kind == "any"
            for row in decoded:
                values[row] = unpack(work.inputs[row]) if free else work.inputs[row]
            batch.block = None
        views = [batch] if self._whole else self._fork(self._trunk.run(batch, order, None), order, into)
        both, fused = time.perf_counter() - begin, sum(order.decoding)
        _count(work, Form.DECODED, fused)
        _count(work, Form.AUGMENTED, max(both - fused, 0.0))
        return views

    def _fork(self, batch: Batch, order: Order, into: list[NDArray[Any]] | None) -> list[Batch]:
        """Every view of what they have in common. All but the last get a copy of it, where they may write to it."""
        views = []
        for at, chain in enumerate(self._outlets):
            last = at == len(self._outlets) - 1
            own = batch if last else batch.copy(deep=not chain.reads_only)
            views.append(chain.run(own, order, None if into is None else into[at]))
        return views

    def _decode(self, order: Order, blobs: list[Any], into: NDArray[Any] | None) -> Batch:
        """Decode, and take through the leading deterministic steps; keep what the cache would admit."""
        keep: list[int] = []
        if self._caches and order.work.keep.any():
            keep = [at for at in range(order.size) if order.work.keep[order.row(at)]]
        if not isinstance(self._decoder, NoDecoder):
            order.work.decoded += order.size
        batch = self._decoder.run(order, blobs, keep if self._direct else ())
        batch = self._lead.run(batch, order, into)
        order.decoding.clear()  # all of this is decoding
        self._keep(order, [at for at in keep if order.row(at) not in order.work.kept], batch)
        return batch

    def _keep(self, order: Order, rows: list[int], batch: Batch) -> None:
        """Hand copies of decoded values to the cache: in reserved memory where they are single arrays."""
        kept, live = order.work.kept, [row for row in rows if not order.failed(row)]
        arrays = {row: batch.values[row] for row in live if isinstance(batch.values[row], np.ndarray)}
        arrays = {row: array for row, array in arrays.items() if array.dtype.kind in "biufc"}
        room = order.work.reserve([(a.shape, str(a.dtype)) for a in arrays.values()]) if arrays else ()
        for (row, array), place in zip(arrays.items(), room, strict=True):
            if place is None:
                kept[order.row(row)] = array.copy()
            else:
                np.copyto(place, array)
                kept[order.row(row)] = place
        for row in live:
            if row not in arrays:
                try:
                    kept[order.row(row)] = pack(batch.values[row])
                except Unpackable:  # such values are prepared anew each time
                    continue

    def _place(self, order: Order, columns: list[list[Any]], out: list[NDArray[Any]]) -> None:
        """Write values into rows, leaf by leaf; what does not fit is a fault. ``columns``: the parts of a sample."""
        for row in range(order.size):
            if order.failed(row):
                continue
            leaves = [leaf for values in columns for leaf in flatten(values[row])[0]]
            try:
                if len(leaves) != len(out):
                    raise ValueError(
                        f"it has {len(leaves)} parts and the rows of the batch have {len(out)}; give every sample "
                        "the same parts, or pass collate="
                    )
                for leaf, memory in zip(leaves, out, strict=True):
                    write_leaf(leaf, memory, row)
            except Exception as error:
                order.fault(row, error)

    def _learn(self, order: Order, views: list[list[Any]]) -> None:
        """Take the first good sample for what all others should be."""
        row = next((row for row in range(order.size) if not order.failed(row)), None)
        if row is None or self._targets.ragged:
            return
        target = self._targets.take(order.part([row]))[0] if self._targets else None
        parts: list[tuple[list[Field | None], Spec]] = []
        for values, state in zip(views, self._states, strict=True):
            if state.kind != "any":
                parts.append(([state.field_of(state.finish.size(values[row].shape))], LEAF))
            else:
                leaves, spec = flatten(values[row])
                parts.append(([field_of(leaf) for leaf in leaves], spec))
        self._layout = self._laid_out(parts, target)

    def _laid_out(self, parts: list[tuple[list[Field | None], Spec]], target: Any) -> RowLayout | None:
        """The layout of samples of such views; None where something in them is no array."""
        fields = [field for part, _ in parts for field in part]
        spec = Spec("list", (), tuple(inner for _, inner in parts)) if self._forked else parts[0][1]
        if self._targets:
            known = self._targets.field
            leaves, inner = ([None], LEAF) if known is not None or target is None else flatten(target)
            fields += (
                [known] if known is not None else [None if target is None else field_of(x) for x in leaves]
            )
            spec = Spec("tuple", (), (spec, inner))
        found = [field for field in fields if field is not None]
        return RowLayout(tuple(found), spec) if found and len(found) == len(fields) else None


def _scattered(part: Batch, rows: list[int], size: int) -> Batch:
    """A batch of ``size`` rows of which ``rows`` are those of ``part``."""
    out = Batch([None] * size)
    for row, value in zip(rows, part.values, strict=True):
        out.values[row] = value
    if part.jpeg is not None and part.infos is not None:
        out.jpeg = np.zeros(size, np.bool_)
        out.jpeg[rows] = part.jpeg
        out.infos = np.zeros((size, part.infos.shape[1]), np.int32)
        out.infos[rows] = part.infos
    return out


def _count(work: Work, form: Form, seconds: float) -> None:
    work.seconds[form] = work.seconds.get(form, 0.0) + seconds
