"""Dependent sampling: uniform for each job, and as much alike between jobs as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from headrace.core.bits import Bits
from headrace.sampling import CacheView, Dependent, Remaining, Sampler

SIZE = 20
OVERLAPPING = [range(0, 8), range(4, 14), range(2, 16)]
NESTED = [range(0, 8), range(0, 10), range(0, 13)]
SCATTERED = [[0, 1, 2, 3, 10], [0, 1, 4, 5, 11, 12], [0, 2, 4, 6, 13, 14]]


def seat(sets: list[list[int]] | list[range], size: int = SIZE) -> Remaining:
    """Jobs 0, 1, ... that need these."""
    remaining = Remaining(size)
    for job, members in enumerate(sets):
        remaining.join(job, Bits.of(size, members))
    return remaining


def view_of(jobs: int, job: int, size: int = SIZE) -> CacheView:
    """Nothing is cached; everybody is a peer."""
    return CacheView((), Bits.empty(size).words, tuple(peer for peer in range(jobs) if peer != job))


def position_chi_squares(
    make: Callable[[], Sampler], sets: list[list[int]] | list[range], keys: int
) -> list[float]:
    """For each job, how far (sample, position in the epoch) is from uniform, in standard deviations.

    Jobs draw in turns of different sizes, so that rounds are played with all kinds of queues.
    """
    counts = [np.zeros((len(members), len(members))) for members in sets]
    for key in range(keys):
        sampler, remaining = make(), seat(sets)
        orders: list[list[int]] = [[] for _ in sets]
        turn = 0
        while any(remaining.left(job) for job in range(len(sets))):
            for job in range(len(sets)):
                drawn = sampler.draw(
                    remaining, job, 1 + (job + turn) % 3, view_of(len(sets), job), 1000 * key + turn
                )
                orders[job] += drawn.tolist()
                turn += 1
        for members, order, table in zip(sets, orders, counts, strict=True):
            at = {sample: place for place, sample in enumerate(members)}
            table[[at[sample] for sample in order], np.arange(len(order))] += 1
    out = []
    for table in counts:
        expected = keys / len(table)
        freedom = (len(table) - 1) ** 2
        out.append((((table - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)
    return out


class ByChunk:
    """What Joader's public code does: a chunk of samples is picked uniformly, then a sample in the chunk."""

    name = "by chunk"

    def draw(self, remaining: Remaining, job: int, count: int, view: CacheView, key: int) -> np.ndarray:
        rng = np.random.default_rng(key)
        out = []
        for _ in range(min(count, remaining.left(job))):
            left = remaining.bits(job).ids()
            chunk = rng.choice(np.unique(left // 3))
            out.append(rng.choice(left[left // 3 == chunk]))
            remaining.take(job, np.array(out[-1:]))
        return np.array(out, np.int64)

    def forget(self, job: int) -> None:
        """Nothing was promised."""


KEYS = 300
"""Enough to catch a biased sampler with twice the deviation that is allowed."""


@pytest.mark.parametrize("sets", [OVERLAPPING, NESTED, SCATTERED], ids=["overlapping", "nested", "scattered"])
@pytest.mark.parametrize("window", [4, 1024])
def test_every_sample_is_as_likely_at_every_position(sets: list[range], window: int) -> None:
    assert max(position_chi_squares(lambda: Dependent(window), sets, KEYS)) < 7


def test_a_biased_sampler_is_caught() -> None:
    assert max(position_chi_squares(ByChunk, OVERLAPPING, KEYS)) > 14


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (range(0, 10), range(5, 20)),
        (range(0, 20), range(0, 5)),
        (range(0, 9), range(8, 17)),
        (range(0, 5), range(10, 20)),
    ],
)
def test_two_jobs_agree_as_often_as_they_can(one: range, two: range) -> None:
    """Theorem 1: with probability |I| / max(|D1|, |D2|), which no sampler with uniform draws can exceed."""
    keys, agreed = 2000, 0
    for key in range(keys):
        sampler = Dependent(window=1)
        drawn = sampler.draw(seat([one, two]), 0, 1, view_of(2, 0), key)
        agreed += int(drawn[0] == sampler.promised(1)[0])
    p = len(set(one) & set(two)) / max(len(one), len(two))
    assert abs(agreed / keys - p) <= 6 * (p * (1 - p) / keys) ** 0.5


def naive_rounds(sets: list[set[int]], rounds: int, rng: np.random.Generator) -> list[list[int]]:
    """The algorithm as the paper tells it, on sets: conditional choices of one job after the other, recursively."""
    sets = [set(one) for one in sets]
    out: list[list[int]] = [[] for _ in sets]
    for _ in range(rounds):
        order = sorted(range(len(sets)), key=lambda job: len(sets[job]))
        rest = {job: set(sets[job]) for job in order}
        drawn: dict[int, int] = {}
        while order:
            common = set.intersection(*(rest[job] for job in order))
            takers, before = [], len(common)
            for job in order:
                if rng.random() >= before / len(rest[job]):
                    break
                takers.append(job)
                before = len(rest[job])
            if takers:
                sample = rng.choice(sorted(common))
                drawn.update((job, int(sample)) for job in takers)
            else:
                takers = order[:1]
                drawn[order[0]] = int(rng.choice(sorted(rest[order[0]] - common)))
            order = order[len(takers) :]
            for job in order:
                rest[job] -= common
        for job, sample in drawn.items():
            sets[job].discard(sample)
            out[job].append(sample)
    return out


def pattern(orders: list[list[int]]) -> tuple[str, ...]:
    """Who agrees with whom in each round."""
    return tuple(
        "".join(str(row.index(one)) for one in row) for row in (list(r) for r in zip(*orders, strict=True))
    )


@pytest.mark.parametrize("sets", [OVERLAPPING, NESTED, SCATTERED], ids=["overlapping", "nested", "scattered"])
def test_rounds_share_as_the_paper_tells_it(sets: list[range]) -> None:
    """Two-sample chi-square over who agrees with whom in four rounds of a block, against the paper's own words."""
    keys, rounds = 2500, 4
    found, expected = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    rng = np.random.default_rng(0)
    for key in range(keys):
        sampler, remaining = Dependent(window=rounds), seat(sets)
        first = sampler.draw(remaining, 0, rounds, view_of(len(sets), 0), key).tolist()
        orders = [first, *(sampler.promised(job).tolist() for job in range(1, len(sets)))]
        found[pattern(orders)] += 1
        expected[pattern(naive_rounds([set(one) for one in sets], rounds, rng))] += 1
    # Rare patterns count together, as the chi-square wants it.
    common = [one for one in expected | found if expected[one] + found[one] >= 20]
    cells = [(found[one], expected[one]) for one in common]
    cells.append((keys - sum(a for a, _ in cells), keys - sum(b for _, b in cells)))
    chi_square = sum((a - b) ** 2 / (a + b) for a, b in cells if a + b)
    freedom = len(cells) - 1
    assert freedom > 5
    assert chi_square < freedom + 7 * (2 * freedom) ** 0.5


def test_jobs_with_equal_sets_get_equal_samples() -> None:
    sampler, remaining = Dependent(window=64), seat([range(500)] * 4, 500)
    orders: list[list[int]] = [[] for _ in range(4)]
    for turn in range(125):
        for job in range(4):
            orders[job] += sampler.draw(remaining, job, 4, view_of(4, job, 500), turn * 4 + job).tolist()
    assert orders[0] == orders[1] == orders[2] == orders[3]
    assert sorted(orders[0]) == list(range(500))


def test_jobs_of_unequal_speed_still_share_most_of_what_they_draw() -> None:
    """Four jobs, the fastest three times as fast; a window that bridges the difference for a while."""
    sampler, remaining = Dependent(window=256), seat([range(3000)] * 4, 3000)
    drawn = 0
    last: list[set[int]] = [set() for _ in range(4)]
    for turn in range(40):
        for job in range(4):
            ids = sampler.draw(remaining, job, 16 + 8 * (job == 0), view_of(4, job, 3000), turn * 4 + job)
            last[job] |= set(ids.tolist())
            drawn += len(ids)
    different = len(set.union(*last))
    assert different < 0.45 * drawn, "one preparation serves more than two jobs"


@pytest.mark.parametrize(("count", "promised"), [(64, 512), (256, 768)])
def test_at_least_three_draws_are_promised_however_many_are_left_of_the_last(
    count: int, promised: int
) -> None:
    sampler, remaining = Dependent(), seat([range(9000)] * 2, 9000)
    sampler.draw(remaining, 0, count, view_of(2, 0, 9000), 0)
    assert len(sampler.promised(0)) == promised - count
    few = count // 2
    sampler._queues[0] = sampler._queues[1] = remaining.bits(0).ids()[:few]
    sampler.draw(remaining, 0, count, view_of(2, 0, 9000), 2)
    assert len(sampler.promised(0)) == promised + few - count


def test_a_job_that_does_not_draw_is_left_out_when_its_queue_is_full() -> None:
    sampler, remaining = Dependent(window=32), seat([range(1000), range(1000)], 1000)
    for turn in range(60):
        assert len(sampler.draw(remaining, 0, 16, view_of(2, 0, 1000), turn)) == 16
        assert len(sampler.promised(1)) <= 32
    assert remaining.left(0) == 40
    assert remaining.left(1) == 1000, "what is promised is not yet taken"
    promised = sampler.promised(1)[:16].tolist()
    drawn = sampler.draw(remaining, 1, 16, view_of(2, 1, 1000), 99).tolist()
    assert drawn == promised
    assert sampler.nbytes > 0
    sampler.forget(1)
    assert len(sampler.promised(1)) == 0


def test_a_batch_may_be_larger_than_the_window() -> None:
    sampler, remaining = Dependent(window=4), seat([range(100), range(50)], 100)
    assert len(sampler.draw(remaining, 0, 77, view_of(2, 0, 100), 0)) == 77


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        Dependent(window=0)
