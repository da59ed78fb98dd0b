"""When samples are used next: against a plain walk through the epochs to come."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.dues import FAR
from headrace.sampling import (
    Draw,
    Foresight,
    Geometry,
    KnownOrder,
    UniformEpoch,
    epoch_order,
    epochs_worth_knowing,
)


def known_order(size: int, batch: int, world: int, *, rank: int = 0, drop_last: bool = False) -> KnownOrder:
    return KnownOrder(size, Geometry(batch, rank, world, drop_last), 7, partial(epoch_order, size, 7))


def epoch_of(known: KnownOrder, rank: int, epoch: int, position: int = 0) -> list[Draw]:
    """All draws of a rank in an epoch."""
    whole = known.geometry
    geometry = Geometry(whole.batch_size, rank, whole.world_size, whole.drop_last)
    draws = UniformEpoch(known.size, geometry, seed=7, epoch=epoch, shuffle=True, position=position)
    found = []
    while (drawn := draws.draw()) is not None:
        found.append(drawn)
    return found


GEOMETRIES = {
    "size": st.integers(1, 60),
    "batch": st.integers(1, 5),
    "world": st.integers(1, 4),
    "drop_last": st.booleans(),
    "position": st.integers(0, 20),
}


@given(**GEOMETRIES, data=st.data())
@settings(deadline=None, max_examples=80)
def test_uses_are_what_the_ranks_draw(
    size: int, batch: int, world: int, drop_last: bool, position: int, data: st.DataObject
) -> None:
    known = known_order(size, batch, world, drop_last=drop_last)
    ranks = sorted(data.draw(st.sets(st.integers(0, world - 1), min_size=1)))
    samples, steps = known.uses(3, ranks, min(position, size))
    assert (np.diff(steps) >= 0).all()
    drawn = [epoch_of(known, rank, 3, min(position, size)) for rank in ranks]
    expected = [
        (step, sample)
        for step in range(len(drawn[0]))
        for one in drawn
        for sample in one[step].indices.tolist()
    ]
    first = max(0, known.steps - len(drawn[0]))
    assert sorted(zip((steps - first).tolist(), samples.tolist(), strict=True)) == sorted(expected)


@given(
    size=st.integers(1, 40),
    batch=st.integers(2, 4),
    world=st.integers(1, 3),
    ahead=st.integers(2, 5),
    start=st.integers(0, 2),
)
@settings(deadline=None, max_examples=80)
def test_the_next_use_is_that_of_a_walk_through_the_epochs_to_come(
    size: int, batch: int, world: int, ahead: int, start: int
) -> None:
    known = known_order(size, batch, world)
    foresight = Foresight(known, [0])
    foresight.epochs = ahead
    for epoch in range(start, start + 6):
        draws = epoch_of(known, 0, epoch)
        for place, drawn in enumerate(draws):
            foresight.follow(drawn)
            rest = [(epoch, one) for one in draws[place + 1 :]]
            last = epoch + len(foresight.next_uses) - 1
            rest += [
                (later, one) for later in range(epoch + 1, last + 1) for one in epoch_of(known, 0, later)
            ]
            due: dict[int, int] = {}
            for number, one in rest:
                for sample in one.indices.tolist():
                    due.setdefault(sample, foresight.when(number, one.step))
            for sample in range(size):
                assert foresight.next_uses.due[sample] == due.get(sample, FAR), (epoch, place, sample)
        assert len(foresight.next_uses) >= 2


def test_an_epoch_that_was_left_early_is_not_waited_for() -> None:
    known = known_order(64, 4, 2)
    foresight = Foresight(known, [0])
    for drawn in epoch_of(known, 0, 0)[:3]:
        foresight.follow(drawn)
    (first, *_) = epoch_of(known, 0, 1)
    changed = foresight.follow(first)
    now = foresight.when(1)
    assert (foresight.next_uses.due >= now).all()
    left = np.concatenate([drawn.indices for drawn in epoch_of(known, 0, 0)[3:]])
    assert np.isin(left, changed).all(), "those who keep samples in order are told"


@pytest.mark.parametrize("epochs", [(0, 5), (4, 1)])
def test_another_epoch_than_the_next_is_begun_anew(epochs: tuple[int, int]) -> None:
    known = known_order(40, 4, 2)
    foresight, fresh = Foresight(known, [0]), Foresight(known, [0])
    for drawn in epoch_of(known, 0, epochs[0]):
        foresight.follow(drawn)
    for drawn in epoch_of(known, 0, epochs[1])[:2]:
        foresight.follow(drawn)
        fresh.follow(drawn)
    assert np.array_equal(foresight.next_uses.due, fresh.next_uses.due)


def test_orders_that_change_are_not_foreseen_for_ever() -> None:
    known = known_order(40, 4, 2)
    foresight = Foresight(known, [0])
    for epoch in range(4):
        draws = UniformEpoch(40, known.geometry, seed=epoch, epoch=0, shuffle=True)
        while (drawn := draws.draw()) is not None:
            foresight.follow(drawn)
    assert foresight.blind


def test_how_far_ahead_pays() -> None:
    assert epochs_worth_knowing(1.0, 0.3) == 2, "on one node every sample comes once an epoch"
    assert epochs_worth_knowing(0.5, 0.0) == 2
    small, large = epochs_worth_knowing(1 / 8, 0.03), epochs_worth_knowing(1 / 8, 0.3)
    assert 2 < small < large
    assert epochs_worth_knowing(1 / 8, 1.0) == epochs_worth_knowing(1 / 8, 0.99), "there is an end to it"
