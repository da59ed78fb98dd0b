"""A pool in several tiers: each has its own budget, and each sample lies in one of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.pool import Pool
from headrace.coordinate.shelf import Shelf
from headrace.core.addresses import Tier, pack, unpack
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sparse import PAGE
from headrace.eviction import EVICTIONS
from tests.coordinate.test_pool import needs_one

SIZE = 64
UNIVERSE = 64
TIERS = (Tier.ARENA, Tier.DISK)


def make(arena: int, disk: int, eviction: str = "lru", size: int = SIZE) -> tuple[Pool, Shelf]:
    """A pool with a shelf of extents of one size, with bytes in each tier."""
    pool = Pool(dict.fromkeys(TIERS, 1 << 20), needs_one, eviction, min(size, PAGE))
    pool.set_budget(arena, None)
    pool.set_budget(disk, None, Tier.DISK)
    shelf = pool.shelf(Form.DECODED, "d", UNIVERSE)
    shelf.learn([size])
    shelf.jobs |= {1, 2}
    return pool, shelf


def put(pool: Pool, shelf: Shelf, samples: list[int], needs: int = 1) -> list[Tier | None]:
    """Admit and store samples; where each lies. Nobody goes by who was refused before."""
    pool.changed()
    places = pool.admit(shelf, [needs] * len(samples), len(shelf.jobs))
    for sample, place in zip(samples, places, strict=True):
        if place is not None:
            pool.store(shelf, [sample], [place[0]], [SIZE], [0])
    return [None if place is None else unpack(place[0])[0] for place in places]


def test_newcomers_go_to_the_fastest_tier_with_room() -> None:
    pool, shelf = make(3 * SIZE, 2 * SIZE, "none")
    arena, disk = TIERS
    assert put(pool, shelf, list(range(6))) == [arena] * 3 + [disk] * 2 + [None]
    assert (pool.budget, pool.used, pool.blocks) == (5 * SIZE, 5 * SIZE, 5)
    pool.evict(shelf, [0, 4])
    assert put(pool, shelf, [6, 7, 8]) == [arena, disk, None]
    addresses = shelf.find([6, 7])[0].tolist()
    assert addresses == [pack(arena, 0), pack(disk, SIZE)], "where others lay"


def test_what_is_worth_more_goes_to_the_fastest_tier_and_what_goes_for_it_is_gone() -> None:
    pool, shelf = make(2 * SIZE, 2 * SIZE, "refcount")
    assert put(pool, shelf, [0, 4, 1, 5]) == [Tier.ARENA] * 2 + [Tier.DISK] * 2
    assert put(pool, shelf, [2], needs=1) == [Tier.ARENA], "samples 0 and 4 are needed by none"
    assert len(shelf) == 4 and (0 in shelf) + (4 in shelf) == 1 and pool.evictions == 1
    assert put(pool, shelf, [3], needs=1) == [Tier.ARENA] and not {0, 4} & set(shelf.cached.ids().tolist())
    assert put(pool, shelf, [6], needs=1) == [None], "the others are needed as much"
    assert put(pool, shelf, [7], needs=2) == [Tier.DISK], "and here something is worth less"
    assert len(shelf) == 4


def test_a_smaller_budget_of_one_tier_leaves_the_other_alone() -> None:
    pool, shelf = make(3 * SIZE, 3 * SIZE, "none")
    put(pool, shelf, list(range(6)))
    pool.set_budget(SIZE, None, Tier.DISK)
    left = shelf.cached.ids().tolist()
    assert left[:3] == [0, 1, 2] and len(left) == 4 and pool.rooms[Tier.DISK].used == SIZE
    pool.set_budget(0, None)
    assert shelf.cached.ids().tolist() == left[3:] and pool.rooms[Tier.ARENA].used == 0


def test_a_sample_that_went_and_came_again_elsewhere_is_no_victim_where_it_was() -> None:
    pool, shelf = make(3 * SIZE, 4 * SIZE)
    assert put(pool, shelf, [0, 1, 2]) == [Tier.ARENA] * 3
    assert put(pool, shelf, [3]) == [Tier.ARENA] and 0 not in shelf, "1 is next"
    pool.evict(shelf, [1])
    (place,) = pool.rooms[Tier.DISK].admit(shelf, [1], 2, displace=False)
    assert place is not None
    pool.store(shelf, [1], [place[0]], [SIZE], [0])
    for sample in (4, 5):
        (place,) = pool.admit(shelf, [1], 2)
        assert place is not None and unpack(place[0])[0] == Tier.ARENA
        pool.store(shelf, [sample], [place[0]], [SIZE], [0])
    assert shelf.cached.ids().tolist() == [1, 3, 4, 5], "2 went, as it was next but one"


def test_what_is_to_be_given_back_of_a_tier_is_told_by_its_own_offsets() -> None:
    pool, shelf = make(0, 8 * PAGE, "none", PAGE)
    put(pool, shelf, list(range(8)))
    pool.evict(shelf, list(range(8)))
    assert pool.loose(100 * PAGE) == []
    ranges = pool.loose(100 * PAGE, tier=Tier.DISK)
    assert sorted(ranges) == [(at * PAGE, (at + 1) * PAGE) for at in range(8)]


@settings(deadline=None)
@given(
    eviction=st.sampled_from(sorted(EVICTIONS)),
    arena=st.integers(0, 10),
    disk=st.integers(0, 10),
    ops=st.lists(
        st.tuples(
            st.sampled_from(("put", "put", "put", "evict", "read", "release", "arena", "disk", "changed")),
            st.sampled_from(CACHEABLE),
            st.integers(0, UNIVERSE - 1),
            st.integers(1, 300),
        ),
        max_size=60,
    ),
)
def test_every_budget_holds_and_what_is_read_stays(
    eviction: str, arena: int, disk: int, ops: list[tuple[str, Form, int, int]]
) -> None:
    budgets = {Tier.ARENA: arena * SIZE, Tier.DISK: disk * SIZE}
    pool, _ = make(*budgets.values(), eviction=eviction)
    shelves = {form: pool.shelf(form, "k", UNIVERSE, 128 if form == 3 else 0) for form in CACHEABLE}
    for shelf in shelves.values():
        shelf.learn([SIZE])
        shelf.jobs |= {1, 2}
    reading: list[tuple[Shelf, int, int]] = []
    for op, form, sample, nbytes in ops:
        shelf = shelves[form]
        if op == "put" and sample not in shelf:
            (place,) = pool.admit(shelf, [sample % 4], 2)
            if place is not None:
                pool.store(shelf, [sample], [place[0]], [min(nbytes, place[1])], [0])
        elif op == "evict" and sample in shelf and not shelf.busy.get(sample):
            pool.evict(shelf, [sample])
        elif op == "read" and sample in shelf:
            shelf.read([sample])
            reading.append((shelf, sample, shelf.address_of(sample)))
        elif op == "release" and reading:
            reader, some, _ = reading.pop()
            reader.release([some])
        elif op in ("arena", "disk"):
            tier = Tier[op.upper()]
            budgets[tier] = 4 * nbytes
            pool.set_budget(budgets[tier], None, tier)
        elif op == "changed":
            pool.changed()
        pool.fit()
        assert all(shelf.address_of(sample) == address for shelf, sample, address in reading)
        extents: dict[Tier, list[tuple[int, int]]] = {tier: [] for tier in TIERS}
        free: set[Tier] = set()
        for shelf in shelves.values():
            for some in shelf.cached.ids().tolist():
                tier, offset = unpack(shelf.address_of(some))
                extents[tier].append((offset, int(shelf.find([some])[1][0])))
                if not shelf.busy.get(some):
                    free.add(tier)
        for tier, found in extents.items():
            room = pool.rooms[tier]
            assert room.used <= budgets[tier] or tier not in free, "only what is read is more than the budget"
            assert len(room.space) == len(found)
            found.sort()
            assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(found))
    for shelf in shelves.values():
        for sample, readers in list(shelf.busy.items()):
            shelf.release([sample] * readers)
        pool.evict(shelf, shelf.cached.ids().tolist())
    assert pool.used == 0 == pool.blocks


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
def test_a_second_tier_without_a_budget_changes_nothing(eviction: str) -> None:
    """The same samples come, are used and go, with that tier and without it."""
    draw = np.random.default_rng(1)
    pools = [make(20 * SIZE, 0, eviction)[0], Pool({Tier.ARENA: 1 << 20}, needs_one, eviction, SIZE)]
    pools[1].set_budget(20 * SIZE, None)
    shelves = [pool.shelf(Form.DECODED, "d", UNIVERSE) for pool in pools]
    shelves[1].learn([SIZE])
    shelves[1].jobs |= {1, 2}
    for _ in range(200):
        samples = [one for one in draw.choice(UNIVERSE, 4, False).tolist() if one not in shelves[0]]
        used = draw.choice(UNIVERSE, 2, False).tolist()
        for pool, shelf in zip(pools, shelves, strict=True):
            put(pool, shelf, samples, needs=2)
            shelf.use([one for one in used if one in shelf] or [int(shelf.cached.ids()[0])], pool.tick())
        assert shelves[0].entries()[:, :6].tolist() == shelves[1].entries()[:, :6].tolist(), (
            "in the same places"
        )
    assert pools[0].evictions == pools[1].evictions
