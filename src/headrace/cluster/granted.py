"""What an agent has granted to helpers, and what comes of it: bytes on their way, orders that will not come, and rows
that a helper says are bad.

Whoever calls holds the lock of the lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.cache.arena import Arena
from headrace.cluster.messages import Rows
from headrace.coordinate.messages import Order, OrderDone
from headrace.core import environment
from headrace.core.layout import RowLayout
from headrace.engine.board import Claim
from headrace.planning.pacing import Pace

Helper = TypeVar("Helper")

_FIRST, _MOST = 4 << 20, 256 << 20
"""Bytes on their way here: at first, and at most."""


@dataclass
class Room:
    """Room for the rows of one order, at one helper."""

    order: Order
    claim: Claim | None
    """None: a trial. Somebody else makes the order."""
    since: float
    nbytes: int
    """Of a trial 0: it may never come, and others are not to wait for its room."""
    flight: int
    """Bytes that were under way with it."""
    transfers: int

    @property
    def count(self) -> int:
        """Its rows."""
        return len(self.order.indices) // 8

    def into(self, layout: RowLayout, arena: Arena) -> list[memoryview]:
        """Where its rows are to stand, field by field. Those of a trial are of no use to anybody."""
        order, count = self.order, self.count
        if self.claim is None:
            return [memoryview(bytearray(count * one.nbytes)) for one in layout.fields]
        buffer = memoryview(arena.map(order.slot_offset, order.slot_bytes))
        stop = order.start + count
        out = []
        for one, offset in zip(layout.fields, layout.offsets(order.rows), strict=True):
            out.append(buffer[offset + order.start * one.nbytes : offset + stop * one.nbytes])
        return out


class Granted(Generic[Helper]):
    """All that an agent has granted, over whichever line."""

    def __init__(self) -> None:
        self._pace = Pace(_FIRST if environment.paced() else _MOST, _MOST)
        self._in_flight = 0
        self._void: list[tuple[Order, Claim]] = []
        self._doubted: dict[int, tuple[Helper, dict[int, str]]] = {}
        """By order: a helper, and which of its rows are bad by what it says."""

    def may(self, nbytes: int) -> bool:
        """Whether so many bytes more may be on their way."""
        return self._pace.may_go(nbytes, self._in_flight)

    def grant(self, order: Order, claim: Claim | None, now: float, nbytes: int, others: int) -> Room:
        """Room for one more, beside ``others``."""
        nbytes = nbytes if claim is not None else 0
        self._in_flight += nbytes
        return Room(order, claim, now, nbytes, self._in_flight, 1 + others)

    def arrived(self, helper: Helper, room: Room, rows: Rows, took: float) -> bool:
        """Its rows are here. Whether they are good: whether a sample is bad is for the job's own machine to say."""
        self._in_flight -= room.nbytes
        if room.claim is None:
            return False
        on_the_way = max(0.0, took - max(0.0, rows.held))
        self._pace.arrived(room.nbytes, on_the_way, room.flight, room.transfers, took - on_the_way)
        faults = {row: reason for row, reason, _ in rows.faults if 0 <= row < room.count}
        if faults:
            self._doubted[room.order.id] = helper, faults
            self._void.append((room.order, room.claim))
        return not faults

    def lost(self, rooms: Iterable[Room]) -> None:
        """Nothing will come of these: they are to be made here."""
        for one in rooms:
            self._in_flight -= one.nbytes
            self.void(one.order, one.claim)

    def void(self, order: Order, claim: Claim | None) -> None:
        """An order is to be made here after all; of a trial, nobody is in want."""
        if claim is not None:
            self._void.append((order, claim))

    def next_void(self) -> tuple[Order, Claim] | None:
        """An order that is to be made here."""
        return self._void.pop(0) if self._void else None

    def was_made(self, done: OrderDone) -> tuple[Helper, str] | None:
        """An order was made here, after a helper perhaps that found samples bad: who was wrong about one, and what it
        said of it."""
        helper, said = self._doubted.pop(done.order, (None, {}))
        wrong = sorted(set(said) - {row for row, _, _ in done.faults})
        return (helper, said[wrong[0]]) if helper is not None and wrong else None
