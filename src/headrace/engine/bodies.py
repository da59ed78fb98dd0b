"""How an augmented sample lies in its extent: the row's bytes, field by field, without the target's."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import native
from headrace.core.layout import RowLayout, aligned
from headrace.recipes.program import body_fields

Blocks = list[tuple[int, int, NDArray[np.uint8]]]
"""Of each field of some rows: where it starts in an extent, its bytes, and a byte matrix of the rows."""


@dataclass(frozen=True)
class Body:
    """The part of a row that jobs share. Targets are no part of it: every job has its own.

    Raw bytes without a header: who shares an augmented form knows its layout.
    """

    fields: int
    """How many leading fields of the layout belong to it."""
    starts: tuple[int, ...]
    """Where each field's bytes start in the extent: on cache-line boundaries."""
    sizes: tuple[int, ...]
    nbytes: int
    """Bytes of the extent."""

    @classmethod
    def of(cls, layout: RowLayout, *, targets: bool) -> Body:
        """The body of rows of a layout. ``targets``: samples have targets, which are the layout's last fields."""
        fields = body_fields(layout, targets=targets)
        sizes = tuple(field.nbytes for field in layout.fields[:fields])
        starts, at = [], 0
        for size in sizes:
            starts.append(at)
            at += aligned(size)
        return cls(fields, tuple(starts), sizes, starts[-1] + sizes[-1] if sizes else 0)

    def blocks(self, out: Sequence[NDArray[Any]]) -> Blocks:
        """The bytes of rows, for ``load`` and ``dump``: start, size and a byte matrix of each field."""
        return [
            (start, size, memory.reshape(len(memory), -1).view(np.uint8))
            for start, size, memory in zip(self.starts, self.sizes, out, strict=False)
            if size
        ]


class Layouts:
    """How rows lie, as orders say it (own workers only), or as it was known from the start."""

    def __init__(self, layout: RowLayout | None, *, targets: bool) -> None:
        """``layout``: that of orders that say nothing. ``targets``: samples have targets."""
        self._targets = targets
        self._found: dict[bytes, tuple[RowLayout, Body]] = {}
        self.known = layout is not None
        """Whether orders need not say it."""
        if layout is not None:
            self._found[b""] = layout, Body.of(layout, targets=targets)

    def find(self, encoded: bytes) -> tuple[RowLayout, Body]:
        """The layout that an order carries, and the body of its rows."""
        found = self._found.get(encoded)
        if found is None:
            layout: RowLayout = pickle.loads(encoded)
            found = self._found[encoded] = layout, Body.of(layout, targets=self._targets)
        return found


def load(extents: list[memoryview], blocks: Blocks, rows: list[int]) -> None:
    """Copy bodies from their extents into rows."""
    for start, size, memory in blocks:
        if native.calls is not None:
            native.calls.load_rows(memory, rows, extents, start)
            continue
        for row, extent in zip(rows, extents, strict=True):
            memory[row] = np.frombuffer(extent, np.uint8, size, start)


def dump(extents: list[memoryview], blocks: Blocks, rows: list[int]) -> None:
    """Copy the bodies of rows into their extents."""
    for start, size, memory in blocks:
        if native.calls is not None:
            native.calls.dump_rows(memory, rows, extents, start)
            continue
        for row, extent in zip(rows, extents, strict=True):
            np.frombuffer(extent, np.uint8, size, start)[:] = memory[row]
