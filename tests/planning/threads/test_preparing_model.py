"""Piecewise linear functions of the thread count, and what the model of preparing makes of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.threads import LearnedCurve, Point, PreparingModel, fit, size_class

SIZE = 100_000.0


def crowded(peak: int, seconds: float = 0.004) -> list[Point]:
    """Samples take longer, in proportion, from some number of threads on."""
    return [Point(n, seconds * max(1.0, n / peak), 5.0) for n in (1, 2, 3, 4, 6, 8, 10, 12, 16)]


# -- the fit ---------------------------------------------------------------------------------------------------


@given(
    start=st.floats(0.1, 10),
    slopes=st.lists(st.floats(0, 3), min_size=1, max_size=3),
    weights=st.lists(st.floats(0.1, 10), min_size=12, max_size=12),
)
def test_a_function_with_few_bends_is_found_again(
    start: float, slopes: list[float], weights: list[float]
) -> None:
    bends = [4, 8]

    def true(threads: float) -> float:
        value, before = start + slopes[0] * threads, slopes[0]
        for bend, slope in zip(bends, slopes[1:], strict=False):
            value += (slope - before) * max(0.0, threads - bend)
            before = slope
        return value

    points = [Point(n, true(n), weight) for n, weight in enumerate(weights, 1)]
    found = fit(points)
    largest = max(point.seconds for point in points)
    for point in points:
        assert found.at(point.threads) == pytest.approx(point.seconds, abs=0.05 * largest)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e-6, 1e3), st.floats(0, 100)), min_size=1, max_size=20)
)
def test_the_fit_is_continuous_and_no_worse_than_a_line(points: list[tuple[int, float, float]]) -> None:
    weighed = [Point(*one) for one in points]
    if not any(point.weight for point in weighed):
        with pytest.raises(ValueError):
            fit(weighed)
        return
    found, line = fit(weighed), fit(weighed, most_bends=0)
    top = max(point.seconds for point in weighed)

    def error(function) -> float:
        return sum(one.weight * (function.at(one.threads) - one.seconds) ** 2 for one in weighed)

    assert len(found.bends) <= 2
    assert error(found) <= error(line) + 1e-6 * sum(one.weight for one in weighed) * top * top
    for bend, _ in found.bends:
        assert found.at(bend - 1e-9) == pytest.approx(found.at(bend + 1e-9), rel=1e-4, abs=1e-4 * top)


# -- the peak --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peak", [2, 3, 4, 6, 8, 12])
def test_the_peak_is_found_from_a_profile(peak: int) -> None:
    model = PreparingModel({SIZE: crowded(peak)})
    assert model.peak(SIZE, 16) in range(max(1, peak - 1), peak + 2)
    assert model.throughput(SIZE, 16) == pytest.approx(peak / 0.004, rel=0.1)
    assert model.peak(SIZE, 2) == 2, "never beyond what there is"


@given(
    points=st.lists(st.tuples(st.integers(1, 200), st.floats(1e-6, 10), st.floats(0, 100)), max_size=12),
    seen=st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 300), st.floats(0, 100)), max_size=30),
    size=st.floats(0, 1e9),
    most=st.integers(1, 256),
)
def test_the_peak_is_never_beyond_what_there_is(points: list, seen: list, size: float, most: int) -> None:
    model = PreparingModel({SIZE: [Point(*point) for point in points]})
    for one in seen:
        model.observe(*one)
    peak = model.peak(size, most)
    assert 1 <= peak <= most
    if model.throughput(size, 1):
        best = max(model.throughput(size, n) for n in range(1, most + 1))
        if peak < most:
            assert model.throughput(size, peak) >= 0.98 * best * (1 - 1e-9)
            assert all(model.throughput(size, n) < 0.98 * best for n in range(1, peak)), "the least of them"


def test_with_one_thread_count_there_is_no_peak() -> None:
    model = PreparingModel()
    assert model.peak(SIZE, 12) == 12 and model.seconds(SIZE, 3) == 0 == model.throughput(SIZE, 3)
    for _ in range(5):
        model.observe(SIZE, 4, 0.004)
    assert model.peak(SIZE, 12) == 12
    assert model.seconds(SIZE, 4) == pytest.approx(0.004)


def test_sizes_have_models_of_their_own_and_borrow_the_nearest() -> None:
    model = PreparingModel({1e4: crowded(12), 1e6: crowded(3)})
    assert size_class(1e4) == size_class(9e3) != size_class(3e4)
    assert model.peak(9e3, 16) > 9 and model.peak(1.03e6, 16) < 5
    assert model.peak(3e4, 16) == model.peak(1e4, 16) and model.peak(1e9, 16) == model.peak(1e6, 16)
    model.observe(1e8, 4, 1.0)
    assert model.peak(1e9, 16) == 16, "the nearest is another one now, and knows one thread count"


@pytest.mark.parametrize("wild", [1e-7, 0.04, 4.0])
@pytest.mark.parametrize("threads", [1, 5, 7, 16, 40])
def test_a_wild_measurement_does_not_move_the_peak(wild: float, threads: int) -> None:
    model = PreparingModel({SIZE: crowded(6)})
    before = model.peak(SIZE, 16)
    model.observe(SIZE, threads, wild)
    assert model.peak(SIZE, 16) == before


def test_the_peak_moves_with_the_machine() -> None:
    """Another job takes memory bandwidth, for good."""
    luck = random.Random(5)
    model = PreparingModel({SIZE: crowded(12)})
    assert model.peak(SIZE, 16) >= 11
    for _ in range(300):
        threads = luck.choice([2, 4, 6, 8])
        model.observe(SIZE, threads, 0.004 * max(1.0, threads / 4) * luck.uniform(0.95, 1.05))
    assert model.peak(SIZE, 16) <= 6


def test_heavier_samples_keep_the_shape() -> None:
    model = PreparingModel({SIZE: crowded(6)})
    for _ in range(10):
        model.observe(SIZE, 4, 0.012)
    assert model.seconds(SIZE, 4) == pytest.approx(0.012, rel=0.05)
    assert model.seconds(SIZE, 12) == pytest.approx(0.024, rel=0.2)
    assert model.peak(SIZE, 16) in (5, 6, 7)


def test_news_of_other_thread_counts_are_no_change_of_all() -> None:
    curve = LearnedCurve([Point(1, 1.0, 5.0), Point(2, 1.0, 5.0)])
    for _ in range(3):
        curve.observe(16, 3.0)
    assert curve.at(1) == pytest.approx(1.0, rel=0.1) and curve.at(16) == pytest.approx(3.0, rel=0.1)
