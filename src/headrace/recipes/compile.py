"""A recipe turned into a program.

With ``caches_decoded``, rows go through the decoded form: decode and the leading deterministic steps are one
chain, the rest another, and a row is the same bit for bit whether its decoded form came from the cache or not.
Without it, all steps are one chain, which may read JPEG images at a lower resolution where that suffices.

Seconds: decode and the leading steps count as DECODED, the rest as AUGMENTED. A kernel call that reads JPEG
bytes and augments in one is divided: what rows of arrays took in the last such call is AUGMENTED, all else
DECODED; before there was one, rows of bytes count as DECODED in full.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.forms import Form
from headrace.core.layout import Field, RowLayout
from headrace.core.tree import LEAF, Spec, flatten
from headrace.recipes.calls import Call
from headrace.recipes.chain import Builder, Chain, State
from headrace.recipes.decoders import CallDecoder, Decoder, ImageDecoder, NoDecoder, SyntheticDecoder
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.rows import from_storage
from headrace.recipes.image.stages import Paint
from headrace.recipes.order import Batch, Order, misfit
from headrace.recipes.program import Program, Work
from headrace.recipes.recipe import Recipe
from headrace.recipes.spin import SyntheticDecode
from headrace.recipes.targets import Targets
from headrace.recipes.values import Unpackable, is_pil, is_tensor, leaf_array, pack, unpack


def compile_recipe(recipe: Recipe, *, caches_decoded: bool) -> Program:
    """The program of a recipe, for one thread. ``caches_decoded``: whether decoded forms may be cached."""
    steps = list(enumerate(recipe.steps))
    split = recipe.lead if caches_decoded else 0
    whole = caches_decoded and split == len(steps)
    decode = recipe.decoder
    state = State("any")
    limit: int | None = None
    shape: tuple[int, ...] | None = None
    if isinstance(decode, Decode):
        state, limit = State("image", decode.size), decode.max_pixels
    elif isinstance(decode, SyntheticDecode):
        shape = decode.shape if decode.shape is not None else getattr(recipe.source, "shape", None)
        state = State("any", known=None if shape is None else Field(shape, "uint8"))
    lead = Builder(state, max_pixels=limit, dct_scaling=True).build(steps[:split], last=whole)
    rest = Chain([], lead.state, None)
    if not whole:
        # The decoded form is the full image where nothing leads, and what is cut from it must be the same
        # whether it was read in full or in part.
        builder = Builder(lead.state, max_pixels=limit, dct_scaling=not caches_decoded)
        rest = builder.build(steps[split:], last=True)
    first = lead if lead.stages else rest
    decoder: Decoder
    if isinstance(decode, Decode):
        fresh = not (first.stages and (first.reads_jpeg or isinstance(first.stages[0], Paint)))
        decoder = ImageDecoder(decode, lazy=first.reads_jpeg, fresh=fresh)
    elif isinstance(decode, SyntheticDecode):
        decoder = SyntheticDecoder(decode, shape)
    elif isinstance(decode, Call):
        decoder = CallDecoder(decode)
    else:
        decoder = NoDecoder()
    targets = Targets(recipe.source.targets, recipe.target_transform)
    return RecipeProgram(
        decoder, lead, rest, targets, whole=whole, caches=caches_decoded, raw=recipe.collate is not None
    )


class RecipeProgram:
    """See ``compile_recipe``. ``whole``: the decoded form is the finished row. ``raw``: samples go to a collate."""

    def __init__(
        self,
        decoder: Decoder,
        lead: Chain,
        rest: Chain,
        targets: Targets,
        *,
        whole: bool,
        caches: bool,
        raw: bool,
    ) -> None:
        self._decoder, self._lead, self._rest, self._targets = decoder, lead, rest, targets
        self._whole, self._caches, self._raw = whole, caches, raw
        self._state = rest.state
        self._layout = self._with_target(rest.state.field, LEAF, None)

    @property
    def layout(self) -> RowLayout | None:
        """The rows that ``run`` writes: declared, or learned from the first sample that ``samples`` prepares."""
        return self._layout

    @property
    def runs_user_code(self) -> bool:
        """Whether Python code of the user's runs, which holds the GIL and draws from global generators."""
        called = isinstance(self._decoder, CallDecoder) or self._targets.user_code
        return called or self._lead.user_code or self._rest.user_code

    def run(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Prepare every row of ``work`` into ``out``."""
        order = Order(work)
        direct = out[0] if self._rest.writes or (self._whole and self._lead.writes) else None
        batch = self._prepare(order, direct)
        begin = time.perf_counter()
        fields = len(out)
        if self._targets:
            if self._targets.field is not None:
                self._targets.write(order, out[-1])
                fields -= 1
            else:
                batch = Batch([*zip(batch.values, self._targets.take(order), strict=True)], block=batch.block)
                if direct is not None:  # the image part is in its place already
                    self._place(order, [pair[1] for pair in batch.values], out[1:])
                    fields = 0
        if fields and batch.block is not out[0]:
            self._place(order, batch.values, out[:fields])
        _count(work, Form.AUGMENTED, time.perf_counter() - begin)

    def samples(self, work: Work) -> list[Any]:
        """Prepare every row as a sample of its own."""
        order = Order(work)
        batch = self._prepare(order, None)
        values: list[Any] = list(batch.values)
        image = self._state.kind != "any"
        for row, value in enumerate(values):
            if order.failed(row):
                continue
            if image:
                value = value if value.flags.writeable else value.copy()  # a read-only one is the cache's
                values[row] = self._state.presented(from_storage(value, self._state.finish.dtype))
            elif not self._raw:
                values[row] = _arrays(value)
        if self._layout is None:
            self._learn(order, batch.values)
        if self._targets:
            values = [*zip(values, self._targets.take(order), strict=True)]
        return [None if order.failed(row) else value for row, value in enumerate(values)]

    def _prepare(self, order: Order, into: NDArray[Any] | None) -> Batch:
        """The finished value of every row, in ``into`` where that is given."""
        work, rows = order.work, order.size
        missing = [row for row in range(rows) if work.inputs[row] is None and row not in work.faults]
        for row in missing:
            order.fault(row, "there is no input for it")
        encoded = [
            row for row in np.flatnonzero(work.forms == Form.ENCODED).tolist() if not order.failed(row)
        ]
        decoded = [
            row for row in np.flatnonzero(work.forms == Form.DECODED).tolist() if not order.failed(row)
        ]
        if decoded and not self._caches:
            raise ValueError("the program was compiled with caches_decoded=False, and got decoded inputs")
        begin = time.perf_counter()
        batch = Batch([None] * rows)
        if encoded:
            part = order if len(encoded) == rows else order.part(encoded)
            whole_into = into if self._whole and part is order else None
            fresh = self._decode(part, [work.inputs[row] for row in encoded], whole_into)
            batch = fresh if part is order else _scattered(fresh, encoded, rows)
        _count(work, Form.DECODED, time.perf_counter() - begin)
        begin = time.perf_counter()
        for row in decoded:
            value = work.inputs[row]
            batch.values[row] = unpack(value) if self._lead.state.kind == "any" else value
            batch.block = None
        if not self._whole:
            batch = self._rest.run(batch, order, into)
        both, fused = time.perf_counter() - begin, sum(order.decoding)
        _count(work, Form.DECODED, fused)
        _count(work, Form.AUGMENTED, max(both - fused, 0.0))
        return batch

    def _decode(self, order: Order, blobs: list[Any], into: NDArray[Any] | None) -> Batch:
        """Decode, and take through the leading deterministic steps; keep what the cache would admit."""
        keep: list[int] = []
        if self._caches and order.work.keep.any():
            keep = [at for at in range(order.size) if order.work.keep[order.row(at)]]
        # Straight into the cache's memory only where nothing that follows may write there.
        direct = not self._lead.stages and self._rest.reads_only
        batch = self._decoder.run(order, blobs, keep if direct else ())
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

    def _place(self, order: Order, values: list[Any], out: list[NDArray[Any]]) -> None:
        """Write values into rows, leaf by leaf; what does not fit is a fault."""
        image = self._state.kind != "any"
        for row, value in enumerate(values):
            if order.failed(row):
                continue
            leaves = [value] if image and isinstance(value, np.ndarray) else flatten(value)[0]
            try:
                if len(leaves) != len(out):
                    raise ValueError(f"it has {len(leaves)} parts and the rows of the batch have {len(out)}")
                for leaf, memory in zip(leaves, out, strict=True):
                    _write(leaf, memory, row)
            except Exception as error:
                order.fault(row, error)

    def _learn(self, order: Order, values: list[Any]) -> None:
        """Take the first good sample for what all others should be."""
        row = next((row for row in range(order.size) if not order.failed(row)), None)
        if row is None:
            return
        value = values[row]
        target = self._targets.take(order.part([row]))[0] if self._targets else None
        if self._state.kind != "any":
            planar = self._state.finish.planar
            height, width, channels = (*value.shape[1:], value.shape[0]) if planar else value.shape
            self._layout = self._with_target(self._state.field_of((height, width, channels)), LEAF, target)
            return
        leaves, spec = flatten(value)
        fields = [_field(leaf) for leaf in leaves]
        self._layout = self._with_target(fields, spec, target)

    def _with_target(self, fields: Any, spec: Spec, target: Any) -> RowLayout | None:
        """The layout of samples with such values; None where something in them is no array."""
        fields = list(fields) if isinstance(fields, list) else [fields]
        if self._targets:
            known = self._targets.field
            leaves, inner = ([None], LEAF) if known is not None or target is None else flatten(target)
            fields += (
                [known] if known is not None else [None if target is None else _field(x) for x in leaves]
            )
            spec = Spec("tuple", (), (spec, inner))
        if not fields or any(field is None for field in fields):
            return None
        return RowLayout(tuple(fields), spec)


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


def _field(leaf: Any) -> Field | None:
    found = leaf_array(leaf)
    return None if found is None else Field(found[0].shape, found[1])


def _write(leaf: Any, memory: NDArray[Any], row: int) -> None:
    found = leaf_array(leaf)
    if found is None:
        raise ValueError(f"a {type(leaf).__name__} cannot be a row of a batch; pass collate= to handle it")
    array = found[0]
    if array.shape != memory.shape[1:]:
        raise ValueError(misfit(array.shape, memory.shape[1:]))
    if array.dtype != memory.dtype and not np.can_cast(array.dtype, memory.dtype, "safe"):
        raise ValueError(
            f"its dtype is {array.dtype} and the rows of the batch are {memory.dtype}; "
            "make all samples of one dtype, or pass collate="
        )
    memory[row] = array


def _arrays(value: Any) -> Any:
    """The value with arrays in the place of tensors and PIL images."""
    if isinstance(value, np.ndarray):
        return value
    if is_tensor(value) or is_pil(value):
        found = leaf_array(value)
        return value if found is None else from_storage(*found)
    if isinstance(value, dict):
        return {name: _arrays(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_arrays, value))
    if type(value) in (list, tuple):
        return type(value)(map(_arrays, value))
    return value
