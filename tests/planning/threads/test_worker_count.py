"""Workers of one rank, and batches in the making."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.threads import CompletionTimes, Lead, batches_ahead, wanted

SECONDS = st.floats(0, 1e4)


@given(
    fetch=SECONDS,
    request=SECONDS,
    cores=st.integers(1, 256),
    each=st.floats(0, 1e12),
    limit=st.floats(0, 1e13),
)
def test_workers_keep_up_within_cores_and_memory(
    fetch: float, request: float, cores: int, each: float, limit: float
) -> None:
    count = wanted(fetch, request, cores, each, limit)
    assert 1 <= count <= cores
    assert count == 1 or each * count <= limit * (1 + 1e-9)
    if count < cores and (count + 1) * each <= limit:
        assert count * request >= fetch * (1 - 1e-9), "so the loop does not wait"
    assert wanted(2 * fetch, request, cores, each, limit) >= count
    assert wanted(fetch, 2 * request, cores, each, limit) <= count


def test_the_paper_s_numbers() -> None:
    assert wanted(4.5, 1.0, 8, 1.0, 100.0) == 5
    assert wanted(45.0, 1.0, 8, 1.0, 100.0) == 8
    assert wanted(4.5, 1.0, 8, 30.0, 100.0) == 3
    assert wanted(4.5, 1.0, 8, 300.0, 100.0) == 1, "at least one"
    assert wanted(0.0, 1.0, 8, 1.0, 100.0) == 1
    assert wanted(1.0, 0.0, 8, 1.0, 100.0) == 8, "a loop that does not wait for itself takes all"


@given(
    seconds=st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200), share=st.sampled_from([0.5, 0.9, 0.99])
)
def test_quantiles_are_those_of_what_was_fed(seconds: list[float], share: float) -> None:
    times = CompletionTimes()
    for one in seconds:
        times.observe(one)
    found = times.quantile(share)
    ordered = sorted(seconds)
    assert ordered[0] <= found * 1.001 and found <= ordered[-1] * 2 ** (1 / 8) * 1.001
    if len(seconds) < 20:  # (too few to fade)
        assert (
            found >= ordered[math.ceil(share * len(ordered)) - 1 if share < 0.99 else -1] * 0.7
            or share < 0.99
        )


def test_quantiles_forget() -> None:
    times = CompletionTimes()
    assert times.quantile(0.99) == 0
    for bad in (0.0, -1.0, math.inf, math.nan):
        times.observe(bad)
    assert times.quantile(0.99) == 0
    for _ in range(300):
        times.observe(2.0)
    for _ in range(300):
        times.observe(0.1)
    assert times.quantile(0.99) == pytest.approx(2.0, rel=0.1), "for long"
    for _ in range(20_000):
        times.observe(0.1)
    assert times.quantile(0.99) == pytest.approx(0.1, rel=0.1), "not for ever"


@given(
    seconds=st.lists(st.floats(1e-6, 1e4), max_size=60),
    request=SECONDS,
    most=st.integers(1, 100),
    slower=SECONDS,
)
def test_batches_ahead_are_bounded_and_grow(
    seconds: list[float], request: float, most: int, slower: float
) -> None:
    times = CompletionTimes()
    for one in seconds:
        times.observe(one)
    ahead = batches_ahead(times, request, most)
    assert 1 <= ahead <= most
    assert batches_ahead(times, request + slower, most) <= ahead
    assert batches_ahead(times, request, most + 5) >= ahead
    if seconds and request and ahead < most:
        assert (ahead - 1) * request >= times.quantile(0.99) * (1 - 1e-9)


def test_depth_follows_the_slow_batches_and_not_the_mean() -> None:
    times = CompletionTimes()
    for number in range(400):
        times.observe(3.0 if number % 25 == 0 else 0.2)
    assert batches_ahead(times, 0.5, 100) in (7, 8)


def test_quick_to_grow_and_slow_to_shrink() -> None:
    luck, times, lead = random.Random(3), CompletionTimes(), Lead()
    kept = []

    def batches(count: int, seconds: float) -> None:
        for _ in range(count):
            times.observe(seconds * luck.uniform(0.9, 1.1))
            kept.append(lead.look(times, 0.1 * luck.uniform(0.9, 1.1), 40))

    batches(100, 0.2)
    assert kept[-1] <= 5
    batches(6, 1.0)
    assert kept[-1] >= 11, "within a few batches"
    batches(200, 0.2)
    assert kept[-1] >= 10, "it may happen again"
    batches(3000, 0.2)
    assert kept[-1] <= 5
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(kept, kept[1:], kept[2:], strict=False))
    assert turns <= 2
    assert lead.look(times, 0.1, 2) == 2, "never more than there may be"
