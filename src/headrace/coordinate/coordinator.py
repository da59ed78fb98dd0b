"""From credits to batches: draws, orders, retries, delivery in order.

The coordinator is told what happened (a slot is free, an order is done, a worker died) and answers with the
orders to post. It knows neither sockets nor processes nor time.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.directory import Catalogue
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import WorkerDied
from headrace.core.places import Memory
from headrace.sampling import Draw

ATTEMPTS = 3
"""An order of one sample that killed so many workers is a bad sample, not bad luck."""


class Later(enum.Enum):
    """What stands for a draw that was asked for and has not come yet."""

    LATER = "later"


LATER = Later.LATER


class Draws(Protocol):
    """The batches of one epoch."""

    seed: int

    def draw(self) -> Draw | Later | None:
        """The next batch, None at the end, or LATER if it is on its way."""
        ...


@dataclass(eq=False)
class Slot:
    """Memory that holds one batch, leased when it is delivered."""

    offset: int
    nbytes: int
    memory: Memory = Memory.ARENA


@dataclass
class Batch:
    """A batch in the making, or made."""

    sequence: int
    draw: Draw
    slot: Slot
    open: int = 0
    faults: list[tuple[int, str, str]] = field(default_factory=list)
    """Row of the batch, reason, traceback."""
    result: bytes = b""
    done: OrderDone | None = None
    took: float = 0.0
    """Seconds that fetching an order of it took, at most."""
    left: list[int] = field(default_factory=list)
    """Rows that are left to a device."""


@dataclass
class _Open:
    order: Order
    batch: Batch
    attempts: int = 0


class Coordinator:
    """One job's batches, from the sampler's draws to their delivery."""

    def __init__(self, directory: Catalogue, *, rows_per_order: int | None, in_order: bool = True) -> None:
        """``rows_per_order=None``: a batch is one order, collated by its worker, and cannot be divided."""
        self.directory = directory
        self.rows_per_order = rows_per_order
        self._in_order = in_order
        self._epochs: deque[Draws] = deque()
        self._batches: dict[int, Batch] = {}
        self._orders: dict[int, _Open] = {}
        self._next_order = 0
        self._next_batch = 0
        self._deliver = 0
        self._floor = 0
        """Batches before this one were abandoned."""
        self._abandoned = 0
        """How many of those have not been freed yet: workers may be writing for them."""
        self._held: dict[int, list[Order]] = {}
        """By batch: orders whose rows wait for what others are preparing."""
        self.drawn_rows = 0
        """Of the last draw."""
        self.later = False
        """Whether the next batch is on its way from whoever draws."""
        self.horizon = 0
        """With each batch, workers are told of the one that comes so many batches after it, if that is known; 0: they
        are not."""
        self.leave = 0.0
        """The share of rows that is left to a device."""
        self.holds = False
        """Whether it has room for their images."""
        self._owed = 0.0
        """Of a row that was to be left, so far."""

    # -- draws --------------------------------------------------------------------------------------------

    def feed(self, draws: Draws) -> None:
        """Append an epoch; its batches follow those of the epochs before."""
        self._epochs.append(draws)

    def credit(self, slot: Slot) -> list[Order] | None:
        """A free slot: draw the next batch into it. None when there is nothing to draw (``later``: yet)."""
        self.later = False
        while self._epochs:
            drawn = self._epochs[0].draw()
            if isinstance(drawn, Draw):
                orders = self._orders_of(drawn, slot, self._epochs[0].seed)
                if self.horizon and orders:
                    self._tell(orders[0])
                return orders
            if drawn is LATER:
                self.later = True
                return None
            self._epochs.popleft()
        return None

    def _tell(self, order: Order) -> None:
        """Tell of a batch to come."""
        upcoming = getattr(self._epochs[0], "upcoming", None)
        later = None if upcoming is None else upcoming(self.horizon)
        if later is not None:
            order.later, order.later_batch = later.tobytes(), order.sequence + self.horizon

    def _orders_of(self, drawn: Draw, slot: Slot, seed: int) -> list[Order]:
        batch = Batch(self._next_batch, drawn, slot)
        self._next_batch += 1
        self._batches[batch.sequence] = batch
        rows = self.drawn_rows = len(drawn.indices)
        step = self.rows_per_order or max(rows, 1)
        waits, copies = min(drawn.waits, rows), drawn.copies
        if waits == rows and not copies:
            return [
                self._order(batch, seed, start, drawn.indices[start : start + step])
                for start in range(0, max(rows, 1), step)
            ]
        # Rows that are only copied are not worth an order for every few of them, or one beside a single other. Rows
        # that wait are in orders of their own: no other waits for them, so nobody waits in a circle.
        copies = copies if waits > step else 0
        starts = [*range(0, copies, 4 * step), *range(copies, waits, step), *range(waits, rows, step), rows]
        orders = [
            self._order(batch, seed, start, drawn.indices[start:stop], dress=start < waits)
            for start, stop in itertools.pairwise(starts)
        ]
        if waits < rows:
            self._held[batch.sequence] = [order for order in orders if order.start >= waits]
        return [order for order in orders if order.start < waits]

    def release(self, drawn: Draw) -> list[Order]:
        """The rows of a draw that waited need not wait any longer, and this is how they enter: the orders to post."""
        for sequence, held in self._held.items():
            batch = self._batches[sequence]
            if batch.draw.is_same(drawn):
                batch.draw = drawn
                del self._held[sequence]
                for order in held:
                    self.directory.dress(order, drawn)
                return held
        return []

    def _order(
        self,
        batch: Batch,
        seed: int,
        start: int,
        indices: NDArray[np.int64],
        *,
        attempts: int = 0,
        again: bool = False,
        dress: bool = True,
    ) -> Order:
        seed, epoch = batch.draw.randomness or (seed, batch.draw.epoch)
        order = Order(
            id=self._next_order,
            slot_offset=batch.slot.offset,
            slot_bytes=batch.slot.nbytes,
            rows=len(batch.draw.indices),
            start=start,
            seed=seed,
            epoch=epoch,
            step=batch.draw.step,
            indices=indices.tobytes(),
            keys=batch.draw.keys,
            alone=again,
            sequence=batch.sequence,
        )
        if batch.draw.words is not None:
            order.words = batch.draw.words[start : start + len(indices)].tobytes()
        if self.leave and not again:
            self._owed += self.leave * len(indices)
            order.leave, order.holds = int(self._owed), self.holds
            self._owed -= order.leave
        if dress:
            self.directory.dress(order, batch.draw, again=again)
        self._next_order += 1
        batch.open += 1
        self._orders[order.id] = _Open(order, batch, attempts)
        return order

    # -- what happened ------------------------------------------------------------------------------------

    def done(self, event: OrderDone) -> Batch | None:
        """An order is finished; returns its batch if that made it whole."""
        opened = self._orders.pop(event.order, None)
        if opened is None:
            return None
        batch, order = opened.batch, opened.order
        self.directory.done(order, event)
        batch.faults += [(order.start + row, reason, trace) for row, reason, trace in event.faults]
        batch.left += [order.start + row for row in np.frombuffer(event.left, np.int64).tolist()]
        batch.open -= 1
        batch.took = max(batch.took, event.took)
        if self.rows_per_order is None:
            batch.done = event
        if batch.open:
            return None
        batch.faults.sort(key=lambda fault: fault[0])  # the first one is named, whichever was found first
        return batch

    def cancelled(self, order_id: int) -> None:
        """An order was taken back before any worker had it."""
        opened = self._orders.pop(order_id, None)
        if opened is not None:
            self.directory.lost(opened.order)
            opened.batch.open -= 1

    def slot_of(self, order_id: int) -> Slot:
        """The slot that an open order writes to."""
        return self._orders[order_id].batch.slot

    def lost(self, order_id: int, how: str, *, alone: bool = True) -> list[Order]:
        """The worker that had this order died (``how``): the orders that take its place.

        ``alone``: the worker was busy with this order and no other, so its death counts against it.

        Rows are divided until a sample that kills its worker stands alone; it then counts as a bad sample.
        Nothing takes the place of an order whose batch was abandoned.
        """
        opened = self._orders.pop(order_id, None)
        if opened is None:
            return []
        alone = alone or self.rows_per_order is None
        batch, order, attempts = opened.batch, opened.order, opened.attempts + alone
        indices = order.index_array()
        self.directory.lost(order)
        if self.rows_per_order is None and attempts > ATTEMPTS and batch.sequence >= self._floor:
            # The batch stays open: it was not made, so it must never pass for a whole one.
            raise WorkerDied(
                f"DataLoader worker exited unexpectedly: {how}. Batch {order.step} of epoch {order.epoch} "
                f"was given to {attempts} workers and none survived it. "
                "A crash in native code, or the out-of-memory killer, is the usual reason; see the log."
            )
        batch.open -= 1
        if batch.sequence < self._floor:
            return []
        if len(indices) > 1 and self.rows_per_order is not None:
            return [
                self._order(batch, order.seed, order.start + row, indices[row : row + 1], again=True)
                for row in range(len(indices))
            ]
        if self.rows_per_order is not None and attempts >= ATTEMPTS:
            batch.faults.append((order.start, f"preparing it killed the worker ({how})", ""))
            return []
        return [self._order(batch, order.seed, order.start, indices, attempts=attempts, again=True)]

    # -- delivery -----------------------------------------------------------------------------------------

    @property
    def has_whole(self) -> bool:
        """Whether ``take`` would give a batch."""
        return self._whole() is not None

    def _whole(self) -> Batch | None:
        if self._in_order:
            batch = self._batches.get(self._deliver)
            return None if batch is None or batch.open else batch
        whole = (b for b in self._batches.values() if not b.open and b.sequence >= self._floor)
        return next(whole, None)

    def take(self) -> Batch | None:
        """The next batch to deliver, if it is whole: in the order drawn, or any if order does not matter."""
        batch = self._whole()
        if batch is None:
            return None
        del self._batches[batch.sequence]
        self._deliver += 1
        return batch

    @property
    def outstanding(self) -> int:
        """Batches drawn, not delivered and not abandoned."""
        return len(self._batches) - self._abandoned

    @property
    def held(self) -> bool:
        """Whether orders wait for what others are preparing."""
        return bool(self._held)

    @property
    def open_orders(self) -> list[int]:
        """Orders that no worker has finished."""
        return list(self._orders)

    def abandon(self) -> list[int]:
        """Forget all draws and batches (an epoch was left early); returns the orders still open.

        Workers may still be writing for those, so slots come back through ``freed`` as they end.
        """
        self._epochs.clear()
        self.later = False
        for held in self._held.values():
            for order in held:
                self.cancelled(order.id)
        self._held.clear()
        self._floor = self._deliver = self._next_batch
        self._abandoned = len(self._batches)
        return list(self._orders)

    def freed(self) -> list[Slot]:
        """Slots of abandoned batches that nobody writes to any more."""
        if not self._abandoned:
            return []
        gone = [b for b in self._batches.values() if b.sequence < self._floor and not b.open]
        for batch in gone:
            del self._batches[batch.sequence]
        self._abandoned -= len(gone)
        return [batch.slot for batch in gone]
