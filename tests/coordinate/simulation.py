"""A host and its workers on paper: they claim, finish in any order, fail, and die at any moment."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from headrace.coordinate.coordinator import Batch, Coordinator, Slot
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone, decode_order, encoder
from headrace.core.forms import Form
from headrace.sampling import Draw


class Epoch:
    """Batches of given sizes over fresh samples."""

    def __init__(self, epoch: int, sizes: list[int], first: int) -> None:
        self.seed = 1000 + epoch
        ends = np.cumsum([first, *sizes]).tolist()
        self.batches = [
            Draw(epoch, step, np.arange(start, stop, dtype=np.int64), stop)
            for step, (start, stop) in enumerate(itertools.pairwise(ends))
        ]
        self.samples = ends[-1] - first
        self.left = list(self.batches)

    def draw(self) -> Draw | None:
        """The next batch, or None."""
        return self.left.pop(0) if self.left else None


@dataclass
class Simulation:
    """A host with workers, each of which holds up to ``claims`` orders, driven by a seeded dice."""

    seed: int
    rows_per_order: int | None
    in_order: bool = True
    claims: int = 1
    workers: int = 3
    slots: int = 3
    poison: frozenset[int] = frozenset()
    bad: frozenset[int] = frozenset()
    death: float = 0.05
    size: int = 4000
    caches: bool = True
    posted: list[Order] = field(default_factory=list)
    written: dict[tuple[int, int, int], int] = field(default_factory=dict)
    deaths: int = 0
    worked: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        budgets = {Form.ENCODED: 10**6, Form.DECODED: 10**6} if self.caches else {}
        self.directory = Directory(self.size, budgets, 1 << 40)
        self.coordinator = Coordinator(
            self.directory, rows_per_order=self.rows_per_order, in_order=self.in_order
        )
        self.free = [Slot(1000 * at, 1000) for at in range(self.slots)]
        self.lent: dict[int, Slot] = {}
        self.held: list[list[Order]] = [[] for _ in range(self.workers)]
        self.delivered: list[Batch] = []

    def credit(self) -> bool:
        """Draw into a free slot, if there is one."""
        if not self.free:
            return False
        slot = self.free.pop()
        orders = self.coordinator.credit(slot)
        if orders is None:
            self.free.append(slot)
            return False
        assert orders
        assert id(slot) not in self.lent, "a slot is used by two batches at once"
        self.lent[id(slot)] = slot
        self._post(orders)
        return True

    def _post(self, orders: list[Order]) -> None:
        for order in orders:
            assert decode_order(encoder.encode(order)) == order
            assert self.coordinator.slot_of(order.id).offset == order.slot_offset
            self.posted.append(order)

    def work(self) -> None:
        """One worker claims, finishes an order, or dies with all that it holds.

        As real workers do, it finishes everything else before an order that is to run alone, and claims no
        other until that is over.
        """
        worker = self.dice.randrange(self.workers)
        held = self.held[worker]
        while self.posted and len(held) < self.claims and not (held and held[-1].alone):
            held.append(self.posted.pop(0))
        if not held:
            return
        order = held[0]
        indices = order.index_array()
        if self.poison.intersection(indices.tolist()) or self.dice.random() < self.death:
            self.held[worker] = []
            self.deaths += 1
            for lost in held:
                alone = lost.alone and len(held) == 1
                self._post(self.coordinator.lost(lost.id, "by chance", alone=alone))
            return
        held.remove(order)
        self.worked += len(indices)
        faults = []
        for row, sample in enumerate(indices.tolist()):
            if sample in self.bad:
                faults.append((row, "bad", "trace"))
            self.written[order.epoch, order.step, order.start + row] = sample
        batch = self.coordinator.done(OrderDone(order.id, faults, self._publish(order)))
        assert self.coordinator.done(OrderDone(order.id, faults)) is None, "an order ends once"
        assert self.coordinator.lost(order.id, "after it was done") == []
        if batch is not None:
            assert batch.open == 0

    def _publish(self, order: Order) -> bytes:
        left = np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()
        rows = []
        for row, bits in enumerate(order.keep):
            for form in (Form.ENCODED, Form.DECODED):
                if bits & (1 << form):
                    block = next(block for block in left if block[0] == form)
                    left.remove(block)
                    if self.dice.random() < 0.5:
                        rows.append((row, form, block[1], 8))
        return np.array(rows, np.int64).tobytes()

    def deliver(self) -> bool:
        """Take the next batch, if there is one, and give its slot back."""
        batch = self.coordinator.take()
        if batch is None:
            return False
        assert batch.open == 0
        self.delivered.append(batch)
        self._back(batch.slot)
        return True

    def _back(self, slot: Slot) -> None:
        assert self.lent.pop(id(slot)) is slot
        self.free.append(slot)

    def abandon(self) -> None:
        """Leave the epoch; unclaimed orders are taken back, some of them."""
        open_orders = self.coordinator.abandon()
        assert set(open_orders) == {order.id for order in self.unfinished()}
        for order in list(self.posted):
            if self.dice.random() < 0.7:
                self.posted.remove(order)
                self.coordinator.done(OrderDone(order.id, []))
        self.collect()
        assert self.coordinator.take() is None
        assert self.coordinator.outstanding == 0

    def unfinished(self) -> list[Order]:
        """Orders that a worker may yet work on."""
        return [*self.posted, *(order for held in self.held for order in held)]

    def collect(self) -> None:
        """Slots of abandoned batches that nobody writes to come back."""
        writing = {order.slot_offset for order in self.unfinished()}
        for slot in self.coordinator.freed():
            assert slot.offset not in writing, "a slot came back while a worker may write to it"
            self._back(slot)

    def run(self, until: int, limit: int = 200_000) -> None:
        """Random steps until so many batches are delivered."""
        for _ in range(limit):
            if len(self.delivered) >= until:
                return
            self.dice.choice([self.credit, self.work, self.work, self.work, self.deliver, self.collect])()
        raise AssertionError("the simulation does not end: an order or a slot was lost")

    def drain(self) -> None:
        """Let workers finish what is left."""
        for _ in range(200_000):
            if not self.coordinator.open_orders:
                break
            self.work()
        self.collect()

    def check(self, batches: list[Draw]) -> None:
        """All of these were delivered, whole, each sample in its row or named as a fault."""
        got = self.delivered
        if self.in_order:
            assert [(b.draw.epoch, b.draw.step) for b in got] == [(d.epoch, d.step) for d in batches]
        assert Counter(id(b.draw) for b in got) == Counter(id(d) for d in batches)
        for batch in got:
            rows = Counter(row for row, _, _ in batch.faults)
            assert all(count == 1 for count in rows.values())
            for row, sample in enumerate(batch.draw.indices.tolist()):
                if sample in self.poison:
                    assert row in rows
                    assert (batch.draw.epoch, batch.draw.step, row) not in self.written
                else:
                    stands = self.written.get((batch.draw.epoch, batch.draw.step, row)) == sample
                    assert stands or row in rows
                    if sample in self.bad:
                        assert row in rows
                    if self.death == 0 and sample not in self.bad:
                        assert row not in rows, "a good sample is named as a fault"
        assert self.coordinator.outstanding == 0
        assert self.coordinator.open_orders == []
        assert not self.lent
        assert len(self.free) == self.slots
        if self.caches:
            for shelf in self.directory._shelves.values():
                assert not shelf.pending.count() and not shelf.busy
