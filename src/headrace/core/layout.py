"""How a batch lies in memory: one block per field, one row per sample, declared before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headrace.core.tree import LEAF, Spec

ALIGN = 64
"""Blocks start on cache-line boundaries."""

BFLOAT16 = "bfloat16"
"""numpy has no bfloat16; such fields travel as uint16 and are viewed as bfloat16 by the loader."""


def aligned(size: int, to: int = ALIGN) -> int:
    """``size`` rounded up to a multiple of ``to``."""
    return -(-size // to) * to


@dataclass(frozen=True)
class Field:
    """One array of a sample: its shape without the batch dimension, and its dtype's name.

    ``channels_last``: the row lies in memory as height, width, channels but is presented as channels,
    height, width, which is torch's channels_last memory format.
    """

    shape: tuple[int, ...]
    dtype: str
    channels_last: bool = False

    @cached_property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype in which the field lies in memory."""
        return np.dtype("uint16" if self.dtype == BFLOAT16 else self.dtype)

    @cached_property
    def width(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.storage_dtype.itemsize


@dataclass(frozen=True)
class RowLayout:
    """The fields of one sample and how they nest."""

    fields: tuple[Field, ...]
    tree: Spec = LEAF

    def describe(self) -> list[list[Any]]:
        """The fields as plain data."""
        return [[list(one.shape), one.dtype, one.channels_last] for one in self.fields]

    def offsets(self, rows: int) -> tuple[int, ...]:
        """Where each field's block starts in a slot for ``rows`` rows."""
        starts, at = [], 0
        for field in self.fields:
            starts.append(at)
            at += aligned(field.nbytes * rows)
        return tuple(starts)

    def nbytes(self, rows: int) -> int:
        """Bytes of a slot for ``rows`` rows."""
        return sum(aligned(field.nbytes * rows) for field in self.fields)

    def views(self, buffer: Any, rows: int, start: int = 0, stop: int | None = None) -> list[Any]:
        """Numpy views of rows ``start`` to ``stop`` of each field, in a buffer for ``rows`` rows."""
        stop = rows if stop is None else stop
        out = []
        for field, offset in zip(self.fields, self.offsets(rows), strict=True):
            count = (stop - start) * field.width
            view = np.frombuffer(buffer, field.storage_dtype, count, offset + start * field.nbytes)
            out.append(view.reshape(stop - start, *field.shape))
        return out
