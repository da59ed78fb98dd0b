"""Copying ahead of need: newest first, nothing twice, nothing that others are about to read, all released."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.best_effort import _NEAR, _OVER, HORIZON, BestEffort


def samples_of(batch: int, count: int = 10) -> np.ndarray:
    return np.arange(batch * 100, batch * 100 + count)


def test_the_newest_is_copied_first_and_interrupts() -> None:
    ahead = BestEffort()
    assert ahead.next(4) is None
    ahead.commit(30, samples_of(30))
    ahead.commit(31, samples_of(31))
    found = ahead.next(4)
    assert found is not None and found[0] == 31 and found[1].tolist() == [3100, 3101, 3102, 3103]
    ahead.commit(32, samples_of(32, 3))
    assert [ahead.next(4)[0] for _ in range(6)] == [32, 31, 31, 30, 30, 30]  # type: ignore[index]
    assert ahead.next(4) is None


def test_the_nearest_are_left_to_those_who_prepare() -> None:
    ahead = BestEffort()
    for batch in range(10, 20):
        ahead.commit(batch, samples_of(batch))
    ahead.reached(12)
    assert list(ahead.waiting) == list(range(13 + _NEAR, 20))
    ahead.commit(12 + _NEAR, samples_of(0))
    assert min(ahead.waiting) == 13 + _NEAR


def test_what_was_copied_is_released_after_it_was_read() -> None:
    ahead = BestEffort()
    ahead.commit(20, samples_of(20))
    ahead.next(100)
    ahead.copied(20)
    assert ahead.reached(20 + _OVER) == []
    assert ahead.reached(21 + _OVER) == [20]
    assert ahead.reached(90) == []


def test_what_was_known_of_an_epoch_that_was_left_is_forgotten() -> None:
    ahead = BestEffort()
    ahead.reached(1, 0)
    ahead.commit(30, samples_of(30))
    ahead.reached(2, 0)
    assert list(ahead.waiting) == [30]
    ahead.reached(3, 1)
    assert not ahead.waiting
    ahead.commit(40, samples_of(40))
    assert list(ahead.waiting) == [40]


events = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 200), st.integers(1, 30)),
        st.tuples(st.just("reached"), st.integers(0, 200), st.just(0)),
        st.tuples(st.just("next"), st.integers(1, 20), st.just(0)),
    ),
    max_size=80,
)


@given(events)
def test_whatever_happens(events: list[tuple[str, int, int]]) -> None:
    ahead = BestEffort()
    now, known, given_out, copied, released = -1, {}, set(), set(), set()
    for what, number, count in events:
        if what == "commit":
            if number in known:
                continue
            ahead.commit(number, samples_of(number, count))
            known[number] = count
        elif what == "reached":
            now = max(now, number)
            for batch in ahead.reached(number):
                assert batch in copied and batch not in released and batch + _OVER < now
                released.add(batch)
        else:
            before = list(ahead.waiting)
            found = ahead.next(number)
            assert (found is None) == (not before)
            if found is not None:
                batch, samples = found
                assert batch == before[-1] > now + _NEAR and 0 < len(samples) <= number
                for sample in samples.tolist():
                    assert sample not in given_out and sample - 100 * batch < known[batch]
                    given_out.add(sample)
                ahead.copied(batch)
                copied.add(batch)
        assert len(ahead.waiting) <= 4 * HORIZON
    released.update(ahead.reached(10_000))
    assert released == copied
