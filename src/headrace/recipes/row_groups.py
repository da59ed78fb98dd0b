"""The rows that a stage works on, and what is known about them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.recipes.image.annotations import Track
from headrace.recipes.op import Columns, Numbers
from headrace.recipes.program import Fault, Work


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "that of a single number"


def misfit(have: Sequence[int], want: Sequence[int]) -> str:
    """Why a value of one shape cannot be a row of a batch of another."""
    return (
        f"its shape is {_shape(have)} and that of the batch's rows is {_shape(want)}; "
        "add a resize or crop that makes all samples equal, or pass collate= to put unequal ones together"
    )


class RowValues:
    """One value per row; ``jpeg`` says which of them are JPEG bytes still, and ``infos`` what these hold: as
    ``kernels.probe_many`` says it, and the scale at which they are decoded where that is given.

    ``block``: the array of which the values are the rows, if there is one.
    """

    __slots__ = ("_values", "block", "infos", "jpeg")

    def __init__(
        self,
        values: list[Any] | None,
        jpeg: NDArray[np.bool_] | None = None,
        infos: NDArray[np.int32] | None = None,
        block: NDArray[Any] | None = None,
    ) -> None:
        self._values = values
        self.jpeg = jpeg
        self.infos = infos
        self.block = block

    @property
    def values(self) -> list[Any]:
        """The values; those of a block are taken apart only when somebody asks."""
        if self._values is None:
            self._values = [] if self.block is None else list(self.block)
        return self._values

    def copy(self, *, deep: bool) -> RowValues:
        """The same, for somebody who changes what is in which row; ``deep``: or the values themselves."""
        values = copy.deepcopy(self.values) if deep else list(self.values)
        return RowValues(values, None if self.jpeg is None else self.jpeg.copy(), self.infos)

    def part(self, rows: Sequence[int]) -> RowValues:
        """The given rows alone."""
        pick = list(rows)
        return RowValues(
            [self.values[row] for row in pick],
            None if self.jpeg is None else self.jpeg[pick],
            None if self.infos is None else self.infos[pick],
        )


class RowGroup:
    """Rows of an order under work: all of them, or the part that has to go through a stage."""

    __slots__ = ("_columns", "_numbers", "_rows", "decoding", "indices", "track", "words", "work")

    def __init__(
        self,
        work: Work,
        columns: Columns,
        rows: list[int] | None = None,
        decoding: list[float] | None = None,
        track: Track | None = None,
    ) -> None:
        self.work = work
        self._columns = columns
        self._rows = rows
        self._numbers: Numbers | None = None
        self.indices = work.indices if rows is None else work.indices[rows]
        self.words = self.indices
        """What random numbers of each row go by: the sample, or another word where it comes again in an epoch."""
        if work.words is not None:
            self.words = work.words if rows is None else work.words[rows]
        self.decoding: list[float] = [] if decoding is None else decoding
        """Seconds of decoding inside stages that decode and augment in one, noted call by call."""
        self.track = track
        """How stages moved what rows show; None: nobody wants to know."""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.indices)

    def row(self, at: int) -> int:
        """The row of the whole order that is row ``at`` here."""
        return at if self._rows is None else self._rows[at]

    def part(self, rows: Iterable[int]) -> RowGroup:
        """Some of these rows."""
        return RowGroup(self.work, self._columns, [self.row(at) for at in rows], self.decoding, self.track)

    def draw(self, position: int) -> Numbers:
        """The random numbers of the step at a position of the recipe."""
        if self._numbers is None:
            self._numbers = self._columns.draw(self.work.seed, self.work.epoch, self.words)
        return self._columns.of(self._numbers, position)

    def noise(self, position: int, at: int, count: int) -> Numbers:
        """More random numbers for one row, as many as are needed."""
        key = random.key(self.work.seed, self.work.epoch, position)
        numbers: Numbers = random.uniforms(key, self.words[at : at + 1], count)[0]
        return numbers

    def fault(self, at: int, why: str | Exception) -> None:
        """Note why a row failed; the first reason stays."""
        fault = Fault(why) if isinstance(why, str) else Fault.of(why)
        self.work.faults.setdefault(self.row(at), fault)

    def failed(self, at: int) -> bool:
        """Whether a row has failed."""
        return bool(self.work.faults) and self.row(at) in self.work.faults

    @property
    def any_failed(self) -> bool:
        """Whether any row of the whole order has failed."""
        return bool(self.work.faults)

    def failed_rows(self) -> list[int]:
        """The rows here that have failed."""
        return [at for at in range(self.size) if self.failed(at)]
