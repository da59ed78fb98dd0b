"""More batches ahead for reads that take long, as many as they last for, and no more."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Bridge


def run(
    bridge: Bridge,
    batches: int,
    *,
    step: float,
    took: float,
    slow: float = 0.0,
    every: int = 0,
    room: int = 64,
):
    """Batches taken every ``step`` seconds; one in ``every`` takes ``slow`` seconds to fetch, which holds it up."""
    now, found = 0.0, 0
    for at in range(batches):
        late = bool(every) and at % every == every - 1
        now += step + (0.5 * slow if late else 0.0)
        found = bridge.taken(now, slow if late else took, room)
    return found


def test_what_is_fetched_in_a_step_needs_nothing():
    assert run(Bridge(), 200, step=0.05, took=0.02) == 0
    assert run(Bridge(), 200, step=0.05, took=0.0) == 0, "all from the cache"


def test_a_slow_read_is_bridged_by_as_many_steps_as_it_takes():
    for slow in (0.2, 0.5, 1.0):
        found = run(Bridge(), 400, step=0.05, took=0.01, slow=slow, every=20)
        assert slow / 0.05 - 1 <= found <= 1.2 * slow / 0.05 + 1


def test_one_in_a_thousand_is_not_worth_memory():
    assert run(Bridge(), 999, step=0.05, took=0.01, slow=1.0, every=1000) == 0


def test_memory_is_a_limit():
    assert run(Bridge(), 400, step=0.01, took=0.01, slow=2.0, every=20, room=7) <= 7
    assert run(Bridge(), 400, step=0.01, took=0.01, slow=2.0, every=20, room=0) == 0
    assert run(Bridge(), 400, step=0.001, took=0.01, slow=20.0, every=20, room=10_000) <= 64


def test_it_is_over_when_storage_is_fast_again():
    bridge = Bridge()
    assert run(bridge, 300, step=0.05, took=0.01, slow=0.5, every=10) > 5
    assert run(bridge, 4000, step=0.05, took=0.01) == 0


@given(st.integers(0, 2**32), st.floats(1e-4, 1.0), st.floats(1e-4, 5.0), st.integers(0, 100))
def test_never_less_than_none_nor_more_than_room(seed, step, took, room):
    chance, bridge, now = random.Random(seed), Bridge(), 0.0
    for _ in range(120):
        now += step * chance.expovariate(1.0)
        assert 0 <= bridge.taken(now, took * chance.expovariate(1.0), room) <= room


def test_what_other_ranks_have_met_is_bridged_before_it_comes():
    bridge = Bridge()
    found = [bridge.taken(0.05 * at, 0.01, 64, elsewhere=lambda: 0.5) for at in range(1, 40)]
    assert found[-1] >= 9
    assert bridge.slow < 0.05, "others are told what was seen here"


def test_what_nobody_meets_any_more_is_forgotten():
    bridge = Bridge()
    for at in range(1, 40):
        bridge.taken(0.05 * at, 0.01, 64, elsewhere=lambda: 0.5)
    found = [bridge.taken(0.05 * at, 0.01, 64, elsewhere=lambda: 0.01) for at in range(40, 1500)]
    assert found[-1] == 0
