"""Samples of several fields, each with a decode step of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.core import tar
from headrace.core.errors import OptionError
from headrace.recipes.calls import Call, as_op
from headrace.recipes.chain import Builder, Chain, State
from headrace.recipes.decoders import CallDecoder, Decoder, ImageDecoder
from headrace.recipes.image.geometry import Geometry
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.op import Columns, Op
from headrace.recipes.row_groups import RowGroup, RowValues

Step = Op | Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Fields(Op):
    """See ``fields``."""

    names: tuple[str, ...]
    decoders: tuple[Op, ...]
    steps: tuple[tuple[Op, ...], ...]
    """Of each field, what follows its decoder."""
    shows: ClassVar[str] = "fields"

    def plain(self) -> Any:
        """The definitions of all steps, field by field."""
        parts = zip(self.names, self.decoders, self.steps, strict=True)
        return ["Fields", [[name, one.plain(), [step.plain() for step in rest]] for name, one, rest in parts]]


def fields(
    by_name: Mapping[str, Step | Sequence[Step]] | None = None, /, **named: Step | Sequence[Step]
) -> Fields:
    """A decode step for samples of several fields (``shards(..., fields=...)``): a step for each field.

    Values are dicts of what the steps give; images are arrays with their channels first. A step is
    ``image.decode()``, alone or in a list with deterministic image steps after it, or any callable on the field's
    bytes, which is taken to be deterministic. Names that are no Python names are given in a dict:
    ``fields({"seg.png": image.decode("L")})``.

    >>> import json
    >>> import headrace as hr
    >>> step = hr.fields(jpg=[hr.image.decode(), hr.image.resize((224, 224))], json=json.loads, txt=bytes.decode)
    """
    given = {**(by_name or {}), **named}
    if not given:
        raise OptionError("fields(): name the fields, as in fields(jpg=image.decode(), json=json.loads)")
    decoders, rests = [], []
    for name, steps in given.items():
        listed = list(steps) if isinstance(steps, list | tuple) else [steps]
        where = f"fields({name}=...)"
        ops = [as_op(step, where) for step in listed]
        if not ops or not isinstance(ops[0], Decode | Call):
            raise OptionError(f"{where}: begins with image.decode() or a callable")
        for op in ops[1:]:
            if not isinstance(ops[0], Decode) or not isinstance(op, Geometry | Pixels):
                raise OptionError(
                    f"{where}: {op} cannot follow here; only image steps can, behind image.decode()"
                )
            if op.random:
                raise OptionError(
                    f"{where}: {op} is random, and what is decoded is kept; put it into augment="
                )
        decoders.append(ops[0])
        rests.append(tuple(ops[1:]))
    names = tuple(name.lower() for name in given)
    if len({*names}) < len(names):
        raise OptionError(f"fields(): two of {', '.join(given)} are one field, as capitals do not count")
    return Fields(names, tuple(decoders), tuple(rests))


class FieldsDecoder:
    """Takes samples apart, and decodes each field of all rows at once."""

    def __init__(self, step: Fields) -> None:
        self._names = step.names
        self._fields: list[tuple[str, Decoder, Chain | None, Columns]] = []
        for name, op, rest in zip(step.names, step.decoders, step.steps, strict=True):
            if isinstance(op, Decode):
                chain = Builder(State("image", op.size), decode=op, dct_scaling=False).build(
                    [*enumerate(rest)], last=False
                )
                self._fields.append((name, ImageDecoder(op, lazy=False, fresh=True), chain, Columns(rest)))
            elif isinstance(op, Call):
                self._fields.append((name, CallDecoder(op), None, Columns(())))

    def run(self, group: RowGroup, blobs: list[Any], keep: Sequence[int]) -> RowValues:
        """See ``Decoder``: a dict for each row."""
        values: list[Any] = [{} for _ in blobs]
        parts: list[dict[str, bytes]] = []
        for row, blob in enumerate(blobs):
            parts.append({})
            try:
                parts[-1] = self._apart(blob)
            except ValueError as error:
                group.fault(row, error)
        for name, decoder, chain, columns in self._fields:
            rows = [row for row in range(group.size) if not group.failed(row)]
            if not rows:
                break
            part = RowGroup(group.work, columns, [group.row(row) for row in rows])
            held = decoder.run(part, [parts[row][name] for row in rows], ())
            if chain is not None and chain.stages:
                held = chain.run(held, part, None)
            for row, value in zip(rows, held.values, strict=True):
                values[row][name] = value if chain is None or group.failed(row) else _planes(value)
        return RowValues(values)

    def _apart(self, blob: Any) -> dict[str, bytes]:
        """The fields of a sample by name."""
        data = bytes(blob)
        found: dict[str, bytes] = {}
        for member in tar.members(lambda start, length: data[start : start + length], len(data)):
            ext = (
                member.name.rpartition(b"/")[2].partition(b".")[2].decode("utf-8", "surrogateescape").lower()
            )
            found.setdefault(ext, data[member.start : member.start + member.length])
        for name in self._names:
            if name not in found:
                raise ValueError(f"it has no field {name!r}, but {', '.join(sorted(found))}")
        return found


def _planes(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image as batches have it: channels first."""
    return np.ascontiguousarray(image.transpose(2, 0, 1))
