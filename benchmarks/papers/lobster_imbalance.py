"""Lobster, section 5.3: iterations in which the GPUs of a job wait for one of them.

ResNet50 on ImageNet-22K (14.2 million of 92 KB): 55,457 iterations on eight GPUs are batches of 32, and 6,932 on 64
GPUs the same. The paper does not define when an iteration is imbalanced: here, when the data of some GPU came later
than that of another by more than a tenth of the training step. Nor does it say how long a step is: here processors
can prepare a quarter more than the GPUs take. Work differs from order to order as the simulator's does by default.
The plain loader, which gives each batch to one worker, stands for PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.lobster_ablation import measured
from benchmarks.papers.rows import Row, at_least, at_most, beside

from headrace.simulate import Simulation, read_scenario
from headrace.simulate.simulation import TrainingRun

LOBSTER = {1: 0.175, 8: 0.228}
"""Iterations with imbalance, by the number of nodes."""
LESS = {1: 0.314, 8: 0.352}
"""By how much less that is than with PyTorch."""
LATE = 0.1
HEADROOM = 1.25
CPUS, RANKS, BATCH = 32, 8, 32
SAMPLE_S = 1e-3
"""Processor time for a sample."""


class Spread:
    """Watches a training run: how far apart in time the batches of its ranks stood, in each step."""

    def __init__(self, run: TrainingRun) -> None:
        self.spreads: list[float] = []
        self._run, self._pass_on = run, run.worked
        self._stood: list[float] = []
        run.worked = self._worked  # type: ignore[method-assign]

    def _worked(self, rank: Any, batch: Any) -> None:
        self._stood.append(rank.stood)
        if len(self._stood) == len(self._run.ranks):
            self.spreads.append(max(self._stood) - min(self._stood))
            self._stood = []
        self._pass_on(rank, batch)


def imbalanced(nodes: int, loader: str, steps: int) -> float:
    """The share of iterations in which some rank's data came late."""
    step = BATCH * RANKS * SAMPLE_S / CPUS * HEADROOM
    job: dict[str, Any] = {
        "nodes": 0, "ranks": RANKS, "batch": BATCH, "epochs": 1, "step": step, "sampling": "uniform",
        "loader": loader, "workers": CPUS // RANKS,
    }  # fmt: skip
    document = {
        "data": {"samples": steps * nodes * RANKS * BATCH, "encoded": 92_000, "decoded": 590_000},
        "nodes": [{"count": nodes, "cpus": CPUS}],
        "jobs": [job],
        "costs": {"fetch": 0.0, "decode": 0.8 * SAMPLE_S, "augment": 0.2 * SAMPLE_S},
        "measure": {"warmup": 0},
    }
    simulation = Simulation(read_scenario(document))
    spread = Spread(simulation.runs[0])
    simulation.run()
    late = [one > LATE * step for one in spread.spreads]
    return sum(late) / len(late)


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    steps = 100 if quick else 500
    for place, (nodes, paper) in enumerate(LOBSTER.items()):
        where = f"{nodes} node{'s' if nodes > 1 else ''}"
        progress.step(2 * place, 2 * len(LOBSTER), f"{where}, a plain loader")
        plain = imbalanced(nodes, "plain", steps)
        progress.step(2 * place + 1, 2 * len(LOBSTER), f"{where}, headrace")
        found = imbalanced(nodes, "alone", steps)
        yield beside(
            f"iterations with imbalance, headrace, {where}", paper, found, "simulated", "%",
            words=f"{paper:.1%} with Lobster", note="by a definition of ours: the paper has none",
        )  # fmt: skip
        yield at_least(
            f"fewer than with a plain loader, {where}", LESS[nodes], 1 - found / plain if plain else 0.0,
            "simulated", "%", note=f"of the plain loader's {plain:.1%}",
        )  # fmt: skip
    fixed, moved = (
        measured(128 if quick else 32, threads=both, eviction=both, share=40 / 1300) for both in (False, True)
    )
    yield at_most(
        "iterations with imbalance, threads moved between GPUs", LOBSTER[1], moved.imbalanced, "simulated", "%",
        words=f"{LOBSTER[1]:.1%} with Lobster",
        note=f"the node of section 5.6, with reads of very different times; fixed threads {fixed.imbalanced:.1%}",
    )  # fmt: skip


EXPERIMENT = Experiment(
    "lobster-imbalance", "Lobster", "section 5.3", "iterations with imbalance between GPUs", run
)
