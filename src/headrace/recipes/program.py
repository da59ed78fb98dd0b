"""What a worker runs: a recipe compiled into code that prepares many rows at a time.

The engine fetches, caches and moves bytes; a ``Program`` turns the inputs of an order's rows into rows of the
batch. It never touches sockets, shared-memory bookkeeping or the clock.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.forms import Form
from headrace.core.layout import RowLayout
from headrace.core.tree import count_leaves
from headrace.recipes.image.left import LeftRow

Reserve = Callable[[Sequence[tuple[tuple[int, ...], str]]], Sequence[NDArray[Any] | None]]
"""Asks the cache for room: (shape, dtype) of each array in, a writable array or None (no room) of each out."""


@dataclass
class Fault:
    """Why a row could not be prepared."""

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault that an exception stands for."""
        text = str(error) or type(error).__name__
        reason = text if type(error) is ValueError else f"{type(error).__name__}: {text}"
        return cls(reason, "".join(traceback.format_exception(error)))


@dataclass
class Work:
    """The rows of one order, as the engine hands them to a program."""

    indices: NDArray[np.int64]
    seed: int
    epoch: int
    forms: NDArray[np.uint8]
    """The form of each input: ENCODED or DECODED."""
    inputs: list[Any]
    """Per row: the encoded bytes (bytes-like), or the decoded value; None where the row already has a fault."""
    keep: NDArray[np.bool_]
    """Rows whose decoded form the cache would admit."""
    reserve: Reserve
    """Room for decoded forms of single arrays, written in place by the program."""
    words: NDArray[np.int64] | None = None
    """What random numbers of each row go by; None: its index."""
    leave: NDArray[np.bool_] | None = None
    """Rows that are left to a device, as far as that is possible; None: there are none."""
    left: list[int] = field(default_factory=list)
    """Filled by the program: the rows that were."""
    beside: dict[int, Any] = field(default_factory=dict)
    """By row, where it was fetched: the bytes of a file that its target names, or why it could not be read."""
    kept: dict[int, Any] = field(default_factory=dict)
    """Filled by the program: row -> its decoded value, to be cached (in a reserved array, or the engine copies)."""
    faults: dict[int, Fault] = field(default_factory=dict)
    """Filled by engine and program: row -> why it could not be prepared."""
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The engine's own note of what it reserved: address -> (offset, bytes)."""
    seconds: dict[Form, float] = field(default_factory=dict)
    """Filled by the program: time spent reaching each form."""
    decoded: int = 0
    """Filled by the program: rows that a decode step was run for."""
    pixels: int = 0
    """Filled by the program: of the images among those rows, as they lie in storage."""
    user: float = 0.0
    """Filled by the program: seconds in callables of the user's."""
    user_cpu: float = 0.0

    def part(self, start: int, stop: int) -> Work:
        """Rows ``start`` to ``stop`` as work of their own; ``merge`` brings back what came of them."""
        return Work(
            indices=self.indices[start:stop],
            seed=self.seed,
            epoch=self.epoch,
            forms=self.forms[start:stop],
            inputs=self.inputs[start:stop],
            keep=self.keep[start:stop],
            reserve=self.reserve,
            words=None if self.words is None else self.words[start:stop],
            leave=None if self.leave is None else self.leave[start:stop],
            beside={row - start: data for row, data in self.beside.items() if start <= row < stop},
            faults={row - start: fault for row, fault in self.faults.items() if start <= row < stop},
            taken=self.taken,
            seconds=self.seconds,
        )

    def merge(self, part: Work, start: int) -> None:
        """Take over what a program filled in for the rows from ``start`` on."""
        self.kept.update({start + row: value for row, value in part.kept.items()})
        self.left += [start + row for row in part.left]
        self.faults.update({start + row: fault for row, fault in part.faults.items()})
        self.decoded += part.decoded
        self.pixels += part.pixels
        self.count_user(part.user, part.user_cpu)

    def count_user(self, seconds: float, cpu: float) -> None:
        """Callables of the user's took so long."""
        self.user += seconds
        self.user_cpu += cpu


def body_fields(layout: RowLayout, *, targets: bool) -> int:
    """How many leading fields of a row are its body: all but those of the target, where samples have targets."""
    return count_leaves(layout.tree.children[0]) if targets else len(layout.fields)


class Program(Protocol):
    """One recipe, compiled. Each preparing thread has its own, so it may own scratch memory."""

    @property
    def layout(self) -> RowLayout | None:
        """The rows that ``run`` writes; None while unknown (user code decides, and has not run yet)."""
        ...

    @property
    def left_rows(self) -> LeftRow | None:
        """What rows that are left to a device are to become; None: none can be."""
        ...

    def run(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Prepare every row of ``work`` into ``out``: one array per layout field, shape ``(rows, *shape)``.

        A row that fails gets an entry in ``work.faults`` and leaves its place in ``out`` undefined; it never
        keeps the other rows from being prepared.
        """
        ...

    def label(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Write only the targets of rows whose other fields stand: ``out`` has one array per target field.

        Faults are as with ``run``. The inputs of ``work`` are not looked at.
        """
        ...

    def decode(self, work: Work) -> None:
        """Bring rows to their decoded form and no further: for the cache alone."""
        ...

    def samples(self, work: Work) -> list[Any]:
        """Prepare every row as a sample of its own (a nested value; None for a fault), to be collated later."""
        ...
