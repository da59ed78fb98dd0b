"""The coordinator against simulated workers that finish in any order, fail, and die at any moment."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.coordinator import ATTEMPTS, Coordinator, Slot
from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import WorkerDied
from headrace.sampling import Draw, Lookup
from tests.coordinate.simulation import Epoch, Simulation


def drawn_in(epochs: list[Epoch]) -> list[Draw]:
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
    with pytest.raises(WorkerDied, match=f"Batch 0 of epoch 0 was given to {ATTEMPTS + 1} workers"):
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


def test_a_sample_is_blamed_only_for_deaths_that_it_was_alone_with() -> None:
    coordinator = Coordinator(Directory(10, {}), rows_per_order=4)
    coordinator.feed(Epoch(0, [3], 0))
    orders = coordinator.credit(Slot(0, 100))
    assert orders is not None
    assert not orders[0].alone
    singles = coordinator.lost(orders[0].id, "killed", alone=False)
    assert [(order.start, order.alone) for order in singles] == [(0, True), (1, True), (2, True)]
    order = singles[1]
    for _ in range(5 * ATTEMPTS):
        (order,) = coordinator.lost(order.id, "killed", alone=False)
    for _ in range(ATTEMPTS - 1):
        (order,) = coordinator.lost(order.id, "killed", alone=True)
    assert coordinator.lost(order.id, "killed by SIGSEGV", alone=True) == []
    coordinator.done(OrderDone(singles[0].id, []))
    batch = coordinator.done(OrderDone(singles[2].id, []))
    assert batch is not None
    assert [(row, "SIGSEGV" in reason) for row, reason, _ in batch.faults] == [(1, True)]


def shared_draw(copies: int, waits: int) -> Draw:
    """Of a job that shares: ``copies`` rows are only copied, those from ``waits`` on wait for others."""
    bits, numbers = np.zeros(64, np.uint8), np.zeros(64, np.int64)
    lookup = Lookup(3, 1, bits, numbers, numbers, bits, np.zeros((0, 4), np.int64), waits, copies)
    return Draw(0, 0, np.arange(64), 64, lookup=lookup)


class OneDraw:
    """An epoch of one batch."""

    seed = 0

    def __init__(self, drawn: Draw) -> None:
        self._drawn = [drawn]

    def draw(self) -> Draw | None:
        """See ``Draws``."""
        return self._drawn.pop() if self._drawn else None


@pytest.mark.parametrize(
    ("rows", "copies", "waits", "orders", "held"),
    [
        (64, 40, 64, [(0, 64)], []),  # one order has it all: a second would only be one more message
        (64, 40, 50, [(0, 50)], [(50, 14)]),
        (64, 64, 64, [(0, 64)], []),
        (16, 40, 64, [(0, 40), (40, 16), (56, 8)], []),
        (16, 40, 50, [(0, 40), (40, 10)], [(50, 14)]),
        (8, 40, 64, [(0, 32), (32, 8), (40, 8), (48, 8), (56, 8)], []),
        (64, 0, 0, [], [(0, 64)]),
    ],
)
def test_how_a_batch_of_copies_and_others_is_cut(
    rows: int, copies: int, waits: int, orders: list[tuple[int, int]], held: list[tuple[int, int]]
) -> None:
    coordinator = Coordinator(Directory(64, {}), rows_per_order=rows)
    drawn = shared_draw(copies, waits)
    coordinator.feed(OneDraw(drawn))
    posted = coordinator.credit(Slot(0, 100))
    assert posted is not None
    assert [(order.start, len(order.index_array())) for order in posted] == orders
    assert coordinator.held is bool(held)
    later = coordinator.release(shared_draw(0, 64))  # the same ticket
    assert [(order.start, len(order.index_array())) for order in later] == held


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
        steps = [batch.draw.step for batch in (taken, coordinator.take(), coordinator.take()) if batch]
        assert steps == ([0, 1] if in_order else [1, 0])


def test_seeds_follow_their_epochs() -> None:
    coordinator = Coordinator(Directory(10, {}), rows_per_order=8)
    coordinator.feed(Epoch(0, [2], 0))
    coordinator.feed(Epoch(1, [2], 0))
    orders = [coordinator.credit(Slot(at, 1)) for at in range(2)]
    assert [(o[0].epoch, o[0].seed) for o in orders if o] == [(0, 1000), (1, 1001)]
    assert coordinator.credit(Slot(9, 1)) is None


def test_words_of_random_numbers_stay_with_their_rows() -> None:
    """Also where a worker died of some of them."""
    coordinator = Coordinator(Directory(10, {}), rows_per_order=3)
    epoch = Epoch(0, [5], 0)
    epoch.left = [dataclasses.replace(draw, words=np.arange(5) - 100) for draw in epoch.left]
    coordinator.feed(epoch)
    orders = coordinator.credit(Slot(0, 1))
    assert orders is not None
    orders += coordinator.lost(orders.pop(0).id, "killed")
    for order in orders:
        assert np.frombuffer(order.words, np.int64).tolist() == (order.index_array() - 100).tolist()
    assert sorted(len(order.words) // 8 for order in orders) == [1, 1, 1, 2]


def test_an_empty_draw_is_one_order_without_rows() -> None:
    coordinator = Coordinator(Directory(0, {}), rows_per_order=None)
    coordinator.feed(Epoch(0, [0], 0))
    orders = coordinator.credit(Slot(0, 0))
    assert orders is not None and len(orders) == 1
    assert orders[0].indices == b""
    assert coordinator.done(OrderDone(orders[0].id, [])) is coordinator.take()
