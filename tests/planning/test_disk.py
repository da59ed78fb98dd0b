"""What a disk tier had better keep: cases computed by hand, and what must hold whatever the numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import bottleneck, decoded_share
from headrace.planning.terms import Terms
from tests.planning.test_models import known

PLAIN = Terms(
    samples=1000, encoded=100.0, decoded=500.0, augmented=200.0, cache=0.0, prepare=100, augment=400,
    storage=4000.0, disk_cpu=0.0,
)  # fmt: skip
NONE = (0.0, 1.0, 0.0)


def test_what_lies_on_disk_is_not_fetched() -> None:
    # 40 % are there, encoded: storage carries the rest, 0.6 * 100 / 4000 = 15 ms; the disk 0.4 * 100 / 8000 = 5 ms.
    terms = dataclasses.replace(PLAIN, disk=40_000.0, disk_link=8000.0)
    work = bottleneck.demands(terms, np.array([NONE]))
    assert work["storage"][0] == pytest.approx(0.015)
    assert work["disk"][0] == pytest.approx(0.005)
    assert work["cpu"][0] == pytest.approx(0.01)


def test_what_lies_there_decoded_is_not_decoded() -> None:
    # All of it decoded takes 500 kB. Half of it is there: 0.5 / 400 + 0.5 / 100 = 6.25 ms; 0.5 * 500 / 1e5 = 2.5 ms.
    terms = dataclasses.replace(PLAIN, disk=250_000.0, disk_link=1e5)
    work = bottleneck.demands(terms, np.array([(*NONE, 1.0)]))
    assert work["cpu"][0] == pytest.approx(0.00625)
    assert work["disk"][0] == pytest.approx(0.0025)
    assert work["storage"][0] == pytest.approx(0.0125)


def test_copying_and_checking_takes_a_cpu() -> None:
    terms = dataclasses.replace(PLAIN, disk=1e6, disk_cpu=1e-5, cpus=2.0)
    work = bottleneck.demands(terms, np.array([(*NONE, 1.0)]))
    assert work["cpu"][0] == pytest.approx(1 / 400 + 500 * 1e-5 / 2)


def test_memory_and_disk_together_hold_what_both_do() -> None:
    terms = dataclasses.replace(PLAIN, cache=50_000.0, disk=50_000.0, disk_link=1e9)
    work = bottleneck.demands(terms, np.array([(1.0, 0.0, 0.0)]))
    assert work["storage"][0] == pytest.approx(0.0, abs=1e-12)


def test_a_job_that_waits_for_decoding_has_decoded_samples_on_a_fast_disk() -> None:
    fast = dataclasses.replace(PLAIN, storage=math.inf, disk=1e6, disk_link=1e9)
    assert decoded_share(fast, NONE) == 1.0
    assert decoded_share(dataclasses.replace(fast, disk_link=10_000.0), NONE) == 0.0, (
        "a slow one saves nothing"
    )


def test_a_job_that_waits_for_storage_has_as_many_samples_there_as_possible() -> None:
    slow = dataclasses.replace(PLAIN, storage=500.0, disk=100_000.0, disk_link=1e9)
    assert decoded_share(slow, NONE) == 0.0


def test_one_that_waits_for_both_has_some_of_each() -> None:
    both = dataclasses.replace(PLAIN, storage=2000.0, disk=250_000.0, disk_link=1e9)
    assert 0.0 < decoded_share(both, NONE) < 1.0


@given(known)
def test_the_share_is_one_and_worth_it(terms: Terms) -> None:
    share = decoded_share(terms, NONE)
    assert 0.0 <= share <= 1.0
    if share:
        some = bottleneck.throughput(terms, np.array([(*NONE, share), (*NONE, 0.0)]))
        assert some[0] > some[1]


@given(known, st.floats(0, 1), st.floats(1, 10))
def test_a_larger_tier_spares_storage(terms: Terms, share: float, times: float) -> None:
    at = np.array([(*NONE, share)])
    larger = dataclasses.replace(terms, disk=times * terms.disk)
    before, after = bottleneck.demands(terms, at), bottleneck.demands(larger, at)
    assert after["storage"][0] <= before["storage"][0] * (1 + 1e-9)
    without = bottleneck.demands(dataclasses.replace(terms, disk=0.0), at)
    assert before["storage"][0] <= without["storage"][0] * (1 + 1e-9)
    assert without["disk"][0] == 0
