"""The models of throughput against cases computed by hand, and what must hold whatever the numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import bottleneck, seneca
from headrace.planning.search import AS_GOOD, grid, reconsider, search
from headrace.planning.terms import Terms, contents

KB, MB, GB = 1e3, 1e6, 1e9
GBIT = GB / 8
IN_HOUSE = Terms(
    samples=1_300_000,
    encoded=114 * KB,
    decoded=5.12 * 114 * KB,
    augmented=5.12 * 114 * KB,
    cache=64 * GB,
    prepare=2132,
    augment=4050,
    storage=500 * MB,
    cache_link=10 * GBIT,
    network=10 * GBIT,
    pcie=32 * GB,
    ingest=4550,
)
"""Seneca's own server, from tables 3 and 5."""
PLAIN = Terms(
    samples=1000, encoded=100.0, decoded=500.0, augmented=200.0, cache=0.0, prepare=100, augment=400
)


def splits(*rows: tuple[float, float, float]) -> np.ndarray:
    return np.array(rows)


# -- Seneca's equations ------------------------------------------------------------------------------------


def test_rates_of_each_form_are_those_of_the_slowest_thing_on_the_way() -> None:
    encoded, decoded, augmented, storage = seneca.rates(IN_HOUSE)
    tensor = 5.12 * 114 * KB
    assert augmented == pytest.approx(10 * GBIT / tensor)  # 2141: the cache's link
    assert decoded == pytest.approx(10 * GBIT / tensor)  # 2141, below 4050
    assert encoded == 2132  # the CPU, below 10965 of the link
    assert storage == 2132  # the CPU, below 4386 of storage


def test_contents_are_those_of_equations_2_to_8() -> None:
    held = contents(IN_HOUSE, splits((1, 0, 0), (0, 0.5, 0.5), (0.5, 0.5, 0)))
    tensor = 5.12 * 114 * KB
    assert held.encoded.tolist() == pytest.approx([64 * GB / (114 * KB), 0, 32 * GB / (114 * KB)])
    assert held.decoded.tolist() == pytest.approx([0, 32 * GB / tensor, 32 * GB / tensor])
    assert held.augmented.tolist() == pytest.approx([0, 32 * GB / tensor, 0])
    small = contents(dataclasses.replace(IN_HOUSE, samples=100_000), splits((0.2, 0.4, 0.4)))
    assert small.augmented[0] == pytest.approx(0.4 * 64 * GB / tensor)
    assert small.decoded[0] == pytest.approx(0.4 * 64 * GB / tensor)
    assert small.encoded[0] == pytest.approx(100_000 - 0.8 * 64 * GB / tensor), "no more than there are"
    assert small.storage[0] == 0


def test_the_average_of_equation_9() -> None:
    slow = dataclasses.replace(IN_HOUSE, storage=114 * MB)  # 1000 samples/s
    (mixed,) = seneca.throughput(slow, splits((0.5, 0.5, 0)))
    n_encoded, n_decoded = 32 * GB / (114 * KB), 32 * GB / (5.12 * 114 * KB)
    rest = 1_300_000 - n_encoded - n_decoded
    by_hand = (n_encoded * 2132 + n_decoded * 10 * GBIT / (5.12 * 114 * KB) + rest * 1000) / 1_300_000
    assert mixed == pytest.approx(by_hand)


def test_table_6_does_not_follow_from_the_equations() -> None:
    """The paper has 58-42-0 for ImageNet-1K on this server."""
    assert search(IN_HOUSE, seneca.throughput).split == (1.0, 0.0, 0.0)


