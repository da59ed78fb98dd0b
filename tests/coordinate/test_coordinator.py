"""The coordinator against simulated workers that finish in any order, fail, and die at any moment."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.coordinator import ATTEMPTS, Batch, Coordinator, Slot
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone, decode_order, encoder
from headrace.core.errors import WorkerDied
from headrace.core.forms import Form


@dataclass
class Drawn:
    """One batch of a made-up epoch."""

    epoch: int
    step: int
    indices: np.ndarray


class Epoch:
    """Batches of given sizes over fresh samples."""

    def __init__(self, epoch: int, sizes: list[int], first: int) -> None:
        self.seed = 1000 + epoch
        ends = np.cumsum([first, *sizes]).tolist()
        self.batches = [
            Drawn(epoch, step, np.arange(start, stop, dtype=np.int64))
            for step, (start, stop) in enumerate(itertools.pairwise(ends))
        ]
        self.samples = ends[-1] - first
        self._left = list(self.batches)

    def draw(self) -> Drawn | None:
        """The next batch, or None."""
        return self._left.pop(0) if self._left else None


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
        self.directory = Directory(self.size, budgets)
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
        keep = np.frombuffer(order.keep, np.uint8)
        rows = [
            (row, form, 64 * order.id, 8)
            for row in range(len(keep))
            for form in (Form.ENCODED, Form.DECODED)
            if keep[row] & (1 << form) and self.dice.random() < 0.5
        ]
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

    def check(self, batches: list[Drawn]) -> None:
        """All of these were delivered, whole, each sample in its row or named as a fault."""
        got = self.delivered
        if self.in_order:
            assert [(b.drawn.epoch, b.drawn.step) for b in got] == [(d.epoch, d.step) for d in batches]
        assert Counter(id(b.drawn) for b in got) == Counter(id(d) for d in batches)
        for batch in got:
            rows = Counter(row for row, _, _ in batch.faults)
            assert all(count == 1 for count in rows.values())
            for row, sample in enumerate(batch.drawn.indices.tolist()):
                if sample in self.poison:
                    assert row in rows
                    assert (batch.drawn.epoch, batch.drawn.step, row) not in self.written
                else:
                    stands = self.written.get((batch.drawn.epoch, batch.drawn.step, row)) == sample
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
            assert not self.directory._pending.any()


def drawn_in(epochs: list[Epoch]) -> list[Drawn]:
    return [batch for epoch in epochs for batch in epoch.batches]


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)
SEEDS = st.integers(0, 2**32)


@given(SEEDS, SIZES, SIZES, st.sampled_from([1, 2, 3, 5, 64]), st.booleans(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_sample_exactly_once_through_deaths_and_faults(
    seed: int, first: list[int], second: list[int], rows: int, in_order: bool, claims: int
) -> None:
    epochs = [Epoch(0, first, 0), Epoch(1, second, 0)]
    dice = random.Random(seed)
    bad = frozenset(dice.sample(range(epochs[0].samples), epochs[0].samples // 6))
    simulation = Simulation(seed, rows, in_order, claims, bad=bad)
    for epoch in epochs:
        simulation.coordinator.feed(epoch)
    simulation.run(len(first) + len(second))
    simulation.check(drawn_in(epochs))
    assert sum(simulation.directory.hits.values()) == sum(epoch.samples for epoch in epochs)


@given(SEEDS, SIZES, st.sampled_from([1, 2, 4, 64]), st.booleans(), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_samples_that_kill_their_worker_are_isolated_after_bounded_work(
    seed: int, sizes: list[int], rows: int, in_order: bool, claims: int
) -> None:
    """And what a worker merely had beside such a sample is never blamed."""
    epoch = Epoch(0, sizes, 0)
    dice = random.Random(seed)
    poison = frozenset(dice.sample(range(epoch.samples), min(epoch.samples, 1 + epoch.samples // 5)))
    simulation = Simulation(seed, rows, in_order, claims, poison=poison, death=0.0)
    simulation.coordinator.feed(epoch)
    simulation.run(len(sizes))
    simulation.check(epoch.batches)
    # Each poisonous sample: once in company, then alone until it counts as bad.
    assert simulation.deaths <= len(poison) * (1 + ATTEMPTS)
    assert simulation.worked == epoch.samples - len(poison), "nothing that was done is done again"


@given(SEEDS, SIZES, SIZES, st.sampled_from([None, 1, 3, 64]), st.booleans(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_an_epoch_left_early_gives_all_slots_back_and_the_next_is_whole(
    seed: int, first: list[int], second: list[int], rows: int | None, in_order: bool, claims: int
) -> None:
    dice = random.Random(seed)
    simulation = Simulation(seed, rows, in_order, claims, death=0.05 if rows else 0.0)
    left, whole = Epoch(0, first, 0), Epoch(1, second, 0)
    simulation.coordinator.feed(left)
    simulation.run(dice.randrange(len(first) + 1))
    for _ in range(dice.randrange(20)):
        dice.choice([simulation.credit, simulation.work])()
    simulation.abandon()
    simulation.delivered.clear()
    simulation.coordinator.feed(whole)
    simulation.run(len(second))
    simulation.drain()
    simulation.check(whole.batches)


@given(SEEDS, SIZES, st.booleans())
@settings(max_examples=30, deadline=None)
def test_batches_that_cannot_be_divided(seed: int, sizes: list[int], in_order: bool) -> None:
    epoch = Epoch(3, sizes, 0)
    simulation = Simulation(seed, None, in_order, caches=False, death=0.0)
    simulation.coordinator.feed(epoch)
    simulation.run(len(sizes))
    simulation.check(epoch.batches)
    assert all(batch.done is not None for batch in simulation.delivered)


def whole_batch_coordinator() -> tuple[Coordinator, Order]:
    coordinator = Coordinator(Directory(10, {}), rows_per_order=None)
    coordinator.feed(Epoch(0, [4, 4], 0))
    orders = coordinator.credit(Slot(0, 100))
    assert orders is not None and len(orders) == 1
    return coordinator, orders[0]


def test_a_batch_that_kills_every_worker_is_an_error_and_is_never_delivered() -> None:
    coordinator, order = whole_batch_coordinator()
    for _ in range(ATTEMPTS):
        (order,) = coordinator.lost(order.id, "killed by SIGKILL")
        assert order.index_array().tolist() == [0, 1, 2, 3]
    with pytest.raises(WorkerDied, match="Batch 0 of epoch 0 was given to 3 workers"):
        coordinator.lost(order.id, "killed by SIGKILL")
    assert coordinator.take() is None


def test_a_batch_that_nobody_wants_any_more_is_not_given_to_another_worker() -> None:
    coordinator, order = whole_batch_coordinator()
    for _ in range(ATTEMPTS):
        (order,) = coordinator.lost(order.id, "killed")
    coordinator.abandon()
    assert coordinator.freed() == []
    assert coordinator.lost(order.id, "killed") == [], "and it is no error either"
    assert [slot.nbytes for slot in coordinator.freed()] == [100]
    assert coordinator.freed() == []


def test_faults_are_rows_of_the_batch() -> None:
    coordinator = Coordinator(Directory(10, {}), rows_per_order=2)
    coordinator.feed(Epoch(0, [5], 0))
    orders = coordinator.credit(Slot(0, 100))
    assert orders is not None
    assert [(order.start, order.index_array().tolist(), order.rows) for order in orders] == [
        (0, [0, 1], 5),
        (2, [2, 3], 5),
        (4, [4], 5),
    ]
    assert coordinator.done(OrderDone(orders[1].id, [(1, "broken", "trace")])) is None
    assert coordinator.done(OrderDone(orders[2].id, [])) is None
    batch = coordinator.done(OrderDone(orders[0].id, []))
    assert batch is not None
    assert batch.faults == [(3, "broken", "trace")]
    assert coordinator.take() is batch


def test_order_matters_or_not() -> None:
    for in_order in (True, False):
        coordinator = Coordinator(Directory(10, {}), rows_per_order=8, in_order=in_order)
        coordinator.feed(Epoch(0, [2, 2], 0))
        first, second = (coordinator.credit(Slot(at, 1)) for at in range(2))
        assert first is not None and second is not None
        coordinator.done(OrderDone(second[0].id, []))
        taken = coordinator.take()
        assert (taken is None) == in_order
        coordinator.done(OrderDone(first[0].id, []))
        steps = [batch.drawn.step for batch in (taken, coordinator.take(), coordinator.take()) if batch]
        assert steps == ([0, 1] if in_order else [1, 0])


def test_seeds_follow_their_epochs() -> None:
    coordinator = Coordinator(Directory(10, {}), rows_per_order=8)
    coordinator.feed(Epoch(0, [2], 0))
    coordinator.feed(Epoch(1, [2], 0))
    orders = [coordinator.credit(Slot(at, 1)) for at in range(2)]
    assert [(o[0].epoch, o[0].seed) for o in orders if o] == [(0, 1000), (1, 1001)]
    assert coordinator.credit(Slot(9, 1)) is None


def test_an_empty_draw_is_one_order_without_rows() -> None:
    coordinator = Coordinator(Directory(0, {}), rows_per_order=None)
    coordinator.feed(Epoch(0, [0], 0))
    orders = coordinator.credit(Slot(0, 0))
    assert orders is not None and len(orders) == 1
    assert orders[0].indices == b""
    assert coordinator.done(OrderDone(orders[0].id, [])) is coordinator.take()
