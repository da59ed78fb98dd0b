"""The pool: room, budgets and what has to go."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.coordinate.parts import Part
from headrace.coordinate.pool import Pool
from headrace.coordinate.room import Room
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.victims import smallest
from headrace.core.addresses import Tier
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sparse import PAGE
from headrace.eviction import EVICTIONS
from tests.coordinate.jobs import counted

SIZE = 64
UNIVERSE = 64


def needs_one(shelf: Shelf, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every sample is needed as often as its number says."""
    return ids % 4


def make(
    budget: int, eviction: str = "lru", limits: dict[Part, int] | None = None, size: int = SIZE
) -> tuple[Pool, Shelf]:
    """A pool with a shelf of extents of 64 bytes, or another size, in a machine whose pages are as small."""
    pool = Pool({Tier.ARENA: 1 << 20}, needs_one, eviction, min(size, PAGE))
    pool.set_budget(budget, limits)
    shelf = pool.shelf(Form.DECODED, "d", UNIVERSE)
    shelf.learn([size])
    shelf.jobs |= {1, 2}
    return pool, shelf


def arena(pool: Pool) -> Room:
    """The room in the arena."""
    return pool.rooms[Tier.ARENA]


def cost(pool: Pool, shelf: Shelf) -> int:
    """What the samples on a shelf cost."""
    found = shelf.find(shelf.cached.ids().tolist())
    places = zip(*(column.tolist() for column in found), strict=True)
    page = arena(pool).space.page
    return sum(counted(arena(pool).space.size_of(offset), nbytes, page) for offset, nbytes in places)


def put(pool: Pool, shelf: Shelf, sample: int, needs: int = 1, size: int = SIZE) -> bool:
    """Admit and store; whether there was room."""
    (place,) = pool.admit(shelf, [needs], len(shelf.jobs))
    if place is None:
        return False
    pool.store(shelf, [sample], [place[0]], [min(size, place[1])], [0])
    return True


@settings(deadline=None)
@given(
    eviction=st.sampled_from(sorted(EVICTIONS)),
    budget=st.integers(0, 20 * SIZE),
    limited=st.booleans(),
    ops=st.lists(
        st.tuples(
            st.sampled_from(
                ("put", "put", "grant", "give back", "store", "read", "release", "budget", "changed")
            ),
            st.sampled_from(CACHEABLE),
            st.integers(0, UNIVERSE - 1),
            st.integers(1, 300),
        ),
        max_size=60,
    ),
)
def test_the_budget_holds_and_what_is_read_stays(
    eviction: str, budget: int, limited: bool, ops: list[tuple[str, Form, int, int]]
) -> None:
    pool = Pool({Tier.ARENA: 1 << 20}, needs_one, eviction, SIZE)
    limits = {(Form.ENCODED,): budget // 4, (Form.DECODED,): budget // 2, (Form.AUGMENTED,): budget // 4}
    pool.set_budget(budget, limits if limited else None)
    shelves = {form: pool.shelf(form, "k", UNIVERSE, 128 if form == 3 else 0) for form in CACHEABLE}
    for shelf in shelves.values():
        shelf.learn([SIZE])
        shelf.jobs |= {1, 2}
    granted: list[tuple[Form, int, int]] = []
    readers: list[tuple[Form, int, int]] = []
    for op, form, sample, nbytes in ops:
        shelf = shelves[form]
        if op in ("put", "grant") and sample not in shelf:
            (place,) = pool.admit(shelf, [sample % 4], 2)
            if place is not None:
                granted.append((form, *place))
                assert arena(pool).parts.used[form] <= (limits[form,] if limited else budget)
        if op in ("put", "store") and granted and sample not in shelves[granted[-1][0]]:
            kind, offset, size = granted.pop()
            pool.store(shelves[kind], [sample], [offset], [min(nbytes, size)], [0])
        elif op == "give back" and granted:
            pool.give_back([granted.pop()[1]])
        elif op == "read" and sample in shelf:
            shelf.read([sample])
            readers.append((form, sample, int(shelf.find([sample])[0][0])))
        elif op == "release" and readers:
            kind, one, _ = readers.pop()
            shelves[kind].release([one])
        elif op == "budget" and not granted and not readers:
            budget = 7 * nbytes
            pool.set_budget(budget, None)
            limited = False
        elif op == "changed":
            pool.changed()
        pool.fit()
        within = {
            kind: not len(shelves[kind].entries()) for kind in CACHEABLE
        }  # nothing that could go is there
        assert pool.used <= budget or all(within.values())
        assert pool.used == sum(arena(pool).parts.used.values()) and min(arena(pool).parts.used.values()) >= 0
        for kind, one, offset in readers:
            assert shelves[kind].find([one])[0][0] == offset
        blocks = sorted(
            [(offset, size) for _, offset, size in granted]
            + [
                (int(shelves[kind].find([one])[0][0]), int(shelves[kind].find([one])[1][0]))
                for kind in CACHEABLE
                for one in shelves[kind].cached.ids().tolist()
            ]
        )
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(blocks))
    for one in granted:
        pool.give_back([one[1]])
    assert pool.used == sum(cost(pool, shelf) for shelf in shelves.values())
    assert len(arena(pool).space) == sum(map(len, shelves.values()))


