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
from headrace.recipes.fields import FieldsDecoder
from headrace.recipes.image.annotations import Track
from headrace.recipes.image.left import LeftRow
from headrace.recipes.image.resample import Resample
from headrace.recipes.image.rows import from_storage
from headrace.recipes.op import Columns
from headrace.recipes.placing import as_arrays, field_of, write_leaf
from headrace.recipes.program import Work
from headrace.recipes.row_groups import RowGroup, RowValues
from headrace.recipes.targets import FollowingTargets, Targets
from headrace.recipes.values import Unpackable, pack, unpack

_ENCODED, _DECODED = np.uint8(Form.ENCODED), np.uint8(Form.DECODED)


class RecipeProgram:
    """See ``compile_recipe``.

    ``lead`` makes the decoded form, ``trunk`` what all views have in common, and each of ``outlets`` a view.
    ``forked``: samples are lists of views; else there is one outlet. ``rows_are_decoded``: that form is the row.
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
        rows_are_decoded: bool,
        caches: bool,
        raw: bool,
    ) -> None:
        self._decoder, self._lead, self._trunk, self._targets = decoder, lead, trunk, targets
        self._outlets, self._columns = outlets, columns
        self._forked, self._rows_are_decoded, self._caches, self._raw = forked, rows_are_decoded, caches, raw
        self._states = [chain.state for chain in outlets]
        self._writes = lead.writes if rows_are_decoded else all(chain.writes for chain in outlets)
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
        called = isinstance(self._decoder, CallDecoder | FieldsDecoder) or self._targets.user_code
        return called or any(chain.user_code for chain in (self._lead, self._trunk, *self._outlets))

    @property
    def left_rows(self) -> LeftRow | None:
        """What rows that are left to a device are to become; None: none can be."""
        alone = not (self._forked or self._rows_are_decoded or self._lead.stages or self._trunk.stages)
        stages = self._outlets[0].stages
        if (
            not alone
            or len(stages) != 1
            or isinstance(self._targets, FollowingTargets)
            or self._layout is None
        ):
            return None
        (stage,), size = stages, self._states[0].size
        if not isinstance(stage, Resample) or not stage.leaves or size.channels != 3 or not self._writes:
            return None
        field = self._layout.fields[0]
        if not field.channels_last:
            return None
        return LeftRow(stage.spec(field.shape[0], field.shape[1], size.channels), not stage.may_pad)

    def run(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Prepare every row of ``work`` into ``out``."""
        group = self._group(work)
        into = out[: len(self._outlets)] if self._writes else None
        views = self._prepare(group, into)
        begin = time.perf_counter()
        # (rows whose finished form was cached are values, although there is memory to write to)
        stands = into is not None and all(v.block is memory for v, memory in zip(views, into, strict=True))
        first, last = len(views) if stands else 0, len(out)
        columns = [] if stands else [view.values for view in views]
        if self._targets:
            if self._targets.field is not None:
                self._targets.write(group, out[-1])
                last -= 1
            else:
                columns.append(self._targets.take(group))
        if columns:
            self._place(group, columns, out[first:last])
        _count(work, Form.AUGMENTED, time.perf_counter() - begin)

    def label(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Write only the targets of the rows: ``out`` has one array per target field."""
        if not self._targets:
            return
        begin = time.perf_counter()
        group = RowGroup(work, self._columns)
        if self._targets.field is not None:
            self._targets.write(group, out[0])
        else:
            self._place(group, [self._targets.take(group)], out)
        _count(work, Form.AUGMENTED, time.perf_counter() - begin)

    def decode(self, work: Work) -> None:
        """Bring rows to their decoded form, which the cache would keep, and no further."""
        if not self._caches:
            return
        group = RowGroup(work, self._columns)
        begin = time.perf_counter()
        rows = [row for row in np.flatnonzero(work.forms == _ENCODED).tolist() if not group.failed(row)]
        if rows:
            self._decode(group.part(rows), [work.inputs[row] for row in rows], None)
        _count(work, Form.DECODED, time.perf_counter() - begin)

    def samples(self, work: Work) -> list[Any]:
        """Prepare every row as a sample of its own."""
        group = self._group(work)
        views = [view.values for view in self._prepare(group, None)]
        if self._layout is None:
            self._learn(group, views)
        shown = [self._shown(group, *view) for view in zip(views, self._states, strict=True)]
        values = [list(row) for row in zip(*shown, strict=True)] if self._forked else shown[0]
        if self._targets:
            values = [*zip(values, self._targets.take(group), strict=True)]
        return [None if group.failed(row) else value for row, value in enumerate(values)]

    def _group(self, work: Work) -> RowGroup:
        """An order whose rows are prepared, with a note of how, where targets follow that."""
        return RowGroup(
            work, self._columns, track=Track() if isinstance(self._targets, FollowingTargets) else None
        )

    def _shown(self, group: RowGroup, values: list[Any], state: State) -> list[Any]:
        """Values of one view as user code, or whoever looks at samples, gets them."""
        out = list(values)
        for row, value in enumerate(values):
            if group.failed(row):
                continue
            if state.kind != "any":
                value = value if value.flags.writeable else value.copy()  # a read-only one is the cache's
                out[row] = state.presented(from_storage(value, state.finish.dtype))
            elif not self._raw:
                out[row] = as_arrays(value)
        return out

    def _prepare(self, group: RowGroup, into: list[NDArray[Any]] | None) -> list[RowValues]:
        """The finished value of every row, view by view, in ``into`` where that is given."""
        work, rows = group.work, group.size
        for row, value in enumerate(work.inputs):
            if value is None:
                group.fault(row, "there is no input for it")
        encoded = np.flatnonzero(work.forms == _ENCODED).tolist()
        decoded = np.flatnonzero(work.forms == _DECODED).tolist()
        if work.faults:
            encoded = [row for row in encoded if row not in work.faults]
            decoded = [row for row in decoded if row not in work.faults]
        if decoded and not self._caches:
            raise ValueError("the program was compiled with caches_decoded=False, and got decoded inputs")
        begin = time.perf_counter()
        held = RowValues([None] * rows)
        if encoded:
            part = group if len(encoded) == rows else group.part(encoded)
            decoded_into = into[0] if into is not None and self._rows_are_decoded and part is group else None
            fresh = self._decode(part, [work.inputs[row] for row in encoded], decoded_into)
            held = fresh if part is group else _scattered(fresh, encoded, rows)
        _count(work, Form.DECODED, time.perf_counter() - begin)
        begin = time.perf_counter()
        if decoded:
            values, free = held.values, self._lead.state.kind == "any"
            for row in decoded:
                values[row] = unpack(work.inputs[row]) if free else work.inputs[row]
            held.block = None
        views = (
            [held] if self._rows_are_decoded else self._fork(self._trunk.run(held, group, None), group, into)
        )
        both, fused = time.perf_counter() - begin, sum(group.decoding)
        _count(work, Form.DECODED, fused)
        _count(work, Form.AUGMENTED, max(both - fused, 0.0))
        return views

    def _fork(self, held: RowValues, group: RowGroup, into: list[NDArray[Any]] | None) -> list[RowValues]:
        """Every view of what they have in common. All but the last get a copy of it, where they may write to it."""
        views = []
        for at, chain in enumerate(self._outlets):
            last = at == len(self._outlets) - 1
            own = held if last else held.copy(deep=not chain.reads_only)
            views.append(chain.run(own, group, None if into is None else into[at]))
        return views

    def _decode(self, group: RowGroup, blobs: list[Any], into: NDArray[Any] | None) -> RowValues:
        """Decode, and take through the leading deterministic steps; keep what the cache would admit."""
        keep: list[int] = []
        if self._caches and group.work.keep.any():
            keep = [at for at in range(group.size) if group.work.keep[group.row(at)]]
        if not isinstance(self._decoder, NoDecoder):
            group.work.decoded += group.size
        held = self._decoder.run(group, blobs, keep if self._direct else ())
        held = self._lead.run(held, group, into)
        group.decoding.clear()  # all of this is decoding
        self._keep(group, [at for at in keep if group.row(at) not in group.work.kept], held)
        return held

    def _keep(self, group: RowGroup, rows: list[int], held: RowValues) -> None:
        """Hand copies of decoded values to the cache: in reserved memory where they are single arrays."""
        kept, live = group.work.kept, [row for row in rows if not group.failed(row)]
        arrays = {row: held.values[row] for row in live if isinstance(held.values[row], np.ndarray)}
        arrays = {row: array for row, array in arrays.items() if array.dtype.kind in "biufc"}
        room = group.work.reserve([(a.shape, str(a.dtype)) for a in arrays.values()]) if arrays else ()
        for (row, array), place in zip(arrays.items(), room, strict=True):
            if place is None:
                kept[group.row(row)] = array.copy()
            else:
                np.copyto(place, array)
                kept[group.row(row)] = place
        for row in live:
            if row not in arrays:
                try:
                    kept[group.row(row)] = pack(held.values[row])
                except Unpackable:  # such values are prepared anew each time
                    continue

    def _place(self, group: RowGroup, columns: list[list[Any]], out: list[NDArray[Any]]) -> None:
        """Write values into rows, leaf by leaf; what does not fit is a fault. ``columns``: the parts of a sample."""
        for row in range(group.size):
            if group.failed(row):
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
                group.fault(row, error)

    def _learn(self, group: RowGroup, views: list[list[Any]]) -> None:
        """Take the first good sample for what all others should be."""
        row = next((row for row in range(group.size) if not group.failed(row)), None)
        if row is None or self._targets.ragged:
            return
        target = self._targets.take(group.part([row]))[0] if self._targets else None
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


def _scattered(part: RowValues, rows: list[int], size: int) -> RowValues:
    """A batch of ``size`` rows of which ``rows`` are those of ``part``."""
    out = RowValues([None] * size)
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