# -- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nvlink", "network", "pcie"),
    [
        ("none", 2 * 3 / 4 * 1e8 / 50, 2 * 7 / 8 * 1e8 / 50),
        ("node", 2 * 3 / 4 * 1e8 / 50, 0),
        ("cluster", 0, 0),
    ],
)
def test_gradients_go_around_a_ring_unless_they_have_links_of_their_own(
    nvlink: str, network: float, pcie: float
) -> None:
    terms = dataclasses.replace(PLAIN, nodes=4, gpus=8, model=1e8, batch=50, nvlink=nvlink)
    assert (terms.gradients_network, terms.gradients_pcie) == (network, pcie)


def test_one_gpu_exchanges_nothing() -> None:
    terms = dataclasses.replace(PLAIN, model=1e9)
    assert (terms.gradients_network, terms.gradients_pcie) == (0, 0)


@pytest.mark.parametrize("model", [seneca.throughput, bottleneck.throughput])
def test_gradients_slow_down_what_goes_the_same_way(model: object) -> None:
    # Two nodes: each sends 2 * (1/2) * 4 MB per 100 samples, 40 KB beside 10 KB of each encoded sample.
    base = dataclasses.replace(
        IN_HOUSE, encoded=10 * KB, augmented=20 * KB, nodes=2, gpus=2, model=4 * MB, batch=100,
        network=1 * MB, cache=1e12, prepare=1e6, storage=math.inf, cache_link=math.inf, pcie=math.inf,
        ingest=math.inf,
    )  # fmt: skip
    (rate,) = model(base, splits((1, 0, 0)))  # type: ignore[operator]
    assert rate == pytest.approx(2 * 1 * MB / (10 * KB + 40 * KB))
    over_pcie = dataclasses.replace(base, network=math.inf, pcie=3 * MB)
    (rate,) = model(over_pcie, splits((1, 0, 0)))  # type: ignore[operator]
    assert rate == pytest.approx(2 * 3 * MB / (20 * KB + 40 * KB))
    linked = dataclasses.replace(over_pcie, nvlink="node")
    (rate,) = model(linked, splits((1, 0, 0)))  # type: ignore[operator]
    assert rate == pytest.approx(2 * 3 * MB / (20 * KB))


# -- the bottleneck ----------------------------------------------------------------------------------------


def test_storage_and_cpu_each_carry_their_part_of_the_mix() -> None:
    # 40 % decoded, 20 % encoded, 40 % in storage. CPU: 0.4 / 400 + 0.6 / 100 = 7 ms. Storage: 0.4 * 100 / 4000 = 10.
    terms = dataclasses.replace(PLAIN, cache=220_000.0, storage=4000.0)
    split = (20_000 / 220_000, 200_000 / 220_000, 0.0)
    work = bottleneck.demands(terms, splits(split))
    assert work["cpu"][0] == pytest.approx(0.007)
    assert work["storage"][0] == pytest.approx(0.010)
    assert bottleneck.throughput(terms, splits(split))[0] == pytest.approx(100)
    assert seneca.throughput(terms, splits(split))[0] == pytest.approx(0.4 * 400 + 0.2 * 100 + 0.4 * 40)


def test_to_one_job_augmented_samples_save_nothing_and_to_several_all_but_one_preparation() -> None:
    terms = dataclasses.replace(PLAIN, cache=20_000.0, copy=2000.0, window=100)
    assert bottleneck.throughput(terms, splits((0, 0, 1)))[0] == pytest.approx(100)
    four = dataclasses.replace(terms, jobs=4)
    # All of the window is there: one of four is prepared, three are copied.
    assert bottleneck.throughput(four, splits((0, 0, 1)))[0] == pytest.approx(1 / (0.25 / 100 + 0.75 / 2000))
    # Half of it: those that are not kept are prepared for each job.
    half = 1 / ((1 - 0.375) / 100 + 0.375 / 2000)
    assert bottleneck.throughput(four, splits((0.5, 0, 0.5)))[0] == pytest.approx(half)


