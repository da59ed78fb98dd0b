"""Machines that keep the files that are needed soonest, and ranks that do so in caches of their own."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import OptionError
from headrace.simulate import Simulation, make_result
from tests.simulate.helpers import Deliveries, check_uses, made


def foreseen(
    keeps: str,
    *,
    machines: int = 1,
    peers: bool = False,
    share: float = 0.25,
    samples: int = 1600,
    **job: Any,
) -> Simulation:
    """A job of four ranks on each machine, whose memory holds a share of all files."""
    node = {
        "count": machines, "cpus": 8, "page_cache": int(share * samples) * 50_000, "keeps": keeps, "peers": peers,
        "network": "10GB",
    }  # fmt: skip
    return made(
        [
            {
                "loader": "alone",
                "nodes": 0,
                "ranks": 4,
                "batch": 4,
                "epochs": 4,
                "step": 0.05,
                "workers": 1,
                **job,
            }
        ],
        samples=samples,
        nodes=[node],
        data={"encoded": 50_000},
        storage={"rate": "1GB", "latency": 0.001, "shared": False},
        measure={"warmup": 2},
    )


def stored_and_found(simulation: Simulation) -> tuple[float, float]:
    """Of the samples that were used: read from storage, and found in memory."""
    simulation.run()
    result = make_result(simulation)
    assert result.complete
    stored = sum(node.stored for node in result.nodes) / result.images
    return stored, sum(node.memory_hits for node in result.nodes) / len(result.nodes)


def test_what_is_needed_soonest_is_kept_and_fetched_ahead() -> None:
    recent, _ = stored_and_found(foreseen("recent"))
    on_demand, kept = stored_and_found(foreseen("soonest on demand"))
    ahead, found = stored_and_found(foreseen("soonest"))
    assert recent > 0.9
    assert on_demand == pytest.approx(0.75, abs=0.01) and kept == pytest.approx(0.25, abs=0.01)
    assert ahead <= 1.03 * on_demand and found > 0.95


def test_every_sample_comes_once_however_files_are_kept() -> None:
    for keeps, machines, peers in (
        ("soonest", 1, False),
        ("soonest", 3, True),
        ("soonest on demand", 2, False),
    ):
        simulation = foreseen(keeps, machines=machines, peers=peers, samples=600)
        given = Deliveries(simulation)
        simulation.run()
        assert given.check(simulation) == 4
        check_uses(simulation)


def test_machines_that_know_of_each_other_read_no_sample_twice_while_there_is_room() -> None:
    simulation = foreseen("soonest", machines=3, peers=True, share=0.5)
    simulation.run()
    assert sum(node.reads.stored for node in simulation.nodes) == 1600
    assert sum(node.reads.taken_over for node in simulation.nodes) > 800
    apart = foreseen("soonest", machines=3, share=0.5)
    apart.run()
    assert sum(node.reads.stored for node in apart.nodes) > 2400
    assert sum(node.reads.taken_over for node in apart.nodes) == 0


@pytest.mark.parametrize(
    "change", [{"loader": "shared"}, {"cache": "10%"}, {"count": 2}, {"part": [0.0, 0.5]}, {"nodes": 1}]
)
def test_what_is_needed_soonest_is_known_of_one_job_alone(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="keeps"):
        foreseen("soonest", machines=2, sampling="uniform", **change)


def test_ranks_with_caches_of_their_own_hit_more_than_they_cache() -> None:
    job = {
        "loader": "alone",
        "ranks": 4,
        "batch": 8,
        "epochs": 10,
        "cache": "10%",
        "split": [0, 1, 0],
        "workers": 1,
    }
    simulation = made([job], samples=500, measure={"warmup": 5})
    simulation.run()
    assert make_result(simulation).hit_rate > 0.25
