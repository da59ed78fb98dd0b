"""Simulated jobs get what real ones do, resources do what they can and no more, and bottlenecks set the pace."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.events import WasIdle
from headrace.eviction import EVICTIONS
from headrace.planning.idling import IDLE, LONGEST
from headrace.simulate import Costs, load_scenario, make_result, ready_scenarios, simulate
from headrace.simulate.scenario import SAMPLINGS
from tests.simulate.helpers import Deliveries, check_uses, made

FREE = dict.fromkeys((field.name for field in msgspec.structs.fields(Costs)), 0.0)
"""Nothing takes any time."""

JOBS = st.fixed_dictionaries(
    {
        "loader": st.sampled_from(["shared", "shared", "shared", "alone", "plain"]),
        "sampling": st.sampled_from(SAMPLINGS),
        "eviction": st.sampled_from(sorted(EVICTIONS)),
        "batch": st.integers(1, 50),
        "ranks": st.integers(1, 3),
        "epochs": st.integers(1, 3),
        "step": st.sampled_from([0.0, 0.003, 0.05]),
        "part": st.sampled_from([(0.0, 1.0), (0.0, 0.5), (0.3, 0.9)]),
        "augmentation": st.sampled_from(["", "other"]),
        "workers": st.integers(1, 3),
        "start": st.sampled_from([0.0, 0.1]),
    }
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(JOBS, min_size=1, max_size=3),
    st.sampled_from([0, "5%", "40%"]),
    st.integers(1, 90),
    st.integers(0, 9),
)
def test_every_job_gets_every_sample_once_per_epoch(
    jobs: list[dict[str, Any]], cache: Any, samples: int, seed: int
) -> None:
    for number, job in enumerate(jobs):
        job["name"] = f"job {number}"
        if round(job["part"][0] * samples) >= round(job["part"][1] * samples):
            job["part"] = (0.0, 1.0)
        # Fewer samples than ranks are repeated, as in the product; that is not what is looked at here.
        job["ranks"] = min(job["ranks"], max(1, int(0.5 * samples) // 2))
        job["batch"] = max(job["batch"], 2)
    simulation = made(
        jobs, samples=samples, nodes=[{"cpus": 3, "cache": cache}], seed=seed, measure={"warmup": 0}
    )
    deliveries = Deliveries(simulation)
    simulation.run()
    assert deliveries.check(simulation) == sum(job["epochs"] for job in jobs)
    check_uses(simulation)
    assert make_result(simulation).complete


def test_ranks_on_several_machines_share_one_epoch() -> None:
    job = {
        "nodes": 3,
        "ranks": 2,
        "batch": 7,
        "epochs": 2,
        "sampling": "uniform",
        "workers": 1,
        "jitter": 0.1,
    }
    simulation = made([job], nodes=[{"count": 3, "cpus": 2, "cache": "10%"}], measure={"warmup": 0})
    deliveries = Deliveries(simulation)
    simulation.run()
    assert deliveries.check(simulation) == 2
    check_uses(simulation)
    for node in simulation.nodes:
        assert len(node.commons.state.universe.datasets) == 1 and node.commons.state.decodes > 0


@pytest.mark.parametrize("loader", ["shared", "alone", "plain"])
def test_the_same_seed_gives_the_same_result(loader: str) -> None:
    def once(seed: int) -> bytes:
        jobs = [{"name": "a", "loader": loader, "jitter": 0.2, "step": 0.01, "workers": 2, "epochs": 2}]
        simulation = made([*jobs, {**jobs[0], "name": "b"}], seed=seed)
        simulation.run()
        return msgspec.json.encode(make_result(simulation))

    assert once(1) == once(1)
    assert once(1) != once(2)


@pytest.mark.parametrize("loader", ["shared", "alone", "plain"])
@pytest.mark.parametrize(
    ("tables", "nodes", "step", "rate"),
    [
        ({"storage": {"rate": 50_000_000}}, {}, 0.0, 1000.0),
        ({}, {"network": 25_000_000}, 0.0, 500.0),
        ({}, {}, 0.32, 200.0),
        ({"costs": {**FREE, "decode": 0.01}}, {}, 0.0, 400.0),
        ({"costs": {**FREE, "augment": 0.01}}, {"speed": 0.5}, 0.0, 200.0),
    ],
    ids=["storage", "network", "gpu", "decode", "augment"],
)
def test_the_slow_resource_sets_the_pace(
    loader: str, tables: dict[str, Any], nodes: dict[str, Any], step: float, rate: float
) -> None:
    """Nothing else takes time, and nothing is cached."""
    simulation = made(
        [{"loader": loader, "sampling": "uniform", "epochs": 4, "step": step, "workers": 4}],
        samples=4096,
        nodes=[{"cpus": 4, "cache": 0, **nodes}],
        data={"encoded": 50_000},
        **{"costs": FREE, **tables},
    )
    simulation.run()
    check_uses(simulation)
    assert make_result(simulation).images_s == pytest.approx(rate, rel=0.03)


def test_shared_storage_is_shared_and_own_storage_is_not() -> None:
    def rate(shared: bool) -> float:
        simulation = made(
            [{"nodes": 4, "sampling": "uniform", "workers": 2, "epochs": 3}],
            samples=4096,
            nodes=[{"count": 4, "cpus": 4}],
            data={"encoded": 50_000},
            costs=FREE,
            storage={"rate": 10_000_000, "shared": shared},
        )
        simulation.run()
        return make_result(simulation).images_s

    assert rate(True) == pytest.approx(200, rel=0.05)
    assert rate(False) == pytest.approx(800, rel=0.05)


def test_a_slow_machine_holds_up_all_others() -> None:
    simulation = made(
        [{"nodes": 4, "sampling": "uniform", "epochs": 2}],
        samples=4096,
        nodes=[{"count": 3, "cpus": 2}, {"cpus": 2, "speed": 0.5}],
    )
    simulation.run()
    result = make_result(simulation)
    assert max(result.nodes, key=lambda node: node.late).number == 3
    assert result.nodes[3].late > 0.9 and result.nodes[3].cpu > 0.9 > 0.7 > result.nodes[0].cpu
    job = result.jobs[0]
    assert job.straggler > 0.2
    assert job.wait + job.straggler <= 1.0


def test_jobs_that_share_prepare_less_than_jobs_alone() -> None:
    """And a page cache spares storage but not the processors."""
    found = {}
    for loader in ("shared", "alone", "plain"):
        simulation = made([{"count": 4, "loader": loader, "epochs": 3, "workers": 1}], samples=1000)
        simulation.run()
        found[loader] = make_result(simulation)
    assert found["shared"].decodes_per_sample < 1.6 < 3.9 < found["plain"].decodes_per_sample
    assert found["shared"].images_s > 2 * max(found["alone"].images_s, found["plain"].images_s)
    assert found["plain"].hit_rate == found["alone"].hit_rate == 0


def test_a_page_cache_that_holds_all_makes_storage_idle() -> None:
    nodes = [{"cpus": 2, "page_cache": "1GB"}]
    simulation = made([{"loader": "plain", "workers": 2, "epochs": 3}], nodes=nodes, storage={"rate": "10MB"})
    simulation.run()
    assert make_result(simulation).storage == 0
    assert make_result(simulation).began > 1.0  # 300 samples of 49 KB at 10 MB/s


def test_a_job_alone_keeps_what_fits_into_its_own_cache() -> None:
    half = 150 * 548_404
    simulation = made([{"loader": "alone", "cache": half, "epochs": 3, "workers": 2}])
    simulation.run()
    assert make_result(simulation).hit_rate == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("loader", ["alone", "shared"])
def test_caches_are_split_by_what_is_measured(loader: str) -> None:
    """On slow storage a cache that holds a fifth of the samples decoded would hold all of them encoded."""
    sets = ["data.samples=1500", "nodes.cache=20%", "storage.rate=24MB", "jobs.count=1", "jobs.epochs=6"]
    if loader == "alone":
        sets += ["jobs.loader=alone", "jobs.sampling=uniform", "jobs.cache=20%"]
    planned = simulate(load_scenario("sharing", sets)).images_s
    fixed = {
        split: simulate(load_scenario("sharing", [*sets, f"jobs.split={split}"])).images_s
        for split in ("[1, 0, 0]", "[0, 1, 0]")
    }
    assert planned > 1.5 * fixed["[0, 1, 0]"]
    assert planned > 0.9 * max(fixed.values())


def test_a_job_starts_when_the_one_before_is_far_enough() -> None:
    simulation = made(
        [{"count": 3, "epochs": 3, "step": 0.05, "after": 0.5, "batch": 10}], measure={"until": "first"}
    )
    begun: dict[str, int] = {}
    simulation.watch = lambda job, rank, epoch, samples: begun.setdefault(job, simulation.runs[0].images)  # type: ignore[assignment]
    simulation.run()
    assert begun["job 0"] == 10
    assert 150 < begun["job 1"] < 200
    assert 300 < begun["job 2"] < 400


def test_what_was_found_so_far_can_be_had_at_any_time() -> None:
    simulation = made([{"epochs": 5}], samples=4000)

    class Enough(Exception):
        pass

    def look() -> None:
        if simulation.progress > 0.3:
            raise Enough

    with pytest.raises(Enough):
        simulation.run(look)
    early = make_result(simulation)
    assert not early.complete and 0 < early.images < 20_000
    simulation.run()
    assert make_result(simulation).complete and make_result(simulation).images == 16_000


def test_what_was_paid_is_what_processors_did() -> None:
    jobs = [
        {"count": 2, "epochs": 3, "sampling": "opportunistic"},
        {"loader": "alone", "cache": "10%", "epochs": 3},
    ]
    simulation = made(jobs, costs={"noise": 0.0}, measure={"warmup": 0})
    simulation.run()
    result = make_result(simulation)
    assert all(result.paid.values())
    spent = sum(getattr(Costs(), name) * often for name, often in result.paid.items())
    # (what was begun before the last batch is done with was paid for, and some of it is never done)
    assert spent == pytest.approx(result.cpu_s_per_1000 * result.images / 1000, rel=0.02)


def test_an_idle_worker_asks_as_a_real_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less and less often while there is nothing for it, and soon again when there was."""
    jobs = [{"count": 2, "workers": 1, "epochs": 4, "step": 0.2, "batch": 20}]
    simulation = made(jobs, nodes=[{"cpus": 2, "cache": "40%"}], measure={"warmup": 0})
    node = simulation.nodes[0]
    handle = node.commons.handle
    asked: list[tuple[float, bool]] = []
    """When the first job's worker asked, and whether there was anything for it."""

    def watched(event: Any, now: float) -> Any:
        answers = handle(event, now)
        if isinstance(event, WasIdle) and event.member == 1:
            asked.append((now, bool(answers)))
        return answers

    monkeypatch.setattr(node.commons, "handle", watched)
    simulation.run()
    assert make_result(simulation).filled > 0
    pauses = [after - before for (before, _), (after, _) in itertools.pairwise(asked)]
    assert min(pauses) >= IDLE - 1e-9
    fills = [at for at, (_, given) in enumerate(asked[:-2]) if given]
    assert fills
    for (
        at
    ) in fills:  # it was waiting for another order already, for the longest time, when there was something
        assert pauses[at : at + 2] == pytest.approx([LONGEST, 2 * IDLE], abs=1e-6)


@pytest.mark.parametrize("name", ready_scenarios())
def test_ready_scenarios_run(name: str) -> None:
    less = (
        ["data.samples=2000", "nodes.count=2", "jobs.ranks=2", "jobs.batch=32"] if name == "cluster" else []
    )
    few = ["jobs.epochs=2"] if name not in ("speeds",) else ["jobs.2.epochs=2"]
    result = simulate(load_scenario(name, less or ["data.samples=800", *few]))
    assert result.complete and result.images_s > 0
