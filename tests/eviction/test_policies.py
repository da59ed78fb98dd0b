"""Each eviction policy's own rule, and what holds for the choice of victims under all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.eviction import EVICTIONS, Entries, Eviction, choose_victims, rank_victims

ALL = sorted(EVICTIONS)
AUGMENTED: dict[str, Any] = {"nbytes": 150_528, "saves": 905.0, "lasting": False}
DECODED: dict[str, Any] = {"nbytes": 562_500, "saves": 810.0, "lasting": True}


def entries(*rows: dict[str, Any]) -> Entries:
    """Entries from what is said of each; the rest is as of a decoded sample just admitted."""
    defaults: dict[str, Any] = {"needs": 0, "uses": 0, "admitted": 0, "used": 0, **DECODED}
    full = [{**defaults, **row} for row in rows]
    return Entries(
        **{
            name: np.array(
                [row[name] for row in full],
                np.float64 if name == "saves" else np.bool_ if name == "lasting" else np.int64,
            )
            for name in defaults
        }
    )


def newcomer(**more: Any) -> Entries:
    """An entry of one, admitted after all others."""
    return Entries.one(**{"needs": 0, "now": 10**9, **DECODED, **more})


ROW = st.fixed_dictionaries(
    {
        "needs": st.integers(0, 3),
        "uses": st.integers(0, 3),
        "admitted": st.integers(0, 5),
        "used": st.integers(0, 5),
        "nbytes": st.integers(0, 5),
        "saves": st.floats(0, 1e6),
        "lasting": st.booleans(),
    }
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Entries, Entries, NDArray[np.int64] | int, int, int]:
    """Entries, a newcomer, the jobs of each, the newcomer's, and the room it needs.

    Repeated, so that there are more than are looked at first, and many of equal worth.
    """
    rows = draw(st.lists(ROW, max_size=12)) * draw(st.sampled_from([1, 1, 7, 40]))
    jobs: NDArray[np.int64] | int = draw(st.integers(0, 3))
    if draw(st.booleans()):
        jobs = np.arange(len(rows), dtype=np.int64) % 4
    one = {**draw(ROW), "admitted": 9, "used": 9}
    most = max(1, int(sum(row["nbytes"] for row in rows) * draw(st.sampled_from([0.1, 0.7, 1.1]))))
    return entries(*rows), entries(one), jobs, draw(st.integers(0, 3)), draw(st.integers(1, most))


@pytest.mark.parametrize("name", ALL)
@given(situation=situations())
@settings(deadline=None, max_examples=60)
def test_what_holds_under_every_policy(name: str, situation: Any) -> None:
    policy = EVICTIONS[name]
    cached, new, jobs, new_jobs, room = situation
    worth = policy.worth(cached, jobs)
    assert worth.shape == (len(cached),) and worth.dtype == np.float64
    assert not np.isnan(worth).any()
    victims = choose_victims(policy, cached, new, jobs, new_jobs, room)
    assert victims.dtype == np.int64
    assert victims.tolist() == choose_victims(policy, cached, new, jobs, new_jobs, room).tolist()
    order = sorted(range(len(cached)), key=lambda at: (worth[at], cached.used[at], at))
    order = [at for at in order if np.isfinite(worth[at])]
    total, needed = 0, 0
    while total < room and needed < len(order):
        total += int(cached.nbytes[order[needed]])
        needed += 1
    enough = total >= room
    mine = policy.worth(new, new_jobs)[0]
    if not enough or (policy.strict and mine <= worth[order[needed - 1]]):
        assert len(victims) == 0
        if not enough:
            assert rank_victims(policy, cached, jobs, room)[0].tolist() == order, "all that may go"
        return
    assert victims.tolist() == order[:needed]
    assert cached.nbytes[victims].sum() >= room
    survivors = np.setdiff1d(np.arange(len(cached)), victims)
    assert np.isfinite(worth[victims]).all()
    assert not len(survivors) or worth[victims].max() <= worth[survivors].min()
    ranked, ranked_worth = rank_victims(policy, cached, jobs, room)
    assert ranked.tolist() == victims.tolist()
    assert ranked_worth.tolist() == worth[victims].tolist()


@pytest.mark.parametrize("name", ALL)
def test_an_empty_cache_and_no_room_needed(name: str) -> None:
    policy = EVICTIONS[name]
    assert policy.name == name
    assert len(choose_victims(policy, entries(), newcomer(needs=3), 4, 4, 100)) == 0
    assert len(choose_victims(policy, entries({"uses": 9}), newcomer(needs=3), 4, 4, 0)) == 0


def goes(policy: Eviction, *rows: dict[str, Any], jobs: int = 4, room: int = 1, **new: Any) -> list[int]:
    """Who goes for a newcomer."""
    return choose_victims(policy, entries(*rows), newcomer(**new), jobs, jobs, room).tolist()


def test_refcount_evicts_what_fewest_need_for_what_more_need() -> None:
    policy = EVICTIONS["refcount"]
    cached = ({"needs": 3}, {"needs": 1, "used": 5}, {"needs": 1, "used": 4}, {"needs": 2})
    assert goes(policy, *cached, needs=2) == [2]
    assert goes(policy, *cached, needs=1) == [], "for one that no more jobs need, nothing goes"
    assert goes(policy, *cached, needs=3, room=3 * 562_500) == [2, 1, 3]
    assert goes(policy, *cached, needs=2, room=3 * 562_500) == [], "one of the three is needed as much"


def test_refcount_beyond_sixty_four_jobs() -> None:
    assert goes(EVICTIONS["refcount"], {"needs": 70}, {"needs": 65}, needs=66, jobs=80) == [1]


def test_uses_evicts_exactly_what_every_job_had() -> None:
    policy = EVICTIONS["uses"]
    cached = ({"uses": 3}, {"uses": 4, "used": 2}, {"uses": 5, "used": 1}, {"uses": 0})
    assert goes(policy, *cached) == [2]
    assert goes(policy, *cached, room=2 * 562_500) == [2, 1]
    assert goes(policy, *cached, room=2 * 562_500 + 1) == []
    assert goes(policy, *cached, jobs=6) == []
    assert goes(policy, *cached, jobs=3, room=3 * 562_500) == [0, 2, 1], "a job left: the threshold fell"
    assert goes(policy, {"uses": 0}, jobs=0) == [0], "nobody uses the shelf"


def test_none_evicts_nothing() -> None:
    assert goes(EVICTIONS["none"], {}, {"uses": 100}, needs=100) == []


def test_lru_and_fifo() -> None:
    cached = ({"admitted": 1, "used": 9}, {"admitted": 2, "used": 2}, {"admitted": 3, "used": 4})
    assert goes(EVICTIONS["lru"], *cached, room=2 * 562_500) == [1, 2]
    assert goes(EVICTIONS["fifo"], *cached, room=2 * 562_500) == [0, 1]


@given(st.lists(st.integers(0, 1), min_size=1, max_size=20))
def test_auto_keeps_what_is_there_for_a_single_job(needs: list[int]) -> None:
    """The job has just used the newcomer, and will use each decoded sample once an epoch: an exchange is no gain."""
    assert goes(EVICTIONS["auto"], *({"needs": need} for need in needs), jobs=1, needs=0) == []


def test_auto_evicts_what_nobody_needs_for_a_decoded_sample_that_others_need() -> None:
    cached = ({"needs": 1}, {"needs": 0}, {"needs": 3})
    assert goes(EVICTIONS["auto"], *cached, needs=3) == [1]
    assert goes(EVICTIONS["auto"], *cached, needs=3, room=2 * 562_500) == [1, 0]
    assert goes(EVICTIONS["auto"], *cached, needs=3, room=3 * 562_500) == [], "no more than what must go"
    assert goes(EVICTIONS["auto"], *cached, needs=0) == []


def test_auto_weighs_an_augmented_sample_by_who_still_needs_it() -> None:
    auto = EVICTIONS["auto"]
    assert goes(auto, {"needs": 0}, **AUGMENTED, needs=1, room=150_528) == [0]
    assert goes(auto, {"needs": 0}, **AUGMENTED, needs=0, room=150_528) == [], "it is of no use to anybody"
    assert goes(auto, {"needs": 4}, **AUGMENTED, needs=1, room=150_528) == []
    spent = {**AUGMENTED, "needs": 0}
    assert goes(auto, {"needs": 0}, spent, needs=0, room=150_528) == [1], (
        "a spent one goes for any decoded one"
    )


def test_auto_prefers_what_is_small_and_dear() -> None:
    cached = ({"nbytes": 1000}, {"nbytes": 4000}, {"nbytes": 2000, "saves": 100.0})
    assert goes(EVICTIONS["auto"], *cached, needs=1, nbytes=1000, room=2000) == [2]
    assert goes(EVICTIONS["auto"], *cached, needs=1, nbytes=1000, room=2001) == [2, 1]
