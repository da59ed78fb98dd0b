"""Each eviction policy's own rule, and what holds for the worth of samples under all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.eviction import EVICTIONS, Entries, Eviction

ALL = sorted(EVICTIONS)
AUGMENTED: dict[str, Any] = {"nbytes": 150_528, "saves": 905.0, "lasting": False}
DECODED: dict[str, Any] = {"nbytes": 562_500, "saves": 810.0, "lasting": True}
DEFAULTS: dict[str, Any] = {"needs": 0, "uses": 0, "admitted": 0, "used": 0, **DECODED}


def entries(*rows: dict[str, Any]) -> Entries:
    """Entries from what is said of each; the rest is as of a decoded sample just admitted."""
    kinds = {"saves": np.float64, "lasting": np.bool_}
    full = [{**DEFAULTS, **row} for row in rows]
    return Entries(
        **{name: np.array([row[name] for row in full], kinds.get(name, np.int64)) for name in DEFAULTS}
    )


def order(policy: Eviction, *rows: dict[str, Any], jobs: int = 4) -> list[int]:
    """Who goes, the first first; without those that never do."""
    worth = policy.worth(entries(*rows), jobs)
    return [at for at in np.argsort(worth, kind="stable").tolist() if worth[at] < np.inf]


def displaces(policy: Eviction, row: dict[str, Any], jobs: int = 4, **new: Any) -> bool:
    """Whether a sample goes for a newcomer, which is admitted after all others."""
    (there,) = policy.worth(entries(row), jobs)
    (mine,) = policy.worth(entries({"admitted": 10**9, "used": 10**9, **new}), jobs)
    return bool(there < np.inf and (mine > there if policy.strict else mine >= there))


ROW = st.fixed_dictionaries(
    {
        "needs": st.integers(0, 80),
        "uses": st.integers(0, 3),
        "admitted": st.integers(0, 5),
        "used": st.integers(0, 5),
        "nbytes": st.integers(0, 5),
        "saves": st.floats(0, 1e6),
        "lasting": st.booleans(),
    }
)


@pytest.mark.parametrize("name", ALL)
@given(rows=st.lists(ROW, max_size=12), seed=st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_every_sample_is_judged_by_itself(name: str, rows: list[dict[str, Any]], seed: int) -> None:
    """So shelves may be looked over one by one, and a newcomer without those that are there."""
    policy = EVICTIONS[name]
    jobs: NDArray[np.int64] = (np.arange(len(rows)) + seed) % 4
    cached = entries(*rows)
    worth = policy.worth(cached, jobs)
    assert worth.shape == (len(rows),) and worth.dtype == np.float64
    assert not np.isnan(worth).any()
    assert worth.tolist() == [
        float(policy.worth(entries(row), int(count))[0]) for row, count in zip(rows, jobs, strict=True)
    ]
    before = entries(*rows)
    assert all(np.array_equal(getattr(cached, field), getattr(before, field)) for field in DEFAULTS)


@pytest.mark.parametrize("name", ALL)
@given(row=ROW, jobs=st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_to_be_needed_by_more_jobs_never_costs_a_sample_its_place(
    name: str, row: dict[str, Any], jobs: int
) -> None:
    worth = EVICTIONS[name].worth(entries(row, {**row, "needs": row["needs"] + 1}), jobs)
    assert worth[0] <= worth[1]


@pytest.mark.parametrize("name", ALL)
def test_a_policy_goes_by_its_name_and_can_judge_nothing(name: str) -> None:
    policy = EVICTIONS[name]
    assert policy.name == name
    assert policy.worth(entries(), 4).shape == (0,)


def test_refcount_evicts_what_fewest_need_for_what_more_need() -> None:
    policy = EVICTIONS["refcount"]
    assert order(policy, {"needs": 3}, {"needs": 1}, {"needs": 0}, {"needs": 2}) == [2, 1, 3, 0]
    assert displaces(policy, {"needs": 1}, needs=2)
    assert not displaces(policy, {"needs": 1}, needs=1), "for one that no more jobs need, nothing goes"


def test_refcount_beyond_sixty_four_jobs() -> None:
    policy = EVICTIONS["refcount"]
    assert order(policy, {"needs": 70}, {"needs": 65}, jobs=80) == [1, 0]
    assert displaces(policy, {"needs": 65}, jobs=80, needs=66)


def test_uses_evicts_exactly_what_every_job_had() -> None:
    policy = EVICTIONS["uses"]
    cached = ({"uses": 3}, {"uses": 4}, {"uses": 5}, {"uses": 0})
    assert order(policy, *cached) == [1, 2]
    assert order(policy, *cached, jobs=6) == []
    assert order(policy, *cached, jobs=3) == [0, 1, 2], "a job left: the threshold fell"
    assert order(policy, {"uses": 0}, jobs=0) == [0], "nobody uses the shelf"
    assert displaces(policy, {"uses": 4, "needs": 3}), "whoever comes"
    assert not displaces(policy, {"uses": 3}, needs=4)


def test_none_evicts_nothing() -> None:
    assert order(EVICTIONS["none"], {}, {"uses": 100}) == []
    assert not displaces(EVICTIONS["none"], {"uses": 100}, needs=100)


@pytest.mark.parametrize(("name", "gone"), [("lru", [1, 2, 0]), ("fifo", [0, 1, 2])])
def test_lru_and_fifo(name: str, gone: list[int]) -> None:
    cached = ({"admitted": 1, "used": 9}, {"admitted": 2, "used": 2}, {"admitted": 3, "used": 4})
    assert order(EVICTIONS[name], *cached) == gone
    assert displaces(EVICTIONS[name], cached[0] | {"needs": 4}), "the new always comes in"


@given(need=st.integers(0, 1))
def test_auto_keeps_what_is_there_for_a_single_job(need: int) -> None:
    """The job has just used the newcomer, and will use each decoded sample once an epoch: an exchange is no gain."""
    assert not displaces(EVICTIONS["auto"], {"needs": need}, jobs=1, needs=0)


def test_auto_evicts_what_nobody_needs_for_a_decoded_sample_that_others_need() -> None:
    auto = EVICTIONS["auto"]
    assert order(auto, {"needs": 1}, {"needs": 0}, {"needs": 3}) == [1, 0, 2]
    assert displaces(auto, {"needs": 0}, needs=3)
    assert displaces(auto, {"needs": 1}, needs=3)
    assert not displaces(auto, {"needs": 3}, needs=3)
    assert not displaces(auto, {"needs": 0}, needs=0)


def test_auto_weighs_an_augmented_sample_by_who_still_needs_it() -> None:
    auto = EVICTIONS["auto"]
    assert displaces(auto, {"needs": 0}, **AUGMENTED, needs=1)
    assert not displaces(auto, {"needs": 0}, **AUGMENTED, needs=0), "it is of no use to anybody"
    assert not displaces(auto, {"needs": 4}, **AUGMENTED, needs=1)
    assert displaces(auto, {**AUGMENTED, "needs": 0}, needs=0), "a spent one goes for any decoded one"


def test_auto_prefers_what_is_small_and_dear() -> None:
    cached = ({"nbytes": 1000}, {"nbytes": 4000}, {"nbytes": 2000, "saves": 100.0})
    assert order(EVICTIONS["auto"], *cached) == [2, 1, 0]
