"""Resources that tasks share: nobody is served too early, too late, or out of nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.forms import Form
from headrace.simulate import read_scenario
from headrace.simulate.clock import Clock
from headrace.simulate.order_cost import Sizes
from headrace.simulate.resources import Shared, Thread

Task = tuple[float, float, bool]
TASKS = st.lists(
    st.tuples(st.floats(0, 5, allow_subnormal=False), st.floats(0.001, 4), st.booleans()),
    min_size=1,
    max_size=12,
)
"""When each begins, its work, and whether it is urgent."""


def by_hand(tasks: list[Task], capacity: float, most: float) -> list[float]:
    """When each task ends, by going from one change to the next."""
    left = [work for _, work, _ in tasks]
    ends = [math.inf] * len(tasks)
    now = 0.0
    while math.inf in ends:
        here = [n for n, (begin, _, _) in enumerate(tasks) if begin <= now and ends[n] == math.inf]
        later = min((begin for begin, _, _ in tasks if begin > now), default=math.inf)
        if not here:
            now = later
            continue
        paces: dict[int, float] = {}
        room = capacity
        for urgent in (True, False):
            some = [n for n in here if tasks[n][2] == urgent]
            pace = min(most, room / len(some)) if some else 0.0
            room = max(0.0, room - pace * len(some))
            paces |= dict.fromkeys(some, pace)
        span = min(later - now, *(left[n] / paces[n] for n in here if paces[n] > 0))
        now += span
        for n in here:
            left[n] -= paces[n] * span
            if left[n] <= 1e-9:
                ends[n] = now
    return ends


@given(TASKS, st.floats(0.5, 4), st.floats(0.5, 2))
def test_tasks_end_when_they_must(tasks: list[Task], capacity: float, most: float) -> None:
    most = min(most, capacity)
    clock = Clock()
    shared = Shared(clock, capacity, most)
    ends = [math.inf] * len(tasks)

    def end(number: int) -> None:
        ends[number] = clock.now

    for number, (begin, work, urgent) in enumerate(tasks):
        clock.at(begin, shared.add_urgent if urgent else shared.add, work, end, number)
    clock.run()
    assert ends == pytest.approx(by_hand(tasks, capacity, most), abs=1e-6)
    assert shared.used() == pytest.approx(sum(work for _, work, _ in tasks), abs=1e-6)
    assert len(shared) == 0


def test_a_thread_does_one_thing_at_a_time() -> None:
    clock = Clock()
    thread = Thread(clock, Shared(clock, 2.0, 1.0))
    done: list[tuple[str, float]] = []
    for name, seconds in (("a", 1.0), ("b", 0.0), ("c", 2.0)):
        thread.do(seconds, lambda name: done.append((name, clock.now)), name)
    clock.run()
    assert done == [("a", pytest.approx(1.0)), ("b", pytest.approx(1.0)), ("c", pytest.approx(3.0))]
    assert thread.spent == 3.0


def test_calls_of_one_moment_keep_their_order() -> None:
    clock = Clock()
    seen: list[int] = []
    for number in range(5):
        clock.at(1.0, seen.append, number)
    clock.at(0.5, seen.append, -1)
    clock.run()
    assert seen == [-1, 0, 1, 2, 3, 4] and clock.now == 1.0


def test_sizes_are_mixed_as_said_and_stay_the_same() -> None:
    data = {
        "samples": 1,
        "encoded": 100,
        "decoded": 1000,
        "augmented": 500,
        "mix": [[0.25, 2.0], [0.75, 2 / 3]],
    }
    sizes = Sizes(read_scenario({"data": data, "jobs": [{}]}))
    samples = np.arange(20_000)
    decoded = sizes.of(Form.DECODED, samples)
    assert set(decoded.tolist()) == {2000, 666}
    assert np.mean(decoded == 2000) == pytest.approx(0.25, abs=0.02)
    assert sizes.encoded(samples) == pytest.approx(100 * len(samples), rel=0.05)
    assert set(sizes.of(Form.AUGMENTED, samples[:9]).tolist()) == {500}
    assert (sizes.of(Form.DECODED, samples[7:16]) == decoded[7:16]).all()
