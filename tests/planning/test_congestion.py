"""How many requests at once: within bounds, more while that brings more, fewer while some are refused."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.planning.congestion import START, Congestion

lucks = st.floats(0, 1, allow_nan=False)
answers = st.lists(
    st.tuples(st.booleans(), st.floats(0, 2), st.floats(0.001, 1), st.integers(1, 200), lucks), max_size=120
)


@given(most=st.integers(1, 200), heard=answers)
def test_the_limit_stays_within_bounds(most: int, heard: list[tuple[bool, float, float, int, float]]) -> None:
    congestion, now = Congestion(most), 0.0
    for refused, passed, seconds, under_way, luck in heard:
        now += passed
        before = congestion.limit
        if refused:
            congestion.refused(now, now - seconds, luck)
            assert congestion.limit <= before
        else:
            congestion.answered(now, seconds, under_way)
            assert congestion.limit >= min(before, 8) // 5, "what succeeds takes a queue away, and no more"
        assert 1 <= congestion.limit <= most
        assert 0.0 <= congestion.pause(luck) <= 0.5


def test_requests_that_were_under_way_together_are_one_refusal() -> None:
    one, many = Congestion(128), Congestion(128)
    one.refused(1.0, 0.5, 0.5)
    for at in range(10):
        many.refused(1.0 + at / 1000, 0.5, 0.5)
    assert many.limit == one.limit


def test_what_is_not_used_is_not_raised() -> None:
    congestion = Congestion(128)
    for at in range(1000):
        congestion.answered(at / 100, 0.01, 3)
    assert congestion.limit == START


def test_what_is_used_for_a_moment_is_not_raised() -> None:
    """A call begins all its requests at once, and few are left at its end: that is no reason for more."""
    congestion = Congestion(128)
    for number in range(400):
        congestion.answered(0.01 * number, 0.03, 16 if number % 4 == 0 else 4)
    assert congestion.limit <= START + 2


@pytest.mark.parametrize("takes", [20, 60])
def test_a_queue_is_not_made_longer(takes: int) -> None:
    """Where requests beyond some number only make all of them slower, nothing is gained by them."""
    congestion, now = Congestion(256), 0.0
    for _ in range(5000):
        limit = congestion.limit
        seconds = 0.02 * max(1.0, limit / takes)
        now += seconds / limit
        congestion.answered(now, seconds, limit)
    assert takes <= congestion.limit <= 4 * takes


def test_more_is_tried_when_storage_becomes_faster() -> None:
    congestion, now = Congestion(256), 0.0
    for takes in (20, 80):
        for _ in range(20_000):
            limit = congestion.limit
            seconds = 0.02 * max(1.0, limit / takes)
            now += seconds / limit
            congestion.answered(now, seconds, limit)
        assert takes <= congestion.limit <= 4 * takes


def test_storage_that_is_further_away_than_it_was_gets_more() -> None:
    """What an answer takes is no queue only because it once took less."""
    congestion, now = Congestion(256), 0.0
    for latency, takes in ((0.01, 20), (0.08, 160)):
        for _ in range(30_000):
            limit = congestion.limit
            seconds = latency * max(1.0, limit / takes)
            now += seconds / limit
            congestion.answered(now, seconds, limit)
        assert 0.5 * takes <= congestion.limit <= 4 * takes


def test_nothing_is_asked_for_a_while_where_only_refusals_come() -> None:
    congestion = Congestion(128)
    for at in range(100):
        congestion.refused(float(at), float(at) - 0.01, 0.5)
    assert congestion.limit == 1
    assert congestion.pause(0.0) == 0.25 and congestion.pause(1.0) == 0.5
    congestion.answered(200.0, 0.01, 1)
    assert congestion.pause(1.0) == 0.0, "it answers again"


Rule = Callable[[float, int, random.Random], bool]
"""Whether a request is refused, at this time, with so many under way."""


def simulate(
    rule: Rule, seconds: float, *, processes: int = 1, latency: float = 0.02, seed: int = 1
) -> tuple[list[Congestion], dict[int, int]]:
    """Processes that always want more, at one bucket. Also: answers in each tenth of a second."""
    dice = random.Random(seed)
    all_of_them = [Congestion(64) for _ in range(processes)]
    lucks = [random.Random(seed + 1 + at) for at in range(processes)]
    free = [0.0] * processes
    under_way, total = [0] * processes, 0
    events: list[tuple[float, int, int, float]] = []
    done: dict[int, int] = {}
    number, now = 0, 0.0
    wake = [(0.0, at) for at in range(processes)]
    while now < seconds:
        for _, who in wake:
            while under_way[who] < all_of_them[who].limit and free[who] <= now:
                number += 1
                heapq.heappush(events, (now + latency * (0.8 + 0.4 * dice.random()), number, who, now))
                under_way[who] += 1
                total += 1
            if free[who] > now and not under_way[who]:
                number += 1
                heapq.heappush(events, (free[who], number, who, -1.0))
        now, _, who, begun = heapq.heappop(events)
        wake = [(now, who)]
        if begun < 0:
            continue
        if rule(now, total, dice):
            all_of_them[who].refused(now, begun, lucks[who].random())
            free[who] = now + all_of_them[who].pause(lucks[who].random())
        else:
            all_of_them[who].answered(now, now - begun, under_way[who])
            free[who] = 0.0
            done[int(now * 10)] = done.get(int(now * 10), 0) + 1
        under_way[who] -= 1
        total -= 1
    return all_of_them, done


def rate(done: dict[int, int], start: float, stop: float) -> float:
    return sum(done.get(at, 0) for at in range(round(start * 10), round(stop * 10))) / (stop - start)


@settings(max_examples=16)
@given(
    share=st.sampled_from([0.05, 0.2, 0.6, 1.0]),
    latency=st.sampled_from([0.03, 0.2]),
    seed=st.integers(0, 1000),
)
@example(share=0.2, latency=0.2, seed=4)
def test_it_is_as_fast_as_before_soon_after_the_trouble(share: float, latency: float, seed: int) -> None:
    def trouble(now: float, total: int, dice: random.Random) -> bool:
        return 5 <= now < 15 and dice.random() < share

    _, done = simulate(trouble, 22, latency=latency, seed=seed)
    assert rate(done, 18, 22) >= 0.95 * rate(done, 3, 5), "three seconds after it ended"


@pytest.mark.parametrize("processes", [1, 4, 16])
def test_several_find_what_a_bucket_takes_and_share_it(processes: int) -> None:
    """One that refuses what is beyond 40 at once, as those with a limit do."""
    all_of_them, done = simulate(lambda now, total, dice: total > 40, 30, processes=processes)
    assert rate(done, 20, 30) >= 0.65 * 40 / 0.02
    limits = [one.limit for one in all_of_them]
    assert sum(limits) <= 100
    if processes == 4:
        assert max(limits) <= 6 * min(limits)


def test_processes_do_not_move_in_step() -> None:
    """All see the same trouble at the same moments; if they did the same, they would come back together, too."""
    one, other = Congestion(128), Congestion(128)
    for at in range(50):
        one.refused(float(at), at - 0.01, 0.1)
        other.refused(float(at), at - 0.01, 0.9)
        if at == 2:
            assert one.limit != other.limit
    assert one.pause(0.1) != other.pause(0.9)
