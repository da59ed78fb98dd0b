"""The set-ups: what is wrong with each, and the advice that is put to the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Orders = dict[str, Any]
READ_BYTES_S = 24_000_000


@dataclass(frozen=True)
class Cure:
    """A kind of advice, and how it is followed: from the remedy to what changes in the job's orders."""

    kind: str
    apply: Callable[[dict[str, Any]], Orders]


@dataclass(frozen=True)
class Case:
    """A sick set-up."""

    name: str
    cause: str
    """What the doctor has to name."""
    orders: Orders
    cures: tuple[Cure, ...]
    slow: bool = False
    """Its storage is limited."""
    profiled: bool = field(default=False)
    """``headrace profile`` was run before."""


def _cache(remedy: dict[str, Any]) -> Orders:
    return {"cache": int(remedy["amount"]), "split": remedy["split"], "settle": 3}


CASES = (
    Case(
        "slow storage",
        "storage",
        {"settle": 1},
        (Cure("cache", _cache), Cure("storage", lambda remedy: {"read_bytes_s": int(remedy["amount"])})),
        slow=True,
    ),
    Case(
        "too few cores",
        "decode",
        {"cpus": 1, "settle": 1},
        (Cure("cpus", lambda remedy: {"cpus": int(remedy["amount"])}), Cure("cache", _cache)),
        profiled=True,
    ),
    Case(
        "Python in a transform",
        "python",
        {"python": True, "settle": 1},
        (Cure("user code", lambda remedy: {"python": False}),),
    ),
)
