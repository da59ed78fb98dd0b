"""Small scenarios, and who got what in them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from headrace.simulate import Simulation, read_scenario

QUICK = {"cpus": 2, "cache": "20%"}


def made(
    jobs: list[dict[str, Any]],
    *,
    samples: int = 300,
    nodes: list[dict[str, Any]] | None = None,
    **tables: Any,
) -> Simulation:
    """A simulation of some jobs."""
    data = {"samples": samples, **tables.pop("data", {})}
    document = {"data": data, "nodes": nodes or [QUICK], "jobs": jobs, **tables}
    return Simulation(read_scenario(document))


class Deliveries:
    """What every job was given, epoch by epoch."""

    def __init__(self, simulation: Simulation) -> None:
        self.given: defaultdict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
        simulation.watch = self._note

    def _note(self, job: str, rank: int, epoch: int, samples: np.ndarray) -> None:
        self.given[job, epoch].append(samples.copy())

    def check(self, simulation: Simulation) -> int:
        """Each job has had each of its samples once in each epoch that it is through; how many epochs these are."""
        checked = 0
        for run in simulation.runs:
            for epoch in range(run.epochs):
                ids = np.concatenate(self.given[run.name, epoch])
                assert sorted(ids.tolist()) == list(range(run.samples)), (run.name, epoch)
                checked += 1
        return checked


def check_uses(simulation: Simulation) -> None:
    """Nothing has done more than it could in the time there was."""
    now = simulation.clock.now
    for node in simulation.nodes:
        for resource in (node.processors, node.network, node.storage):
            if resource is not None:
                assert resource.used() <= resource.capacity * now * (1 + 1e-9) + 1e-6
    for run in simulation.runs:
        for rank in run.ranks:
            assert 0 <= rank.tally.waited <= now * (1 + 1e-9)
            assert 0 <= rank.tally.straggled <= now * (1 + 1e-9)
            assert rank.tally.rows >= rank.tally.images