def test_network_cache_and_gpu_limit_too() -> None:
    terms = dataclasses.replace(PLAIN, cache=1e9, prepare=1e6, augment=1e6)
    for limit, by_hand in (
        ({"cache_link": 50_000.0}, 100),
        ({"network": 100_000.0}, 200),
        ({"ingest": 33.0}, 33),
        ({"pcie": 20_000.0}, 100),
    ):
        limited = dataclasses.replace(terms, **limit)
        assert bottleneck.throughput(limited, splits((0, 1, 0)))[0] == pytest.approx(by_hand), limit
    two = dataclasses.replace(terms, ingest=33.0, nodes=2)
    assert bottleneck.throughput(two, splits((0, 1, 0)))[0] == pytest.approx(66)


positive = st.floats(1.0, 1e9)
known = st.builds(
    Terms,
    samples=st.floats(10, 1e8),
    encoded=st.floats(10, 1e7),
    decoded=st.floats(10, 1e8),
    augmented=st.floats(10, 1e7),
    cache=st.integers(0, 10**13),
    prepare=positive,
    augment=positive,
    copy=positive,
    fetch=positive,
    storage=positive,
    cache_link=positive,
    network=positive,
    pcie=positive,
    disk=st.integers(0, 10**13),
    disk_decoded=st.floats(0, 1),
    disk_link=positive,
    ingest=positive,
    nodes=st.integers(1, 64),
    gpus=st.integers(1, 16),
    model=st.floats(0, 1e10),
    batch=st.integers(1, 4096),
    nvlink=st.sampled_from(["none", "node", "cluster"]),
    jobs=st.integers(1, 64),
    window=st.floats(0, 1e6),
)
BETTER = (
    *(
        "prepare",
        "augment",
        "copy",
        "fetch",
        "storage",
        "cache_link",
        "disk_link",
        "network",
        "pcie",
        "ingest",
    ),
)


@given(known, st.sampled_from(BETTER), st.floats(1, 100))
def test_nothing_gets_slower_by_a_faster_part(terms: Terms, part: str, times: float) -> None:
    faster = dataclasses.replace(terms, **{part: times * getattr(terms, part)})
    some = grid(10)
    for model in (seneca.throughput, bottleneck.throughput):
        assert (model(faster, some) >= model(terms, some) * (1 - 1e-9)).all()


@given(known)
def test_no_resource_is_busy_for_longer_than_there_is_time(terms: Terms) -> None:
    some = grid(10)
    rate = bottleneck.throughput(terms, some)
    work = bottleneck.demands(terms, some)
    assert set(work) == set(bottleneck.RESOURCES)
    busiest = np.max([rate * part for part in work.values()], axis=0)
    assert np.allclose(busiest, 1)
    assert (rate <= terms.nodes * terms.ingest * (1 + 1e-9)).all()


@given(known)
def test_caution_takes_off_little_and_least_where_one_resource_is_the_busiest(terms: Terms) -> None:
    some = grid(10)
    bold, careful = bottleneck.throughput(terms, some), bottleneck.cautious(terms, some)
    assert (careful <= bold * (1 + 1e-9)).all()
    assert (careful >= bold / len(bottleneck.RESOURCES) ** (1 / 6) * (1 - 1e-9)).all()
    work = np.sort(np.stack([*bottleneck.demands(terms, some).values()]), axis=0)
    alone = work[-2] < work[-1] / 10
    assert np.allclose(careful[alone], bold[alone], rtol=1e-4)


def test_caution_by_hand() -> None:
    """Storage and CPU equally busy: each 10 ms for a sample."""
    terms = dataclasses.replace(PLAIN, storage=10_000.0)
    assert bottleneck.throughput(terms, splits((1, 0, 0)))[0] == pytest.approx(100)
    assert bottleneck.cautious(terms, splits((1, 0, 0)))[0] == pytest.approx(100 / 2 ** (1 / 6))


