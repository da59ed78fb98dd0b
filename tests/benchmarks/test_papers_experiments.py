"""The papers' experiments, as far as they are quick; and what they make of results that other benchmarks left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from benchmarks.common import report
from benchmarks.papers import (
    cluster_rules,
    dlcache_figure7,
    joader_figure6,
    joader_figure7,
    joader_sampling,
    joader_table1,
    kspeed_figure13,
    lobster_ablation,
    lobster_hits,
    lobster_imbalance,
    lobster_peers,
    seneca_figure8,
    seneca_figure13,
    seneca_figure14,
)
from benchmarks.papers.bar import Bar
from benchmarks.papers.dlcache_policies import OURS, PAPERS, POLICIES, Chunk, use, victims
from benchmarks.papers.results import median_of, ratio_of
from benchmarks.papers.rows import Row
from benchmarks.papers.seneca_ods import published_hits
from benchmarks.papers.traces import belady, epochs_of, keep_first, least_recent, next_uses

pytestmark = pytest.mark.slow

READERS: list[Callable[[], Iterator[Row]]] = [
    lambda: seneca_figure8.run(True, Bar(1)),
    seneca_figure13.measured,
    seneca_figure14.measured,
    joader_table1.measured,
    lambda: joader_figure6.measured(None),
    lambda: joader_figure7.measured(None),
    lambda: joader_sampling.insertion(None),
]


@pytest.mark.parametrize("reader", READERS)
def test_absent_results_are_named_with_what_makes_them(
    reader: Callable[[], Iterator[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    rows = list(reader())
    assert rows and all(row.agrees == "absent" and row.ours is None for row in rows)
    assert all("run make bench-" in row.note or "run python benchmarks/" in row.note for row in rows)


def test_results_of_other_benchmarks_are_read_by_rounds() -> None:
    def case(name: str, *rates: float) -> dict[str, object]:
        runs = [{"images_s": rate} for rate in rates]
        return {
            "name": name,
            "status": "measured",
            "runs": runs,
            "summary": {"images_s": {"median": rates[0]}},
        }

    sharing = {"cases": [case("a", 40, 90), case("b", 10, 30), {"name": "c", "status": "failed"}]}
    assert median_of(sharing, "a", "images_s") == 40
    assert ratio_of(sharing, "a", "b", "images_s") == 3.5
    assert median_of(sharing, "c", "images_s") is None and ratio_of(sharing, "a", "c", "images_s") is None


def test_figure_8_has_the_worst_split_and_leaves_out_what_cannot_correlate() -> None:
    def points(split: str, measured: list[float], seneca: list[float]) -> list[dict[str, object]]:
        return [
            {"split": split, "measured": m, "seneca": s, "bottleneck": 7.0}
            for m, s in zip(measured, seneca, strict=True)
        ]

    result = {"points": points("encoded", [1, 2, 3], [2, 4, 6]) + points("decoded", [1, 2, 3], [3, 1, 2])}
    rows = list(seneca_figure8.compare(result))
    worst = next(row for row in rows if "lowest of 2 splits" in row.quantity)
    assert worst.ours == pytest.approx(-0.5) and worst.agrees == "no" and "decoded" in worst.note
    assert not any("headrace's own model: lowest" in row.quantity for row in rows)
    assert [row.ours for row in rows if "headrace's own" in row.quantity] == [0.0]


# -- traces ------------------------------------------------------------------------------------------------------


def best_by_trying(order: list[int], room: int) -> int:
    """The most hits, over all ways to keep samples."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for sample in order:
        following: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            reached = hits + (sample in cached)
            pool = cached | {sample}
            for kept in itertools.combinations(sorted(pool), min(room, len(pool))):
                key = frozenset(kept)
                following[key] = max(reached, following.get(key, 0))
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", range(5))
def test_beladys_rule_is_the_best_there_is(seed: int) -> None:
    order = np.random.default_rng(seed).integers(0, 6, 24)
    for room in (1, 2, 4):
        assert round(belady(order, room) * len(order)) == best_by_trying(order.tolist(), room)


def test_known_orders_have_known_hits() -> None:
    assert next_uses(np.array([3, 1, 3, 3, 1])).tolist() == [2, 4, 3, 5, 5]
    round_and_round = np.array([0, 1, 2] * 4)
    assert least_recent(round_and_round, 2) == 0
    assert keep_first(round_and_round, 2) == pytest.approx(6 / 12)
    assert keep_first(round_and_round, 2, after=3) == pytest.approx(6 / 9)


def test_in_epochs_nobody_has_more_hits_than_the_share_that_is_cached() -> None:
    order = epochs_of(1000, 8)
    assert belady(order, 300, 1000) == pytest.approx(0.3, abs=1e-9)
    # The probability that little enough came between two uses: c + (1 - c) ln(1 - c)
    assert least_recent(order, 300, 1000) == pytest.approx(0.3 + 0.7 * np.log(0.7), abs=0.02)


# -- Joader ------------------------------------------------------------------------------------------------------


