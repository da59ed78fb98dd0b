"""How fetching threads are divided between ranks."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.planning.threads import least_largest, least_threads, proportional, straggler_aware
from headrace.planning.threads.common_time import common_time
from headrace.planning.threads.evenly import evenly, whole, worst

QUEUES = st.lists(st.one_of(st.just(0.0), st.floats(0.001, 1e6)), min_size=1, max_size=12)


# -- in proportion ---------------------------------------------------------------------------------------------


@given(total=st.integers(0, 300), queues=QUEUES)
@example(total=4, queues=[1e6, 1.0, 1.0, 1.0])
def test_proportional_stays_within_the_total(total: int, queues: list[float]) -> None:
    threads = proportional(total, queues)
    wanting = sum(queue > 0 for queue in queues)
    assert sum(threads) == (total if wanting else 0)
    assert all(count == 0 for count, queue in zip(threads, queues, strict=True) if not queue)
    if wanting <= total:
        assert all(count >= 1 for count, queue in zip(threads, queues, strict=True) if queue)
    for one, other in itertools.permutations(range(len(queues)), 2):
        if queues[one] > queues[other]:
            assert threads[one] >= threads[other], "a longer queue never has fewer threads"


@given(total=st.integers(1, 200), queues=QUEUES, rank=st.integers(0, 11), more=st.floats(0.01, 1e6))
def test_more_queue_never_means_fewer_threads(
    total: int, queues: list[float], rank: int, more: float
) -> None:
    rank %= len(queues)
    longer = list(queues)
    longer[rank] += more
    assert proportional(total, longer)[rank] >= proportional(total, queues)[rank]


@given(total=st.integers(1, 300), queues=st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_proportional_is_as_near_as_whole_threads_allow(total: int, queues: list[int]) -> None:
    threads = proportional(total, queues)
    due = [queue * total / sum(queues) for queue in queues]
    if min(due) >= 1:
        assert all(abs(count - one) < 1 + 1e-9 for count, one in zip(threads, due, strict=True))


# -- least threads ---------------------------------------------------------------------------------------------


@given(
    steps=st.lists(st.floats(0, 5), min_size=1, max_size=80),
    target=st.floats(0, 50),
    start=st.integers(-3, 100),
    tau=st.floats(0, 1),
)
def test_least_threads_against_trying_all(steps: list[float], target: float, start: int, tau: float) -> None:
    times = [math.fsum(steps[at:]) for at in range(len(steps))]
    asked: list[int] = []

    def time(count: int) -> float:
        asked.append(count)
        return times[count - 1]

    found = least_threads(time, target, len(times), start=start, tau=tau)
    assert len(asked) <= math.ceil(math.log2(len(times) + 1)) + 2, "it ends"
    fits = [count for count, one in enumerate(times, 1) if one - target <= tau]
    assert found == (fits[0] if fits else times.index(min(times)) + 1)


# -- stragglers ------------------------------------------------------------------------------------------------

TIMES = st.lists(st.lists(st.floats(0, 5), min_size=9, max_size=9), min_size=1, max_size=4)
"""By how much each further thread makes a rank faster."""


@given(falls=TIMES, total=st.integers(1, 9), floors=st.lists(st.floats(0, 20), min_size=4, max_size=4))
@example(falls=[[1.0, 0, 0, 0, 0, 0, 0, 0, 1.0]] * 2, total=9, floors=[0.0] * 4)
def test_the_largest_time_is_as_small_as_it_can_be(falls: list, total: int, floors: list[float]) -> None:
    ranks = len(falls)

    def time(rank: int, count: int) -> float:
        return 0.1 + math.fsum(falls[rank][count - 1 :])

    def largest(counts) -> float:
        return max(max(time(rank, count), floors[rank]) for rank, count in enumerate(counts))

    found = least_largest(total, time, ranks, floors)
    assert all(count >= 1 for count in found) and sum(found) <= max(total, ranks)
    if ranks <= total:
        ways = itertools.product(range(1, total + 1), repeat=ranks)
        best = min(largest(way) for way in ways if sum(way) <= total)
        assert largest(found) <= 1.002 * best


@given(
    works=st.lists(st.floats(0, 100), min_size=1, max_size=8),
    queues=st.lists(st.floats(0.5, 1000), min_size=8, max_size=8),
    train=st.lists(st.floats(0.01, 20), min_size=8, max_size=8),
    saturates=st.integers(1, 64),
    total=st.integers(1, 64),
    tau=st.floats(0, 1),
)
def test_who_is_late_gets_threads_from_who_is_not(
    works: list[float], queues: list[float], train: list[float], saturates: int, total: int, tau: float
) -> None:
    ranks = len(works)
    queues, train = queues[:ranks], train[:ranks]

    def time(rank: int, count: int) -> float:
        return works[rank] / min(count, saturates)

    def late(counts: list[int]) -> list[float]:
        return [time(rank, max(1, count)) - train[rank] - tau for rank, count in enumerate(counts)]

    start = proportional(total, queues)
    found = straggler_aware(total, queues, time, train, tau=tau)
    assert sum(found) == total
    if total < ranks:
        return
    assert all(count >= 1 for count in found)
    if max(late(start)) <= 0:
        assert found == start, "nobody is late"
    if sum(late(found)[rank] > 1e-9 for rank in range(ranks)) == 0:
        return
    # Somebody is late still: then the least that each needs is more than there is, or threads do not help.
    needs = [
        least_threads(lambda n, rank=rank: time(rank, n), train[rank], total, tau=tau)
        for rank in range(ranks)
    ]
    assert sum(needs) > total or any(late(needs)[rank] > 0 for rank in range(ranks))
    if sum(needs) > total:
        worst_before = max(max(time(rank, start[rank]), train[rank] + tau) for rank in range(ranks))
        worst_after = max(max(time(rank, found[rank]), train[rank] + tau) for rank in range(ranks))
        assert worst_after <= 1.002 * worst_before


def test_a_straggler_gets_what_it_needs() -> None:
    works = [1.0] * 7 + [8.0]
    found = straggler_aware(30, [10.0] * 8, lambda rank, n: works[rank] / n, [0.6] * 8)
    assert found[7] >= 14 and all(count >= 2 for count in found[:7]) and sum(found) == 30
    queues = [10.0] * 7 + [80.0]
    assert straggler_aware(30, queues, lambda rank, n: works[rank] / n, [0.6] * 8) == proportional(30, queues)


# -- with known work -------------------------------------------------------------------------------------------


@given(works=st.lists(st.floats(0, 100), min_size=1, max_size=4), total=st.integers(1, 9))
def test_evenly_makes_the_largest_least(works: list[float], total: int) -> None:
    found = evenly(works, total)
    assert sum(found) == max(total, len(works)) and min(found) >= 1
    if len(works) <= total:
        ways = itertools.product(range(1, total + 1), repeat=len(works))
        assert worst(works, found) == pytest.approx(
            min(worst(works, way) for way in ways if sum(way) <= total)
        )


@given(
    works=st.lists(st.floats(0, 10), min_size=1, max_size=16),
    limit=st.integers(1, 32),
    most=st.integers(1, 32),
)
def test_whole_threads_within_bounds(works: list[float], limit: int, most: int) -> None:
    found = whole(works, limit, most)
    assert limit <= found <= max(limit, most)
    if found > limit:
        assert worst(works, evenly(works, limit)) >= 1.1 * max(1, worst(works, evenly(works, found))) - 1e-9


def test_ranks_alike_get_threads_alike() -> None:
    assert whole([1.8] * 8, 15, 16) == 16
    assert whole([0.9] * 8, 15, 16) == 15


@given(
    works=st.lists(st.floats(0, 100), min_size=1, max_size=10),
    floors=st.lists(st.one_of(st.just(0.0), st.floats(0.01, 10)), min_size=10, max_size=10),
    capacity=st.floats(0.5, 100),
)
def test_the_common_time_is_the_least_that_capacity_allows(
    works: list[float], floors: list[float], capacity: float
) -> None:
    floors = floors[: len(works)]
    common = common_time(works, floors, capacity)

    def used(time: float) -> float:
        return sum(
            work / max(time, floor, 1e-300) if work else 0.0
            for work, floor in zip(works, floors, strict=True)
        )

    assert used(common * (1 + 1e-9)) <= capacity * (1 + 1e-6)
    if common > 1e-9 and any(floor < common for floor, work in zip(floors, works, strict=True) if work):
        assert used(common * 0.99) > capacity * (1 - 1e-6), "no shorter time would do"
