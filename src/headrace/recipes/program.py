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
    kept: dict[int, Any] = field(default_factory=dict)
    """Filled by the program: row -> its decoded value, to be cached (in a reserved array, or the engine copies)."""
    faults: dict[int, Fault] = field(default_factory=dict)
    """Filled by engine and program: row -> why it could not be prepared."""
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The engine's own note of what it reserved: address -> (offset, bytes)."""
    seconds: dict[Form, float] = field(default_factory=dict)
    """Filled by the program: time spent reaching each form."""


class Program(Protocol):
    """One recipe, compiled. Each preparing thread has its own, so it may own scratch memory."""

    @property
    def layout(self) -> RowLayout | None:
        """The rows that ``run`` writes; None while unknown (user code decides, and has not run yet)."""
        ...

    def run(self, work: Work, out: list[NDArray[Any]]) -> None:
        """Prepare every row of ``work`` into ``out``: one array per layout field, shape ``(rows, *shape)``.

        A row that fails gets an entry in ``work.faults`` and leaves its place in ``out`` undefined; it never
        keeps the other rows from being prepared.
        """
        ...

    def samples(self, work: Work) -> list[Any]:
        """Prepare every row as a sample of its own (a nested value; None for a fault), to be collated later."""
        ...
