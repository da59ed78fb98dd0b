"""The allocator against a naive model of it, and what two kinds of extents leave unusable."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.space import Space

ALIGN = 64


class Model:
    """Which unit of the space belongs to which block, one list item each."""

    def __init__(self, span: int) -> None:
        self.units: list[int | None] = [None] * (span // ALIGN)

    def holes(self) -> list[tuple[int, int]]:
        """(units, first unit) of each maximal free range."""
        found, start = [], None
        for at in range(len(self.units) + 1):
            free = at < len(self.units) and self.units[at] is None
            if free and start is None:
                start = at
            elif not free and start is not None:
                found.append((at - start, start))
                start = None
        return found

    def best(self, nbytes: int, high: bool) -> int | None:
        """Where the best fit lies, in bytes."""
        size = -(-nbytes // ALIGN)
        fits = [hole for hole in self.holes() if hole[0] >= size]
        if not fits:
            return None
        least = min(fits)[0]
        starts = [start for length, start in fits if length == least]
        return ALIGN * (max(starts) + least - size if high else min(starts))

    def set(self, offset: int, nbytes: int, owner: int | None) -> None:
        for at in range(offset // ALIGN, -(-(offset + nbytes) // ALIGN)):
            self.units[at] = owner


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 700), st.booleans()),
        st.tuples(st.just("free"), st.integers(0, 2**16), st.booleans()),
        st.tuples(st.just("trim"), st.integers(0, 2**16), st.integers(1, 700)),
    ),
    max_size=60,
)


@given(st.integers(0, 4096), OPS)
@settings(deadline=None)
def test_as_the_naive_model_says(span: int, ops: list[tuple[str, int, int]]) -> None:
    space, model = Space(span), Model(span)
    asked: dict[int, int] = {}
    for op, number, more in ops:
        if op == "take":
            wanted = model.best(number, bool(more))
            assert space.take(number, high=bool(more)) == wanted
            if wanted is not None:
                assert wanted % ALIGN == 0
                assert wanted + number <= space.span <= span
                assert all(unit is None for unit in model.units[wanted // ALIGN :][: -(-number // ALIGN)])
                model.set(wanted, number, wanted)
                asked[wanted] = number
        elif asked:
            offset = sorted(asked)[number % len(asked)]
            if op == "free":
                model.set(offset, asked.pop(offset), None)
                space.free(offset)
            elif more <= asked[offset]:
                model.set(offset, asked[offset], None)
                model.set(offset, more, offset)
                asked[offset] = more
                space.trim(offset, more)
        sizes = {offset: -(-size // ALIGN) * ALIGN for offset, size in asked.items()}
        holes = model.holes()
        assert len(space) == len(sizes)
        assert {offset: space.size_of(offset) for offset in sizes} == sizes
        assert space.used == sum(sizes.values())
        blocks = [(ALIGN * first, ALIGN * (first + units)) for units, first in sorted(holes)]
        assert space.free_blocks() == blocks and all(space.is_free(*block) for block in blocks)
        assert not any(space.is_free(start, end - ALIGN) for start, end in blocks)
        assert space.largest == ALIGN * max((units for units, _ in holes), default=0)
    for offset in asked:
        space.free(offset)
    assert (space.used, space.largest) == (0, space.span), "not one free block in the end"


@pytest.mark.parametrize("seed", range(3))
def test_many_blocks_do_not_overlap_and_all_come_back(seed: int) -> None:
    """Enough free blocks of different sizes that the sorted list of them has many parts, which split and end."""
    draw = random.Random(seed)
    span = 3000 * 4000
    space, live = Space(span), dict[int, int]()
    for turn in range(4):
        while (offset := space.take(nbytes := draw.randint(1, 8000), high=draw.random() < 0.3)) is not None:
            live[offset] = nbytes
        end = 0
        for at in sorted(live):
            assert at >= end
            end = at + live[at]
        assert end <= span
        assert space.largest < nbytes
        assert space.used + sum(end - start for start, end in space.free_blocks()) == span
        for offset in draw.sample(sorted(live), len(live) * (3 - turn) // 4 if turn < 3 else len(live)):
            space.free(offset)
            del live[offset]
    assert (len(space), space.largest) == (0, span)


def test_two_kinds_grow_towards_each_other() -> None:
    space = Space(1 << 20)
    low = [space.take(1000) for _ in range(3)]
    high = [space.take(1000, high=True) for _ in range(3)]
    assert low == [0, 1024, 2048]
    assert high == [(1 << 20) - 1024 * at for at in (1, 2, 3)]


def test_of_equal_holes_the_lowest_or_the_highest() -> None:
    space = Space(6400)
    offsets = [space.take(64) for _ in range(100)]
    for offset in offsets[10:90:2]:
        assert offset is not None
        space.free(offset)
    assert space.take(64, high=True) == offsets[88]
    assert space.take(64) == offsets[10]
    assert space.take(65) is None, "free, but not in one piece"


def test_what_cannot_be_is_refused() -> None:
    for arguments in ((-1,), (100, 48), (100, 0), (1 << 60,)):
        with pytest.raises(ValueError):
            Space(*arguments)
    space = Space(1024)
    offset = space.take(100)
    assert offset == 0
    for nbytes in (0, -5):
        with pytest.raises(ValueError):
            space.take(nbytes)
    for nbytes in (0, -5, 129):
        with pytest.raises(ValueError):
            space.trim(offset, nbytes)
    for wrong in (64, 128):
        for act in (space.free, space.size_of):
            with pytest.raises(KeyError):
                act(wrong)
    space.free(offset)
    with pytest.raises(KeyError):
        space.free(offset)
    assert space.largest == 1024


EQUAL = 150_528


@pytest.mark.parametrize("share", [0.2, 0.8, None])
def test_little_is_lost_to_fragments_under_random_eviction(share: float | None) -> None:
    """Augmented samples of one size from above, decoded ones of 500 to 600 KB from below, random ones evicted.

    ``share`` of the newcomers are augmented; None: now most, now few of them. What counts is what is in use, and
    what could still be by blocks of the equal size.
    """
    draw = random.Random(7)
    limit, steps = 1 << 28, 6000
    space, live = Space(limit), list[int]()
    least = 1.0
    for step in range(steps):
        equal = draw.random() < (share if share is not None else (0.1, 0.9)[step // 1000 % 2])
        nbytes = EQUAL if equal else draw.randint(500_000, 600_000)
        while (offset := space.take(nbytes, high=equal)) is None:
            at = draw.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            space.free(live.pop())
        live.append(offset)
        if step > 1500 and step % 100 == 0:
            least = min(least, (space.used + usable(space, live)) / limit)
    assert least >= 0.9


def usable(space: Space, live: list[int]) -> int:
    """Bytes that blocks of the equal size could still take."""
    end, total = 0, 0
    for offset in [*sorted(live), space.span]:
        total += (offset - end) // EQUAL * EQUAL
        end = offset + (space.size_of(offset) if offset < space.span else 0)
    return total