@pytest.mark.parametrize(("eviction", "gone"), [("lru", 1), ("fifo", 0), ("refcount", 0)])
def test_what_goes_first(eviction: str, gone: int) -> None:
    """Of 0..3, sample n is needed n times; sample 0 was used last."""
    pool, shelf = make(4 * SIZE, eviction)
    for sample in range(4):
        assert put(pool, shelf, sample)
    shelf.use([0], pool.tick())
    assert put(pool, shelf, 7, needs=3)
    assert gone not in shelf and 7 in shelf and len(shelf) == 4
    assert pool.evictions == 1


def test_without_eviction_the_first_stay() -> None:
    pool, shelf = make(4 * SIZE, "none")
    assert [put(pool, shelf, sample, needs=3) for sample in range(6)] == [True] * 4 + [False] * 2


def test_nothing_goes_for_what_may_not_displace() -> None:
    pool, shelf = make(2 * SIZE)
    assert put(pool, shelf, 0) and put(pool, shelf, 1)
    assert pool.admit(shelf, [3, 2], 2, displace=False) == [None, None]
    assert len(shelf) == 2


def test_samples_that_are_read_are_not_evicted_for_others() -> None:
    pool, shelf = make(3 * SIZE)
    assert all(put(pool, shelf, sample) for sample in range(3))
    shelf.read([0, 1, 2])
    assert not put(pool, shelf, 5)
    shelf.release([1])
    pool.changed()
    assert put(pool, shelf, 5)
    assert 1 not in shelf and 0 in shelf and 2 in shelf


def test_pages_that_an_extent_does_not_fill_do_not_count() -> None:
    pool, shelf = make(20 * PAGE, size=PAGE)
    shelf.learn([5 * PAGE])
    (place,) = pool.admit(shelf, [1], 2)
    assert place is not None and place[1] == 10 * PAGE and pool.used == 3 * PAGE, "the mean is expected"
    pool.store(shelf, [3], [place[0]], [PAGE + 1], [0])
    assert pool.used == 2 * PAGE and shelf.bytes == PAGE + 1