def test_draws_meet_as_often_as_they_can() -> None:
    assert joader_sampling.meetings(1000, 1000, 500, 20) == pytest.approx(0.5, abs=0.06)
    assert joader_sampling.meetings(400, 1000, 0, 5) == 0
    assert joader_sampling.meetings(1000, 1000, 1000, 2) == 1


def test_the_server_is_set_by_two_numbers_of_the_table() -> None:
    assert joader_table1.minutes(1, 2500, joader=False) == pytest.approx(31.74, rel=0.06)
    six = joader_table1.minutes(6, 5000, joader=False)
    assert six == pytest.approx(67.85, rel=0.15)
    assert joader_table1.minutes(3, 1280, joader=True) < 0.8 * six


def test_an_insertion_is_compared_with_the_paper() -> None:
    cost = {"tree": {"datasets": 128, "random": {"mean_ms": 3.5}, "overlapping": {"mean_ms": 571.0}}}
    assert [row.agrees for row in joader_sampling.insertion(cost)] == ["yes", "no"]


# -- Seneca ------------------------------------------------------------------------------------------------------


def test_a_cache_that_keeps_what_it_has_hits_as_often_as_it_is_large() -> None:
    found = seneca_figure13.hit_rate(0.4, 800, sampling="uniform", eviction="none")
    assert found == pytest.approx(0.4, abs=0.03)
    assert seneca_figure13.hit_rate(0.2, 800, sampling="auto", eviction="auto") > 0.6


def test_the_published_rule_hits_more_often_than_it_holds() -> None:
    assert 0.5 < published_hits(0.2, 1600) < 0.75
    assert published_hits(0.0, 640) == 0


def test_the_split_follows_what_limits_the_machine() -> None:
    encoded, _, augmented = seneca_figure14.planned_split(1, 10_000, False)
    assert encoded > 0.9 and augmented == 0
    assert seneca_figure14.planned_split(1, 10_000, True)[1] > 0.9
    assert seneca_figure14.planned_split(4, 10_000, False)[2] > 0
    assert seneca_figure14.show_split(1, 10_000, False) == "100-0-0"


# -- Lobster -----------------------------------------------------------------------------------------------------


def test_a_steps_spread_is_from_the_first_batch_to_the_last() -> None:
    class Training:
        ranks = (SimpleNamespace(stood=2.0), SimpleNamespace(stood=2.5), SimpleNamespace(stood=1.0))
        worked_on: ClassVar[list[object]] = []

        def worked(self, rank: object, batch: object) -> None:
            self.worked_on.append(rank)

    training: Any = Training()
    spread = lobster_imbalance.Spread(training)
    for _ in range(2):
        for rank in training.ranks:
            training.worked(rank, None)
    assert spread.spreads == [1.5, 1.5]
    assert training.worked_on == [*training.ranks] * 2


def test_headrace_has_less_imbalance_than_a_plain_loader() -> None:
    plain = lobster_imbalance.imbalanced(1, "plain", 150)
    assert lobster_imbalance.imbalanced(1, "alone", 150) < plain < 1


def test_each_part_of_lobster_makes_a_node_faster() -> None:
    fixed, threads, eviction, both = (
        lobster_ablation.measured(400, threads=threads, eviction=eviction, epochs=1)
        for threads, eviction in [(False, False), (True, False), (False, True), (True, True)]
    )
    assert threads.step < eviction.step < fixed.step
    assert both.step <= 1.001 * threads.step
    assert threads.reads == fixed.reads > eviction.reads
    assert fixed.readers == 3 < threads.readers
    assert both.hits > 0.9 > eviction.hits > fixed.hits
    assert both.imbalanced < fixed.imbalanced


@pytest.mark.parametrize("name", ["ImageNet-1K, 1 node", "ImageNet-22K, 8 nodes"])
def test_what_is_needed_soonest_is_there_and_little_more_is_read_than_must_be(name: str) -> None:
    found = lobster_hits.foreseen(name, lobster_hits.CASES[name][3] * 8, epochs=3)
    assert found.hits > 0.9
    assert 0.99 < found.reads < 1.05
    assert (found.taken_over > 0.1) == name.endswith("8 nodes")


def test_reuse_distances_are_those_of_one_node_of_eight() -> None:
    assert lobster_hits.long_reuses(2000, 60) == pytest.approx(0.82, abs=0.03)


def test_the_products_cache_comes_close_to_beladys_bound() -> None:
    assert lobster_hits.simulated_hits(1000, "none") == pytest.approx(lobster_hits.SHARE, abs=0.02)


# -- DLCache -----------------------------------------------------------------------------------------------------


def test_the_series_are_those_of_the_paper() -> None:
    numbers = len(dlcache_figure7.REUSES) * len(dlcache_figure7.SHARED) * len(dlcache_figure7.REUSED_FILES)
    assert numbers * len(dlcache_figure7.STORAGE) * 50 == 24_000
    jobs = dlcache_figure7.make_jobs(3, 5, 7, random.Random(0))
    sizes = sorted(round(sum(chunk.size for chunk in chunks), 2) for chunks, _ in jobs)
    assert sizes == [6.89, 6.89, 96, 105, 136, 136, 136, 136]
    assert sorted(count for _, count in jobs) == [1] * 7 + [5]


