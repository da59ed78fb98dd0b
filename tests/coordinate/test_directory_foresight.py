"""A job's own cache that knows what its rank needs: of several ranks, and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.forms import Form
from headrace.core.sparse import PAGE
from headrace.sampling import Draw, Geometry, UniformEpoch

SIZE = 400
_numbers = itertools.count()


def directory(samples: int, *, form: Form = Form.DECODED) -> Directory:
    """With room for so many samples, whose size it knows."""
    made = Directory(SIZE, {form: samples * PAGE}, 1 << 40)
    made._shelves[form].learn([PAGE])
    return made


def epoch(number: int, world_size: int, *, shuffle: bool = True, position: int = 0) -> Iterator[Draw]:
    geometry = Geometry(8, 0, world_size)
    draws = UniformEpoch(SIZE, geometry, seed=5, epoch=number, shuffle=shuffle, position=position)
    while (drawn := draws.draw()) is not None:
        yield drawn


def run(cache: Directory, drawn: Draw, *, lose: bool = False) -> int:
    """Prepare a batch in two orders, as workers do; how many of its rows were cached."""
    hits = 0
    orders = []
    for first in range(0, len(drawn.indices), 4):
        order = Order(next(_numbers), 0, 0, 1, first, 0, 0, 0, drawn.indices[first : first + 4].tobytes())
        cache.dress(order, drawn)
        orders.append(order)
    for order in orders:
        hits += len(order.forms) - list(order.forms).count(0)
        if lose:
            cache.lost(order)
            continue
        rows = [row for row, keep in enumerate(order.keep) if keep]
        grants = np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()
        published = [(row, form, address, PAGE) for row, (form, address, _) in zip(rows, grants, strict=True)]
        cache.done(order, OrderDone(order.id, [], published=np.array(published, np.int64).tobytes()))
    return hits


def hit_rate(cache: Directory, world_size: int, epochs: range, *, shuffle: bool = True) -> float:
    hits = rows = 0
    for number in epochs:
        for drawn in epoch(number, world_size, shuffle=shuffle):
            hits += run(cache, drawn)
            rows += len(drawn.indices)
            assert cache.pool.used <= cache.pool.budget
    return hits / rows


def test_a_rank_of_eight_hits_far_more_than_the_share_that_it_caches() -> None:
    cache = directory(40)
    hit_rate(cache, 8, range(12))
    assert hit_rate(cache, 8, range(12, 24)) > 0.3, "a tenth is cached"
    assert cache.pool.evictions > 0


def test_a_job_with_one_rank_keeps_what_it_has() -> None:
    cache = directory(40)
    hit_rate(cache, 1, range(1))
    there = cache._shelves[Form.DECODED].cached.ids().tolist()
    assert hit_rate(cache, 1, range(1, 4)) == 0.1
    assert cache._shelves[Form.DECODED].cached.ids().tolist() == there
    assert cache.pool.evictions == 0
    assert cache._foresight is None, "and no order is worked out for nothing"


def test_ranks_that_always_get_the_same_samples_keep_what_they_have() -> None:
    cache = directory(25)
    hit_rate(cache, 8, range(1), shuffle=False)
    assert hit_rate(cache, 8, range(1, 3), shuffle=False) == 0.5
    assert cache.pool.evictions == 0


@pytest.mark.parametrize("form", [Form.ENCODED, Form.DECODED])
def test_what_goes_is_needed_in_a_later_epoch_than_what_comes(form: Form) -> None:
    cache = directory(40, form=form)
    shelf = cache._shelves[form]
    for number in range(8):
        for drawn in epoch(number, 8):
            before = shelf.cached.ids()
            run(cache, drawn)
            gone = np.setdiff1d(before, shelf.cached.ids())
            if len(gone):
                assert cache._foresight is not None
                due, grain = cache._foresight.next_uses.due, cache._foresight.grain
                came = np.setdiff1d(shelf.cached.ids(), before)
                assert len(came) >= len(gone)
                nearest = np.sort(due[came] // grain)[: len(gone)]
                assert (np.sort(due[gone] // grain) > nearest).all()
                stay = np.setdiff1d(shelf.cached.ids(), drawn.indices)  # (those of the batch were being read)
                assert (due[gone] // grain).min() >= (due[stay] // grain).max()


def test_orders_that_are_lost_and_epochs_that_are_left_do_no_harm() -> None:
    cache = directory(40)
    for number in range(16):
        for place, drawn in enumerate(epoch(number, 8, position=80 if number % 3 == 1 else 0)):
            if place == 4 and number % 4 == 2:
                break
            run(cache, drawn, lose=place % 3 == 2)
    assert hit_rate(cache, 8, range(16, 24)) > 0.3
    assert not cache._shelves[Form.DECODED].busy


def test_an_order_that_changes_each_time_is_not_foreseen() -> None:
    cache = directory(40)
    for seed in range(4):
        draws = UniformEpoch(SIZE, Geometry(8, 0, 8), seed=seed, epoch=0, shuffle=True)
        while (drawn := draws.draw()) is not None:
            run(cache, drawn)
    assert cache._foresight is not None and cache._foresight.blind
    evictions = cache.pool.evictions
    for drawn in epoch(9, 8):
        run(cache, drawn)
    assert cache.pool.evictions == evictions, "so what is there stays"