class Memory:
    """What a machine holds: the pages that were written and not given back."""

    def __init__(self) -> None:
        self.pages: set[int] = set()

    def write(self, offset: int, nbytes: int) -> None:
        """Fill a block."""
        self.pages.update(range(offset // PAGE, -(-(offset + nbytes) // PAGE)))

    def punch(self, start: int, end: int) -> None:
        """Give back the whole pages of a range."""
        self.pages.difference_update(range(-(-start // PAGE), end // PAGE))

    @property
    def held(self) -> int:
        """In bytes."""
        return PAGE * len(self.pages)


def test_small_extents_share_pages_that_count_as_a_whole() -> None:
    pool, shelf = Pool({Tier.ARENA: 1 << 30}, needs_one, "lru"), Shelf(Form.DECODED, "d", 1000)
    pool.set_budget(70 * PAGE, None)
    pool.shelves[Form.DECODED, "d"] = shelf
    shelf.learn([3136])  # a row of CIFAR
    memory = Memory()
    for sample in range(90):
        assert put(pool, shelf, sample, size=3136)
        memory.write(int(shelf.find([sample])[0][0]), 3136)
        assert memory.held <= pool.used <= memory.held + 7 * PAGE
    assert pool.used == 70 * PAGE == memory.held and pool.evictions == 0, "nine in seven pages"
    assert put(pool, shelf, 90, size=3136) and pool.evictions == 1 and pool.used == 70 * PAGE
    pool.set_budget(65 * PAGE, None)
    assert pool.used == 63 * PAGE and len(shelf) == 81, "what shares pages goes together"


@pytest.mark.parametrize(("left", "goes"), [(9, False), (6, True), (1, True)])
def test_a_slab_goes_for_extents_of_another_size_if_it_is_worth_less_as_a_whole(
    left: int, goes: bool
) -> None:
    """What is left of nine extents in a slab is needed by three jobs each, and newcomers by two."""
    pool = Pool({Tier.ARENA: 1 << 30}, lambda _, ids: np.full(len(ids), 3), "auto")
    pool.set_budget(7 * PAGE, None)
    shelf, other = pool.shelf(Form.DECODED, "d", UNIVERSE), pool.shelf(Form.DECODED, "other", UNIVERSE)
    for one, size in ((shelf, 3136), (other, 3072)):
        one.learn([size])
        one.jobs |= {1, 2, 3}
    assert all(put(pool, shelf, sample, size=3136) for sample in range(9))
    shelf.read([8])
    pool.evict(shelf, list(range(9 - left)))
    assert not put(pool, other, 1, needs=2, size=3072) and len(shelf) == left, "one is in use"
    shelf.release([8])
    pool.reconsider()
    assert put(pool, other, 1, needs=2, size=3072) is goes
    assert len(shelf) == (0 if goes else left) and pool.used <= 7 * PAGE


def test_a_budget_that_is_smaller_than_a_slab_is_filled_all_the_same() -> None:
    pool, shelf = Pool({Tier.ARENA: 1 << 30}, needs_one, "none"), Shelf(Form.DECODED, "d", UNIVERSE)
    pool.set_budget(4 * PAGE + 10, None)
    pool.shelves[Form.DECODED, "d"] = shelf
    shelf.learn([832])
    assert [put(pool, shelf, sample, size=832) for sample in range(21)] == [True] * 19 + [False] * 2
    assert pool.used == 4 * PAGE
    pool.evict(shelf, list(range(19)))
    assert pool.used == 0 == arena(pool).space.idle


@pytest.mark.parametrize("eviction", ["auto", "lru", "none"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_what_the_machine_holds_is_the_budget_and_no_more_for_small_extents(eviction: str, seed: int) -> None:
    """Extents of three small sizes that come, are read and go: one form after the other has most of them."""
    draw = np.random.default_rng(seed)
    budget = 400 * PAGE
    pool, memory = Pool({Tier.ARENA: 1 << 34}, needs_one, eviction), Memory()
    pool.set_budget(budget, None)
    sizes = {Form.ENCODED: (1000, 2400), Form.DECODED: (3136, 3136), Form.AUGMENTED: (3072, 3072)}
    shelves = {
        form: pool.shelf(form, "k", 1 << 16, 3072 if form == Form.AUGMENTED else 0) for form in CACHEABLE
    }
    for shelf in shelves.values():
        shelf.jobs |= {1, 2}
    reading: list[tuple[Shelf, int]] = []
    most = 0
    for turn in range(1500):
        form = CACHEABLE[(turn // 250) % 3] if draw.random() < 0.8 else CACHEABLE[int(draw.integers(3))]
        shelf = shelves[form]
        samples = draw.choice(1 << 16, 8, replace=False).tolist()
        samples = [sample for sample in samples if sample not in shelf]
        for sample, place in zip(samples, pool.admit(shelf, [3] * len(samples), 2), strict=True):
            if place is None:
                continue
            nbytes = int(draw.integers(*sizes[form], endpoint=True))
            if nbytes > place[1] or draw.random() < 0.1:
                pool.give_back([place[0]])
                shelf.too_small(nbytes)
                continue
            memory.write(place[0], nbytes)
            pool.store(shelf, [sample], [place[0]], [nbytes], [0])
        cached = shelf.cached.ids()
        if len(cached) and draw.random() < 0.3:
            some = int(draw.choice(cached))
            if draw.random() < 0.3 and not shelf.busy.get(some):
                pool.evict(shelf, [some])
            else:
                shelf.read([some])
                reading.append((shelf, some))
        while len(reading) > 20:
            reader, some = reading.pop(0)
            reader.release([some])
        pool.fit()
        for start, end in pool.loose(memory.held, most=100):
            memory.punch(start, end)
        assert pool.used <= budget
        assert memory.held <= budget + budget // 16, "what is free for others to fill is soon given back"
        most = max(most, memory.held)
    live = [
        (int(at), int(nbytes))
        for shelf in shelves.values()
        for at, nbytes in shelf.entries()[:, 1:3].tolist()
    ]
    for shelf, some in {(shelf, some) for shelf, some in reading if some in shelf}:
        live.append((int(shelf.find([some])[0][0]), int(shelf.find([some])[1][0])))
    assert most > 0.95 * budget
    for offset, nbytes in live:
        assert memory.pages.issuperset(range(offset // PAGE, -(-(offset + nbytes) // PAGE))), (
            "never given back"
        )
    assert sum(nbytes for _, nbytes in live) > 0.6 * budget, "and is well used"


def test_a_split_limits_each_form() -> None:
    limits: dict[Part, int] = {(Form.ENCODED,): 0, (Form.DECODED,): 2 * SIZE, (Form.AUGMENTED,): 8 * SIZE}
    pool, shelf = make(10 * SIZE, "none", limits)
    assert pool.limited and not pool.allows(Form.ENCODED) and pool.allows(Form.DECODED)
    assert [put(pool, shelf, sample) for sample in range(3)] == [True, True, False]


def test_a_smaller_budget_evicts_what_is_worth_least() -> None:
    pool, shelf = make(8 * SIZE)
    assert all(put(pool, shelf, sample) for sample in range(8))
    pool.set_budget(3 * SIZE, None)
    assert shelf.cached.ids().tolist() == [5, 6, 7] and pool.used == 3 * SIZE, "the longest unused go"


@pytest.mark.parametrize("eviction", ["auto", "none"])
def test_a_smaller_budget_holds_whatever_the_policy(eviction: str) -> None:
    pool, shelf = make(8 * SIZE, eviction)
    assert all(put(pool, shelf, sample) for sample in range(8))
    shelf.read([2])
    pool.set_budget(SIZE, None)
    assert shelf.cached.ids().tolist() == [2]
    pool.set_budget(0, None)
    assert pool.used == SIZE, "it is being read"


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_unequal_sizes_fill_the_budget(sigma: float) -> None:
    """Sizes as of photos from everywhere: the budget is what they fill, not what the largest would."""
    pool, shelf = make(0)
    budget = 1 << 30
    pool = Pool({Tier.ARENA: 16 * budget}, needs_one, "lru")
    pool.set_budget(budget, None)
    shelf = pool.shelf(Form.DECODED, "d", 10_000)
    shelf.jobs |= {1, 2}
    draw = np.random.default_rng(5)
    sizes = np.maximum(1, 500_000 * np.exp(sigma * draw.standard_normal(10_000))).astype(int).tolist()
    kept = 0
    for at in range(0, 10_000, 16):
        some = list(zip(range(at, at + 16), pool.admit(shelf, [1] * 16, 2), strict=True))
        assert pool.used <= budget
        for sample, place in some:
            assert place is not None
            if sizes[sample] <= place[1]:
                pool.store(shelf, [sample], [place[0]], [sizes[sample]], [0])
                kept += 1
            else:
                pool.give_back([place[0]])
                shelf.too_small(sizes[sample])
        pool.fit()
        assert pool.used <= budget
        if at > 5000:
            assert pool.used > 0.98 * budget
    assert kept > 9_900, "nearly all were worth it"
    assert pool.used == cost(pool, shelf)


def test_what_the_machine_holds_beyond_the_budget_is_given_back() -> None:
    pool, shelf = make(10 * PAGE, "none", size=PAGE)
    shelf.too_small(2 * PAGE)
    assert all(put(pool, shelf, sample, size=PAGE) for sample in range(10))
    assert pool.loose(10 * PAGE) == []
    pool.evict(shelf, [1, 2, 7])
    assert pool.loose(10 * PAGE) == [], "it may be filled again, at less cost than new memory"
    each = shelf.capacity  # twice the largest that was seen: the next one may be the largest
    assert each == 4 * PAGE
    blocks = {(each * at, each * (at + 1)) for at in (1, 2, 7)}
    tails = {(each * at + PAGE, each * (at + 1)) for at in (0, 3, 4, 5, 6, 8, 9)}
    first = set(pool.loose(12 * PAGE, most=2))
    assert len(first) == 2 and blocks >= first
    assert put(pool, shelf, 7, size=PAGE)
    (grant,) = pool.admit(shelf, [1], 2)
    assert grant is not None
    rest = set(pool.loose(12 * PAGE, most=100))
    taken = {block for block in blocks if block[0] in arena(pool).space}
    at = int(shelf.find([7])[0][0])
    assert len(taken) == 2 and grant[0] != at
    assert rest == tails | {(at + PAGE, at + each)} | (blocks - first - taken)


def test_what_was_found_loose_and_is_another_blocks_now_stays() -> None:
    """A block is found to be free, is used by an extent that turns out small, and its end by another one."""
    pool, shelf = make(64 * PAGE, "none", size=4 * PAGE)
    assert all(put(pool, shelf, sample, size=4 * PAGE) for sample in range(4))
    pool.evict(shelf, [0, 1, 2, 3])
    assert len(pool.loose(100 * PAGE, most=1)) == 1
    pool.set_budget(64 * 4 * PAGE, None)  # so the first extents of a new shelf get blocks of that size
    new = pool.shelf(Form.ENCODED, "new", UNIVERSE)
    places = [place[0] for place in pool.admit(new, [1] * 4, 2) if place is not None]
    assert len(places) == 4
    pool.store(new, range(4), places, [PAGE] * 4, [0] * 4)
    others = pool.shelf(Form.AUGMENTED, "others", UNIVERSE, body=2 * PAGE)
    memory = Memory()
    for sample in range(4):
        assert put(pool, others, sample, size=2 * PAGE)
        memory.write(int(others.find([sample])[0][0]), 2 * PAGE)
    pool.evict(new, [0, 1, 2, 3])
    assert memory.held == 8 * PAGE
    for _ in range(20):
        for start, end in pool.loose(1000 * PAGE):
            memory.punch(start, end)
    assert memory.held == 8 * PAGE, "what they were filled with is there"


def test_memory_that_is_filled_again_last_is_given_back_first_and_once() -> None:
    pool, shelf = make(20 * PAGE, "none", size=PAGE)
    memory = Memory()
    for sample in range(20):
        assert put(pool, shelf, sample, size=PAGE)
        memory.write(int(shelf.find([sample])[0][0]), PAGE)
    pool.evict(shelf, list(range(8)))
    (soon,) = arena(pool).space.take(shelf.capacity)
    arena(pool).space.free([soon])
    given = [pool.loose(30 * PAGE, most=1) for _ in range(8)]
    starts = [start for ranges in given for start, _ in ranges]
    assert len(starts) == len(set(starts)) == 8 and starts[-1] == soon, (
        "the first that would be filled is last"
    )
    assert pool.loose(30 * PAGE) == [], "there is nothing left in them"
    assert put(pool, shelf, 0, size=PAGE)
    pool.evict(shelf, [0])
    assert [start for start, _ in pool.loose(30 * PAGE)] == [soon], "it was filled meanwhile"


def test_what_was_found_loose_is_forgotten_when_blocks_are_cut_anew() -> None:
    pool = Pool({Tier.ARENA: 64 * 64}, needs_one, "none", SIZE)
    pool.set_budget(1 << 20, None)
    shelf = pool.shelf(Form.DECODED, "d", UNIVERSE)
    shelf.learn([SIZE])
    assert all(put(pool, shelf, sample) for sample in range(64))
    pool.evict(shelf, list(range(32)))
    assert len(pool.loose(2 << 20, most=1)) == 1
    other = pool.shelf(Form.AUGMENTED, "a", UNIVERSE, body=16 * SIZE)
    (place,) = pool.admit(other, [1], 2)
    assert place is not None and arena(pool).space.cuts == 1
    for _ in range(40):
        for start, end in pool.loose(2 << 20):
            assert end <= place[0] or place[0] + place[1] <= start


def test_nothing_goes_for_the_want_of_addresses() -> None:
    pool = Pool({Tier.ARENA: 32 * SIZE}, needs_one, "lru", SIZE)
    pool.set_budget(1 << 20, None)
    shelf = pool.shelf(Form.DECODED, "d", UNIVERSE)
    shelf.learn([SIZE])
    shelf.jobs |= {1, 2}
    assert [put(pool, shelf, sample) for sample in range(40)] == [True] * 32 + [False] * 8
    assert pool.evictions == 0 and len(shelf) == 32


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]), max_size=60), st.integers(1, 20))
def test_the_smallest_are_those_that_a_sort_finds(values: list[float], count: int) -> None:
    array = np.array(values, np.float64)
    assert smallest(array, count).tolist() == np.argsort(array, kind="stable")[:count].tolist()


@given(
    st.sampled_from(sorted(EVICTIONS)),
    st.integers(0, 12),
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
)
def test_many_newcomers_are_admitted_as_one_after_the_other(
    eviction: str, cached: int, needs: list[int]
) -> None:
    found = []
    for together in (True, False):
        pool, shelf = make(10 * PAGE, eviction, size=PAGE)
        for sample in range(cached):
            put(pool, shelf, sample, size=PAGE)
        if together:
            places = pool.admit(shelf, needs, 2)
        else:
            places = [place for need in needs for place in pool.admit(shelf, [need], 2)]
        found.append((places, shelf.cached.ids().tolist()))
    assert found[0] == found[1]
