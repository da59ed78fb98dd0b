"""How long a batch takes to be fetched, by level and threads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.threads import Level, LoadingTime, PerLevel

MB = 1e6


def taught(latency_bound: float = 10 * MB, bandwidth: float = 60 * MB) -> LoadingTime:
    """Storage gives each thread the same; disk has one bandwidth for all."""
    model = LoadingTime()
    for _ in range(3):
        for threads in (1, 2, 4, 8, 12, 16):
            model.observe(Level.STORAGE, threads, latency_bound * threads)
            model.observe(Level.DISK, threads, min(bandwidth, 15 * MB * threads))
    return model


def test_latency_scales_with_threads_and_bandwidth_does_not() -> None:
    model = taught()
    assert model.rate(Level.STORAGE, 6) == pytest.approx(60 * MB, rel=0.05)
    assert model.rate(Level.STORAGE, 32) == pytest.approx(320 * MB, rel=0.05), "as nobody has seen its end"
    assert model.rate(Level.DISK, 2) == pytest.approx(30 * MB, rel=0.1)
    assert model.rate(Level.DISK, 10) == pytest.approx(60 * MB, rel=0.1)
    assert model.rate(Level.DISK, 64) == pytest.approx(60 * MB, rel=0.1), "its end was seen"


def test_a_batch_takes_the_sum_over_levels() -> None:
    model = taught()
    both = model.seconds(PerLevel(disk=30 * MB, storage=40 * MB), 4)
    assert both == pytest.approx(
        model.seconds(PerLevel(disk=30 * MB), 4) + model.seconds(PerLevel(storage=40 * MB), 4)
    )
    assert both == pytest.approx(0.5 + 1.0, rel=0.1)
    assert model.seconds(PerLevel(), 4) == 0


def test_levels_that_were_never_measured() -> None:
    model = LoadingTime()
    assert model.seconds(PerLevel(storage=MB), 1) == 0 and not model.known(Level.PEER)
    assert model.slowdown(Level.PEER, 1, 8) == 1
    model.observe(Level.DISK, 2, 20 * MB)
    model.observe(Level.STORAGE, 2, 2 * MB)
    assert model.rate(Level.PEER, 2) == model.rate(Level.STORAGE, 2), "of two as near, the slower"
    assert model.rate(Level.OWN, 2) == model.rate(Level.DISK, 2)


@given(
    seen=st.lists(
        st.tuples(st.sampled_from(list(Level)), st.floats(0, 100), st.floats(0, 1e10)),
        min_size=1,
        max_size=40,
    ),
    sizes=st.tuples(*[st.floats(0, 1e9)] * 4),
)
def test_times_are_finite_and_grow_with_bytes(seen: list, sizes: tuple) -> None:
    model = LoadingTime()
    for one in seen:
        model.observe(*one)
    for threads in (0, 1, 2.5, 17, 400):
        once = model.seconds(sizes, threads)
        assert 0 <= once < float("inf")
        assert model.seconds([2 * size for size in sizes], threads) == pytest.approx(2 * once)


def test_storage_that_slowed_down_is_not_taken_for_saturated() -> None:
    model = taught()
    for _ in range(4):
        model.observe(Level.STORAGE, 16, 32 * MB)
    assert model.rate(Level.STORAGE, 16) == pytest.approx(32 * MB, rel=0.1)
    assert model.slowdown(Level.STORAGE, 16, 64) == pytest.approx(1.0), "more threads are worth a try"


def test_storage_that_saturates_is_found_out() -> None:
    model = LoadingTime()
    for threads in (4, 8, 16, 16, 16, 32, 32, 32):
        model.observe(Level.STORAGE, threads, 10 * MB * min(threads, 12))
    assert model.slowdown(Level.STORAGE, 32, 64) == pytest.approx(2.0, rel=0.1)
    assert model.rate(Level.STORAGE, 128) == pytest.approx(120 * MB, rel=0.25)
