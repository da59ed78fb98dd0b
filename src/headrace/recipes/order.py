"""The rows that a stage works on, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.recipes.op import Draw
from headrace.recipes.program import Fault, Work


def misfit(have: Sequence[int], want: Sequence[int]) -> str:
    """Why a value of one shape cannot be a row of a batch of another."""
    return (
        f"its shape is {' x '.join(map(str, have)) or 'that of a single number'} and the rows of the batch are "
        f"{' x '.join(map(str, want)) or 'single numbers'}; add a resize or crop that makes all samples equal, "
        "or pass collate= to put unequal ones together"
    )


@dataclass
class Batch:
    """One value per row; ``jpeg`` says which of them are JPEG bytes still, and ``infos`` what these hold."""

    values: list[Any]
    jpeg: NDArray[np.bool_] | None = None
    infos: NDArray[np.int32] | None = None
    block: NDArray[Any] | None = None
    """The array of which the values are the rows, if there is one."""

    def part(self, rows: Sequence[int]) -> Batch:
        """The given rows alone."""
        pick = list(rows)
        return Batch(
            [self.values[row] for row in pick],
            None if self.jpeg is None else self.jpeg[pick],
            None if self.infos is None else self.infos[pick],
        )


@dataclass
class Placed:
    """What a stage gives back: the rows of one array, or one value per row."""

    block: NDArray[Any] | None
    rows: list[Any] | None = None

    def batch(self) -> Batch:
        """The rows as input of the next stage."""
        if self.rows is None:
            return Batch([] if self.block is None else list(self.block), block=self.block)
        return Batch(self.rows, block=self.block)


class Order:
    """Rows of an order under work: all of them, or the part that has to go through a stage."""

    __slots__ = ("_rows", "decoding", "indices", "work")

    def __init__(
        self, work: Work, rows: Sequence[int] | None = None, decoding: list[float] | None = None
    ) -> None:
        self.work = work
        self._rows = None if rows is None or len(rows) == len(work.indices) else list(rows)
        self.indices = work.indices if self._rows is None else work.indices[self._rows]
        self.decoding: list[float] = [] if decoding is None else decoding
        """Seconds of decoding inside stages that decode and augment in one, noted call by call."""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.indices)

    def row(self, at: int) -> int:
        """The row of the whole order that is row ``at`` here."""
        return at if self._rows is None else self._rows[at]

    def part(self, rows: Iterable[int]) -> Order:
        """Some of these rows."""
        return Order(self.work, [self.row(at) for at in rows], self.decoding)

    def draw(self, position: int) -> Draw:
        """The random numbers of the step at a position of the recipe."""
        return Draw(self.work.seed, self.work.epoch, position, self.indices)

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
