"""What a use of a cached sample saves: measured, and never absurd."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinate.costs import Costs, RunningMean, Took
from headrace.coordinate.events import Done
from headrace.coordinate.pool import Pool
from headrace.coordinate.protocol import Finished
from headrace.coordinate.savings import PRIOR, Savings
from headrace.coordinate.shelf import Shelf
from headrace.core.addresses import Tier
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import Spent
from tests.coordinate.jobs import Member, World
from tests.coordinate.test_pool import needs_one

ROWS = 64
SECONDS = st.one_of(
    st.sampled_from([0.0, 1e-12, 1.0, 1e9, math.inf, math.nan]),
    st.floats(0, 1e9, allow_nan=False),
    st.floats(1e-5, 1.0),
)
COUNTS = st.one_of(st.sampled_from([0, 1, ROWS, 1 << 60]), st.integers(0, 2 * ROWS))
REPORTS = st.builds(
    Spent, fetch=SECONDS, decode=SECONDS, augment=SECONDS, fetched=COUNTS, decoded=COUNTS, prepared=COUNTS
)


def job(savings_of: dict[Any, Shelf], number: int = 1, key: str = "k") -> list[Shelf]:
    """The shelves of a job."""
    found = []
    for form in CACHEABLE:
        shelf = savings_of.setdefault((form, key), Shelf(form, key, 100))
        shelf.jobs.add(number)
        found.append(shelf)
    return found


def report(rows: int = ROWS, fetch: float = 1e-3, decode: float = 5e-3, augment: float = 2e-3) -> Took:
    """Each row took so long."""
    took = Took()
    took.add(Spent(rows * fetch, rows * decode, rows * augment, 0, 0, 0, rows, 0, -1, rows, rows), rows)
    return took


def saved(savings: Savings, shelves: list[Shelf], tier: Tier = Tier.ARENA) -> list[float]:
    return [savings.saves(shelf, tier) for shelf in shelves]


def test_until_enough_was_measured_forms_save_what_is_usual() -> None:
    shelves: dict[Any, Shelf] = {}
    mine = job(shelves)
    savings = Savings(shelves)
    for _ in range(3):
        assert not savings.learn(mine, report())
        assert saved(savings, mine) == list(PRIOR.values())
    assert savings.learn(mine, report())
    assert saved(savings, mine) == pytest.approx([1e-3, 6e-3, 8e-3])
    assert not savings.learn(mine, report())


def test_what_takes_little_longer_changes_nothing_and_what_takes_much_longer_does() -> None:
    shelves: dict[Any, Shelf] = {}
    mine = job(shelves)
    savings = Savings(shelves)
    saved(savings, mine)
    assert [savings.learn(mine, report()) for _ in range(40)] == [False] * 3 + [True] + [False] * 36
    before = saved(savings, mine)
    assert not any(savings.learn(mine, report(decode=5.5e-3)) for _ in range(200))
    assert saved(savings, mine) == before
    changes = [savings.learn(mine, report(decode=20e-3)) for _ in range(400)]
    assert 1 <= sum(changes) < 12 and not any(changes[-100:])
    found = saved(savings, mine)
    assert found[0] == pytest.approx(1e-3) and 21e-3 / 1.2 <= found[1] <= 21e-3 * 1.2


def test_each_shelf_saves_what_its_own_jobs_take_and_a_new_one_what_all_do() -> None:
    shelves: dict[Any, Shelf] = {}
    slow, fast, new = job(shelves, 1, "slow"), job(shelves, 2, "fast"), job(shelves, 3, "new")
    savings = Savings(shelves)
    assert saved(savings, new) == list(PRIOR.values())
    for _ in range(10):
        savings.learn(slow, report(decode=50e-3))
        savings.learn(fast, report(decode=1e-3))
    savings.learn(slow, report(decode=500e-3))  # so that all is taken over
    slowly, quickly, averaged = (saved(savings, shelves)[1] for shelves in (slow, fast, new))
    assert quickly == pytest.approx(2e-3)
    assert quickly < averaged < slowly


@given(st.lists(st.tuples(st.sampled_from("ab"), REPORTS, st.integers(1, ROWS)), max_size=40))
def test_savings_are_in_order_and_the_same_for_the_same_reports(
    reports: list[tuple[str, Spent, int]],
) -> None:
    found = []
    for _ in range(2):
        shelves: dict[Any, Shelf] = {}
        jobs = {"a": job(shelves, 1, "a"), "b": job(shelves, 2, "b")}
        common = Shelf(Form.ENCODED, "common", 100)
        common.jobs |= {1, 2}
        shelves[Form.ENCODED, "common"] = common
        for mine in jobs.values():
            mine[0] = common
        savings = Savings(shelves)
        history = []
        for name, spent, rows in reports:
            took = Took()
            took.add(spent, rows)
            changed = savings.learn(jobs[name], took)
            for mine in jobs.values():
                encoded, decoded, augmented = saved(savings, mine)
                assert 0 < encoded <= decoded <= augmented < math.inf
                costs = [Costs.to(shelf.costs, form) for shelf, form in zip(mine, CACHEABLE, strict=True)]
                assert all(math.isfinite(cost) and cost <= 180 for cost in costs)
            history.append((changed, [saved(savings, mine) for mine in jobs.values()]))
        assert all(changed or before == now for (_, before), (changed, now) in itertools.pairwise(history)), (
            "nothing changes without a word"
        )
        found.append(history)
    assert found[0] == found[1]


@given(st.lists(st.tuples(SECONDS, COUNTS), max_size=30))
def test_one_costs_object_is_in_strict_order(reports: list[tuple[float, int]]) -> None:
    costs = Costs()
    for seconds, count in reports:
        took = Took()
        took.add(Spent(seconds, seconds, seconds, 0, 0, 0, count, 0, -1, count, count), ROWS)
        costs.add(took)
    encoded, decoded, augmented = map(costs.to, CACHEABLE)
    assert 0 < encoded < decoded <= augmented <= 181


@given(st.floats(0, 1), st.one_of(SECONDS, st.floats(0, 1e9)), st.integers(1, 1 << 60))
def test_one_absurd_report_moves_a_mean_little(usual: float, seconds: float, count: int) -> None:
    mean = RunningMean(256, 60.0, 1e-3)
    for _ in range(16):
        mean.add(64 * usual, 64, 64)
    before = mean.mean
    assert before == pytest.approx(usual) and mean.known
    mean.add(seconds, count, 64)
    assert (
        before * 15 / 16 <= mean.mean * 1.0001
        and mean.mean <= before + (7 * before + 1e-3) * 64 / 1024 + 1e-9
    )


def test_a_mean_follows_what_changes() -> None:
    mean = RunningMean(256, 60.0, 1e-3)
    for seconds in (1e-3, 1.0, 1e-4):
        for _ in range(1000):
            mean.add(64 * seconds, 64, 64)
        assert mean.mean == pytest.approx(seconds, rel=0.01) and mean.known
    mean.add(1.0, 0, 64)
    mean.add(1.0, 64, 0)
    assert mean.mean == pytest.approx(1e-4, rel=0.01)


def measured() -> tuple[Savings, list[Shelf]]:
    """Savings in seconds: encoded forms save 1 ms, decoded ones 6, augmented ones 8; each has 100,000 bytes."""
    shelves: dict[Any, Shelf] = {}
    mine = job(shelves)
    for shelf in mine:
        shelf.learn([100_000])
    savings = Savings(shelves)
    for _ in range(8):
        savings.learn(mine, report())
    return savings, mine


def test_reading_from_a_tier_is_taken_off() -> None:
    savings, mine = measured()
    arena = saved(savings, mine)
    assert saved(savings, mine, Tier.DISK) == arena, "not known yet"
    assert not savings.learn_reading(Tier.DISK, 1 << 19, (1 << 19) * 2e-8)
    assert not savings.learn_reading(Tier.ARENA, 1 << 30, 1e9)
    for _ in range(20):
        savings.learn_reading(Tier.DISK, 1 << 20, (1 << 20) * 2e-8)  # 50 MB/s: 2 ms each
    assert saved(savings, mine) == arena
    assert saved(savings, mine, Tier.DISK) == pytest.approx([0.0, 4e-3, 6e-3], rel=0.2)
    assert saved(savings, mine, Tier.PEER) == arena


@given(st.lists(st.tuples(st.integers(0, 1 << 60), SECONDS), max_size=20))
def test_no_tier_saves_less_than_nothing_or_more_than_the_arena(reads: list[tuple[int, float]]) -> None:
    savings, mine = measured()
    for nbytes, seconds in reads:
        savings.learn_reading(Tier.DISK, nbytes, seconds)
        for here, there in zip(saved(savings, mine), saved(savings, mine, Tier.DISK), strict=True):
            assert 0 <= there <= here


def test_a_tier_that_is_slower_than_storage_gets_nothing() -> None:
    pool = Pool({Tier.ARENA: 1 << 30, Tier.DISK: 1 << 30}, needs_one, "none")
    pool.set_budget(1 << 30, None, Tier.DISK)
    mine = [pool.shelf(form, "k", 100, body=100_000) for form in CACHEABLE]
    assert all(pool.admit(shelf, [1], 1) != [None] for shelf in mine)
    for _ in range(8):
        pool.learn(mine, report())
    for _ in range(20):
        pool.learn_reading(Tier.DISK, 1 << 20, (1 << 20) * 2e-8)
        pool.learn_reading(77, 1 << 20, 1.0)
    assert [pool.admit(shelf, [1], 1) == [None] for shelf in mine] == [True, False, False]


def test_what_saves_more_by_measure_stays() -> None:
    """Where decoding is nothing beside fetching, encoded samples are worth more for their bytes."""
    for decode, stays in ((100e-3, Form.DECODED), (1e-6, Form.ENCODED)):
        pool = Pool({Tier.ARENA: 1 << 30}, needs_one, "auto")
        pool.set_budget(10 * 65536, None)
        mine = [
            pool.shelf(form, "k", 100, body=body)
            for form, body in zip(CACHEABLE[:2], (32768, 65536), strict=True)
        ]
        for shelf in mine:
            shelf.jobs |= {1}
        for _ in range(8):
            pool.learn(mine, report(fetch=10e-3, decode=decode))
        for shelf in (*mine, *reversed(mine)):
            pool.changed()
            samples = [sample for sample in range(1, 100, 4) if sample not in shelf]
            for sample, place in zip(samples, pool.admit(shelf, [1] * len(samples), 1), strict=True):
                if place is not None:
                    pool.store(shelf, [sample], [place[0]], [shelf.body], [0])
        forms = {shelf.form: len(shelf) for shelf in mine}
        assert forms[stays] == (10 if stays == Form.DECODED else 20) and sum(forms.values()) == forms[stays]


def test_a_shared_host_learns_from_what_workers_report() -> None:
    world = World()
    member = Member(world, np.arange(1000))
    member.begin()
    decoded = world.state.pool.shelves[Form.DECODED, "d"]
    savings = world.state.pool.savings
    assert savings.saves(decoded, Tier.ARENA) == PRIOR[Form.DECODED]
    rows = 0
    while rows < 512:
        member.ask()
        (work,) = member.work.values()
        count = len(work.forms)
        spent = Spent(count * 1e-3, count * 7e-3, 1.0, 0, 0, 0, count, 0, -1, count, count)
        world.tell(Done(member.member, Finished(work.ticket, 0, count, spent=spent)))
        member.work.clear()
        rows += count
    assert savings.saves(decoded, Tier.ARENA) == pytest.approx(8e-3)