@given(known)
def test_contents_add_up(terms: Terms) -> None:
    held = contents(terms, grid(10))
    parts = np.array([held.encoded, held.decoded, held.augmented, held.storage])
    assert (parts >= 0).all() and np.allclose(parts.sum(0), terms.samples)
    sizes = np.array([terms.encoded, terms.decoded, terms.augmented])
    assert (parts[:3].T @ sizes <= terms.cache * (1 + 1e-9)).all()


# -- the search --------------------------------------------------------------------------------------------


def test_every_split_at_one_percent_is_tried() -> None:
    every = grid(100)
    assert len(every) == 101 * 102 // 2 and np.allclose(every.sum(1), 1) and (every >= 0).all()
    assert len(np.unique(every, axis=0)) == len(every)


@given(known, st.sampled_from([seneca.throughput, bottleneck.throughput, bottleneck.cautious]))
def test_no_split_is_better_than_the_best(terms: Terms, model: object) -> None:
    found = search(terms, model)  # type: ignore[arg-type]
    every = model(terms, grid(100))  # type: ignore[operator]
    assert found.throughput >= (1 - AS_GOOD) * every.max() * (1 - 1e-9)
    assert sum(found.split) == pytest.approx(1)


def test_of_equally_good_splits_the_one_with_least_work_is_taken() -> None:
    """The GPU is the limit, so that all are as good for this job, and others can use what it does not."""
    found = search(dataclasses.replace(PLAIN, cache=100_000.0, ingest=10.0, storage=1e6))
    assert found.split == (1.0, 0.0, 0.0), "storage is read for nothing"
    found = search(dataclasses.replace(PLAIN, cache=500_000.0, ingest=10.0, storage=1e6))
    assert found.split == (0.0, 1.0, 0.0), "all of it is decoded for good"


def test_a_cached_sample_fills_whole_pages() -> None:
    """Half of the cache holds 500 encoded samples, or 400 where each takes a quarter more."""
    terms = dataclasses.replace(PLAIN, cache=100_000.0, storage=100.0)
    half = splits((0.5, 0, 0.5))
    assert bottleneck.demands(terms, half)["storage"][0] == pytest.approx(0.5)
    terms = dataclasses.replace(terms, overhead=25.0)
    assert bottleneck.demands(terms, half)["storage"][0] == pytest.approx(0.6)


def test_of_about_equally_good_splits_the_one_that_reads_least_is_taken() -> None:
    """Decoded samples would be worth a little more than encoded ones here, and storage is not short."""
    terms = dataclasses.replace(PLAIN, cache=100_000.0, storage=13_000.0, augment=101.0)
    assert search(terms).split[0] == 1.0


def test_a_split_is_kept_unless_another_is_clearly_better() -> None:
    terms = dataclasses.replace(PLAIN, cache=100_000.0, storage=2000.0)
    best, every = search(terms), grid(100)
    expected = bottleneck.cautious(terms, every)
    near = tuple(
        every[np.flatnonzero((expected < 0.995 * best.throughput) & (expected > 0.975 * best.throughput))[0]]
    )
    assert reconsider(near, terms).split == near
    assert reconsider((0.0, 0.0, 1.0), terms) == best


@given(known, known)
def test_reconsidering_what_was_found_changes_nothing(before: Terms, after: Terms) -> None:
    """So it does not swing."""
    first = reconsider((0.0, 1.0, 0.0), before)
    second = reconsider(first.split, after)
    assert reconsider(second.split, after).split == second.split


@given(known, st.floats(0, 1))
def test_where_two_forms_share_a_part_they_divide_it_as_it_is_best(terms: Terms, encoded: float) -> None:
    plan = reconsider((encoded, 1.0 - encoded, 0.0), terms, joint=True)
    assert sum(plan.split) == pytest.approx(1) and min(plan.split) >= 0
    assert plan.throughput >= reconsider((encoded, 1.0 - encoded, 0.0), terms).throughput / 1.03 * (1 - 1e-9)
    assert reconsider(plan.split, terms, joint=True).split[0] == plan.split[0], "it does not swing"
