"""Cost-aware LRFU: its score against the sum that defines it, its limits, and who goes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.core.errors import OptionError
from headrace.eviction.lrfu import Candidate, CostAwareLRFU, History

PAPER = CostAwareLRFU(grain=0)
"""As the paper has it."""
TIMES = st.lists(st.integers(0, 60), min_size=1, max_size=12)
DISTINCT = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True)


def used(policy: CostAwareLRFU, times: list[int] | list[float]) -> History:
    history = History()
    for time in sorted(times):
        history = policy.use(history, time)
    return history


def candidates() -> st.SearchStrategy[list[Candidate]]:
    one = st.builds(
        Candidate,
        key=st.text("abcdef", min_size=1, max_size=3),
        size=st.integers(0, 100),
        cost=st.sampled_from([1.0, 2.0, 30.0]),
        history=DISTINCT.map(lambda times: used(PAPER, times)),
        active=st.booleans(),
        pinned=st.booleans(),
    )
    return st.lists(one, max_size=10, unique_by=lambda one: one.key)


@given(DISTINCT, st.floats(2, 10), st.floats(0, 1), st.integers(0, 20))
def test_the_score_is_the_sum_over_all_uses(times: list[int], p: float, step: float, later: int) -> None:
    policy, now = CostAwareLRFU(p, step, grain=0), max(times) + later
    total = math.fsum((1 / p) ** (step * (now - time)) for time in times)
    assert policy.crf(used(policy, times), now) == pytest.approx(total, rel=1e-9)


@given(DISTINCT, DISTINCT)
def test_step_0_is_least_frequently_used(one: list[int], other: list[int]) -> None:
    assume(len(one) != len(other))
    policy = CostAwareLRFU(step=0, grain=0)
    scores = [policy.score(used(policy, times)) for times in (one, other)]
    assert (scores[0] < scores[1]) == (len(one) < len(other))


@given(DISTINCT, DISTINCT)
def test_step_1_is_least_recently_used(one: list[int], other: list[int]) -> None:
    """Of uses at whole times: all before one count less than it does, however many they are."""
    assume(max(one) != max(other))
    policy = CostAwareLRFU(step=1, grain=0)
    scores = [policy.score(used(policy, times)) for times in (one, other)]
    assert scores[0] != scores[1]  # (a sum of 60 halvings has room in a float)
    assert (scores[0] < scores[1]) == (max(one) < max(other))


@given(DISTINCT, DISTINCT, st.integers(0, 10**6))
def test_the_order_does_not_change_with_time(one: list[int], other: list[int], later: int) -> None:
    policy = PAPER
    histories = [used(policy, times) for times in (one, other)]
    scores = [policy.score(history) for history in histories]
    assume(abs(scores[0] - scores[1]) > 1e-6)
    now = max(*one, *other) + later % 100
    values = [policy.crf(history, now) for history in histories]
    assert (values[0] < values[1]) == (scores[0] < scores[1])
    assert all(math.isfinite(policy.score(policy.use(history, 1e12 + later))) for history in histories)


@given(TIMES, st.integers(1, 10))
def test_a_spell_counts_as_one_use_at_its_end(times: list[int], together: int) -> None:
    policy = CostAwareLRFU(grain=0, together=together)
    ends = []
    for time in sorted(times):
        if ends and time - ends[-1] <= together:
            ends[-1] = time
        else:
            ends.append(time)
    assert policy.score(used(policy, times)) == pytest.approx(PAPER.score(used(PAPER, ends)))


def test_of_those_alike_the_cheapest_goes_and_recency_comes_first() -> None:
    old, new = used(PAPER, [0, 2]), used(PAPER, [0, 2, 50])
    dear, cheap = Candidate("dear", 10, 9.0, old), Candidate("cheap", 10, 1.0, old)
    recent = Candidate("recent", 10, 0.1, new)
    chosen = PAPER.choose([recent, dear, cheap], 30, 60)
    assert chosen is not None and [one.key for one in chosen] == ["cheap", "dear", "recent"]


def test_what_is_within_a_factor_of_two_is_alike() -> None:
    policy = CostAwareLRFU(step=0.25, grain=1)
    older, newer = used(policy, [0]), used(policy, [3])  # 2 ** 0.75 apart
    dear, cheap = Candidate("dear", 1, 9.0, older), Candidate("cheap", 1, 1.0, newer)
    assert policy.choose([dear, cheap], 1, 9) == [cheap]
    assert PAPER.choose([dear, cheap], 1, 9) == [dear]
    much_newer = Candidate("cheap", 1, 1.0, used(policy, [4]))
    assert policy.choose([dear, much_newer], 1, 9) == [dear]


@given(candidates(), st.integers(0, 300), st.integers(0, 90), st.integers(0, 40))
def test_enough_is_freed_of_what_may_go_or_nothing(
    some: list[Candidate], need: int, now: int, cooldown: int
) -> None:
    policy = CostAwareLRFU(cooldown=cooldown)
    chosen = policy.choose(some, need, now)
    free = [one for one in some if not one.active and not one.pinned and now - one.history.last >= cooldown]
    if chosen is None:
        assert sum(one.size for one in free) < need
        return
    assert all(one in free for one in chosen) and len(set(chosen)) == len(chosen)
    total = sum(one.size for one in chosen)
    assert total >= need
    assert all(total - one.size < need for one in chosen)  # nobody goes for nothing
    assert chosen == sorted(chosen, key=policy.rank)


@given(candidates(), st.integers(1, 10))
def test_of_things_of_one_size_those_worth_least_go(some: list[Candidate], need: int) -> None:
    policy = CostAwareLRFU()
    alike = [replace(one, size=1) for one in some]
    free = sorted((one for one in alike if policy.may_go(one, 100)), key=policy.rank)
    assert policy.choose(alike, need, 100) == (free[:need] if len(free) >= need else None)


@pytest.mark.parametrize(
    "wrong", [{"p": 1.5}, {"p": math.nan}, {"step": -0.1}, {"step": 1.1}, {"grain": -1}, {"cooldown": -1}]
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="p must be at least 2"):
        CostAwareLRFU(**wrong)


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    history = used(PAPER, [5, 9])
    assert PAPER.use(history, 3) == history
