"""``auto`` where the cache has no room, and what it leaves for later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bits import Bits, Words
from headrace.sampling import Auto, CacheView, Remaining

SIZE = 300


def words(*parts: range) -> Words:
    """A set of ranges."""
    return Bits.of(SIZE, [one for part in parts for one in part]).words


def jobs(*parts: range) -> Remaining:
    """Jobs 0, 1, ... that need these."""
    remaining = Remaining(SIZE)
    for job, part in enumerate(parts):
        remaining.join(job, Bits.of(SIZE, part))
    return remaining


@pytest.mark.parametrize(("room", "new"), [(0, 0), (3, 3), (10, 10), (99, 10)])
def test_beyond_the_room_it_takes_what_others_are_preparing(room: int, new: int) -> None:
    view = CacheView((), words(range(100, 150)), (1,), room)
    drawn = Auto().draw(jobs(range(SIZE), range(SIZE)), 0, 10, view, 5).tolist()
    assert sum(not 100 <= one < 150 for one in drawn) == new
    assert all(100 <= one < 150 for one in drawn[new:]), "those that are pending come last"


def test_hits_come_before_anything_else_whatever_the_room() -> None:
    view = CacheView((words(range(20)),), words(range(100, 150)), (1,), 0)
    drawn = Auto().draw(jobs(range(SIZE), range(SIZE)), 0, 30, view, 5).tolist()
    assert sorted(drawn[:20]) == list(range(20))
    assert all(100 <= one < 150 for one in drawn[20:])


def test_without_room_and_without_anything_pending_it_prepares_all_the_same() -> None:
    view = CacheView((), words(range(4)), (1,), 0)
    drawn = Auto().draw(jobs(range(SIZE), range(SIZE)), 0, 10, view, 5).tolist()
    assert len(set(drawn)) == 10 and sorted(drawn[6:]) == [0, 1, 2, 3]


@pytest.mark.parametrize("room", [0, 5, 1 << 62])
def test_what_is_cached_for_others_alone_comes_after_everything_new(room: int) -> None:
    later = words(range(0, 200))
    view = CacheView((), words(), (1,), room, later)
    remaining = jobs(range(SIZE), range(0, 250))
    drawn = Auto().draw(remaining, 0, 100, view, 5).tolist()
    assert sorted(drawn) == list(range(200, SIZE))
    rest = Auto().draw(remaining, 0, 10, view, 6).tolist()
    assert len(set(rest)) == 10 and max(rest) < 200


def test_pending_ones_come_before_those_for_later() -> None:
    view = CacheView((), words(range(50)), (1,), 1 << 62, words(range(50, SIZE)))
    drawn = Auto().draw(jobs(range(SIZE), range(SIZE)), 0, 60, view, 5).tolist()
    assert set(range(50)) <= set(drawn) and len(set(drawn)) == 60


SETS = st.sets(st.integers(0, SIZE - 1))


@given(
    needed=SETS,
    ready=SETS,
    coming=SETS,
    later=st.none() | SETS,
    room=st.integers(0, 80),
    count=st.integers(1, 90),
)
def test_it_draws_as_many_as_there_are_once_each(
    needed: set[int], ready: set[int], coming: set[int], later: set[int] | None, room: int, count: int
) -> None:
    remaining = Remaining(SIZE)
    remaining.join(0, Bits.of(SIZE, sorted(needed)))
    remaining.join(1, Bits.of(SIZE, range(SIZE)))
    sets = [Bits.of(SIZE, sorted(part)).words for part in (ready, coming, later or ())]
    view = CacheView((sets[0],), sets[1], (1,), room, None if later is None else sets[2])
    drawn = Auto().draw(remaining, 0, count, view, 9).tolist()
    assert len(drawn) == len(set(drawn)) == min(count, len(needed))
    assert set(drawn) <= needed
    assert remaining.left(0) == len(needed) - len(drawn)
    hits = needed & ready
    assert len(hits & set(drawn)) == min(count, len(hits)), "hits first"
