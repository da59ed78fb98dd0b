"""A circuit breaker: what has to hold whatever fails."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.breaker import Breaker


@given(st.lists(st.tuples(st.floats(0.01, 40), st.booleans()), max_size=60))
def test_who_failed_is_asked_less_and_less_often_and_again_as_soon_as_it_is_well(
    steps: list[tuple[float, bool]],
) -> None:
    breaker, now, failures, last = Breaker(), 0.0, 0, 0.0
    for seconds, well in steps:
        now += seconds
        rest = min(30.0, 2.0 ** (failures - 1)) if failures else 0.0
        may = breaker.may_ask(now)
        assert may == (not failures or now >= last + rest)
        if not may:
            continue
        if failures:
            assert not breaker.may_ask(now), "one at a time finds out"
        if well:
            breaker.went_well()
            failures = 0
        else:
            assert breaker.failed(now) == (failures == 0)
            failures, last = failures + 1, now