@pytest.mark.parametrize("name", POLICIES)
def test_preparing_costs_what_was_missing(name: str) -> None:
    policy = POLICIES[name]
    jobs = dlcache_figure7.make_jobs(3, 3, 3, random.Random(1))
    once = sum({chunk.name: chunk.cost for chunks, _ in jobs for chunk in chunks}.values())
    always = sum(chunk.cost for chunks, _ in jobs for chunk in chunks)
    assert dlcache_figure7.preparation_time(jobs, 1000, policy, random.Random(1)) == pytest.approx(once)
    assert once < dlcache_figure7.preparation_time(jobs, 160, policy, random.Random(1)) < always


@pytest.mark.parametrize("name", [OURS, PAPERS])
def test_of_chunks_that_are_alike_the_cheapest_goes(name: str) -> None:
    policy, dice = POLICIES[name], random.Random(0)
    dear, cheap, often = Chunk("dear", 1, 9), Chunk("cheap", 1, 1), Chunk("often", 1, 0.1)
    for now in range(0, 8, 2):
        use(often, now, 1, policy)
    for chunk in (dear, cheap):
        use(chunk, 0, 1, policy)
    order = victims(policy, [often, dear, cheap], 3, 9, dice)
    assert [chunk.name for chunk in order] == ["cheap", "dear", "often"]
    stable = victims(POLICIES["LRFU"], [dear, cheap], 2, 9, dice)
    assert [chunk.name for chunk in stable] == ["dear", "cheap"]


def test_jobs_at_the_same_time_are_one_use_to_headrace_and_many_to_the_paper() -> None:
    for name, goes in ((OURS, "crowd"), (PAPERS, "again")):
        policy = POLICIES[name]
        crowd, again = Chunk("crowd", 1, 1), Chunk("again", 1, 1)
        use(crowd, 2, 7, policy)
        use(again, 0, 1, policy)
        use(again, 2, 1, policy)
        (first,) = victims(policy, [crowd, again], 1, 9, random.Random(0))
        assert first.name == goes


# -- KSpeed ------------------------------------------------------------------------------------------------------


def test_gpus_wait_where_storage_does_not_keep_up() -> None:
    eight = kspeed_figure13.rate(8, 1024, loader="plain", storage=1e12)
    assert eight == pytest.approx(kspeed_figure13.EIGHT, rel=0.1)
    half = 0.5 * kspeed_figure13.EIGHT * kspeed_figure13.IMAGE
    assert kspeed_figure13.rate(8, 1024, loader="plain", storage=half) == pytest.approx(eight / 2, rel=0.1)


def test_with_one_memory_gpus_do_not_wait_for_storage() -> None:
    eight, many = (kspeed_figure13.pooled(gpus, 4096) for gpus in (8, 128))
    assert many.rate / 16 >= kspeed_figure13.WANTED * eight.rate
    # (epochs are of two steps here, and storage that is idle is faster than some machines for a moment)
    assert eight.stored == 1.0 and many.stored < 1.35
    alone = kspeed_figure13.rate(128, 4096, loader="shared", storage=kspeed_figure13.STORAGE / 4)
    assert alone < 0.8 * many.rate


def test_each_rule_of_a_cluster_shows_where_it_is_needed() -> None:
    found = {name: cluster_rules.trained(4000, *off) for name, off in cluster_rules.OFF.items()}
    rates = {name.split(":")[0]: result.images_s for name, (result, _) in found.items()}
    every = rates["all rules"]
    assert rates["without placement"] < 0.8 * every
    assert rates["without help"] < 0.95 * every
    assert rates["without choosing"] < 0.8 * every
    stored = {name.split(":")[0]: stored for name, (_, stored) in found.items()}
    assert stored["without choosing"] == pytest.approx(1.0) and stored["all rules"] < 1.8
    assert stored["without placement"] > 2


def test_pacing_keeps_rows_from_standing_before_a_short_link() -> None:
    paced, unpaced = (cluster_rules.incast(1000, paced=paced).jobs[0] for paced in (True, False))
    assert paced.delay_p99 < 0.6 * unpaced.delay_p99
    assert paced.images_s > unpaced.images_s


def test_peers_have_what_a_node_has_not_where_all_of_it_fits() -> None:
    found = lobster_peers.placed("ImageNet-1K, 8 nodes", 400, ahead=False, epochs=3)
    assert found.of_misses > 0.95 and found.local == pytest.approx(1 / 8, abs=0.03)
    part = lobster_peers.placed("ImageNet-22K, 8 nodes", 3000, ahead=False, epochs=3)
    assert 0.1 < part.of_misses < 0.4 and part.stored == pytest.approx(1 - part.local - part.peers, abs=0.05)
