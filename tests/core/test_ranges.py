"""The allocator of ranges, against a model that knows every address."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.ranges import Ranges

SPAN = 64
OPS = st.lists(
    st.tuples(st.sampled_from(("take", "some", "free", "all", "grow")), st.integers(0, 40)), max_size=60
)


class Model:
    """Each address by itself: free, or not."""

    def __init__(self) -> None:
        self.free = [False] * SPAN

    def runs(self) -> list[tuple[int, int]]:
        """Where free addresses begin, and how many there are in a row."""
        found = []
        at = 0
        for free, run in itertools.groupby(self.free):
            length = len(list(run))
            if free:
                found.append((at, length))
            at += length
        return found

    def mark(self, start: int, nbytes: int, free: bool) -> None:
        for at in range(start, start + nbytes):
            assert self.free[at] is not free, f"{at} twice"
            self.free[at] = free

    def take(self, nbytes: int) -> int | None:
        """From the smallest run that is large enough; of equal ones, the first."""
        large = [(length, start) for start, length in self.runs() if length >= nbytes]
        if not large:
            return None
        start = min(large)[1]
        self.mark(start, nbytes, False)
        return start


def check(ranges: Ranges, model: Model) -> None:
    """All that is free is there once, and one with its neighbours; nothing else is."""
    runs = model.runs()
    assert list(ranges) == runs
    assert len(ranges) == len(runs)
    assert ranges.total == sum(length for _, length in runs)
    assert ranges.largest == max((length for _, length in runs), default=0)


@given(OPS)
@settings(deadline=None)
def test_it_does_as_the_model_does(ops: list[tuple[str, int]]) -> None:
    ranges, model = Ranges(), Model()
    ranges.free(0, SPAN)
    model.mark(0, SPAN, True)
    held: list[tuple[int, int]] = []
    for op, number in ops:
        if op == "take":
            start, nbytes = ranges.take(number + 1), number + 1
            assert start == model.take(nbytes)
            held += [] if start is None else [(start, nbytes)]
        elif op == "some":
            nbytes, count = 1 + number % 7, number // 7
            found = ranges.take_some(nbytes, count)
            expected = [start for start in (model.take(nbytes) for _ in range(count)) if start is not None]
            assert found == expected
            held += [(start, nbytes) for start in found]
        elif op == "free" and held:
            start, nbytes = held.pop(number % len(held))
            ranges.free(start, nbytes)
            model.mark(start, nbytes, True)
        elif op == "all":
            gone, held = held[:number], held[number:]
            ranges.free_all(reversed(gone))
            for start, nbytes in gone:
                model.mark(start, nbytes, True)
        elif op == "grow" and number:  # new addresses, with or without a gap before them
            start = len(model.free) + number % 2
            model.free += [False] * (number % 2 + number)
            ranges.free(start, number)
            model.mark(start, number, True)
        check(ranges, model)


@given(st.permutations(range(12)), st.booleans())
def test_what_was_cut_up_is_one_again_in_whatever_order_it_comes_back(
    order: list[int], at_once: bool
) -> None:
    ranges = Ranges()
    ranges.free(100, 240)
    pieces = [(start, 20) for start in ranges.take_some(20, 12)]
    assert [start for start, _ in pieces] == list(range(100, 340, 20))
    assert ranges.total == ranges.largest == len(ranges) == 0 and ranges.take(1) is None
    if at_once:
        ranges.free_all(pieces[at] for at in order)
    else:
        for at in order:
            ranges.free(*pieces[at])
    assert list(ranges) == [(100, 240)]
    assert ranges.take(240) == 100


def test_the_smallest_that_is_large_enough_is_taken() -> None:
    ranges = Ranges()
    for start, nbytes in ((0, 50), (100, 10), (200, 20), (300, 20)):
        ranges.free(start, nbytes)
    assert ranges.take(15) == 200, "of equal ones the first"
    assert ranges.take(15) == 300
    assert ranges.take(5) == 215, "what is left of it is the smallest now"
    assert ranges.take(30) == 0


@pytest.mark.parametrize(("start", "nbytes"), [(-1, 5), (0, 0), (0, -3)])
def test_what_is_no_range_is_refused(start: int, nbytes: int) -> None:
    ranges = Ranges()
    with pytest.raises(ValueError):
        ranges.free(start, nbytes)
    assert list(ranges) == [] and ranges.total == 0
    for wrong in (0, -1):
        with pytest.raises(ValueError):
            ranges.take(wrong)
