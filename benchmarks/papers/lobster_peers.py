"""Lobster, section 4.2: where samples come from on eight nodes that have one memory.

The paper has three ways to load a sample: from the node's own cache, from another node's, from storage. It has no
figure for them. Here each sample has its node, whoever uses it, as in headrace's clusters; the nodes are those of
``lobster_hits``. Of a node's misses, those count that another node had in its memory when it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.lobster_hits import BATCH, CASES, GPU_S, RANKS, SAMPLES
from benchmarks.papers.rows import Row, beside

from headrace.simulate import read_scenario, simulate

SMALLER = 4
"""Times as small as the cases are there: each sample is a request here."""


@dataclass(frozen=True)
class Placed:
    """Of a job on nodes that have one memory, in which each sample has its node."""

    local: float
    """Samples that lay on the node itself when a worker asked for them, and on another node."""
    peers: float
    stored: float
    """Samples read from storage, of those used."""

    @property
    def of_misses(self) -> float:
        """Of what was not on the node itself, the share that another had."""
        return self.peers / (1 - self.local)


def placed(name: str, divisor: int, *, ahead: bool, epochs: int = 4) -> Placed:
    """One of the cases with the cluster's memory, from the third epoch on. ``ahead``: nodes read ahead of need."""
    nodes, share, nbytes, _ = CASES[name]
    samples = SAMPLES[name.split(",")[0]] // divisor
    batch = max(4, BATCH // 4)
    document = {
        "data": {"samples": samples, "encoded": nbytes},
        "nodes": [{"count": nodes, "cpus": 64, "pool": int(share * samples) * nbytes, "network": "10GB",
                   "delay": 50e-6}],
        "storage": {"rate": "2GB", "latency": 0.002, "shared": False},
        "cluster": {"preload": ahead},
        "jobs": [{"loader": "alone", "nodes": 0, "ranks": RANKS, "batch": batch, "epochs": epochs,
                  "sampling": "uniform", "workers": 4, "step": GPU_S * batch / BATCH}],
        "measure": {"warmup": 2},
    }  # fmt: skip
    result = simulate(read_scenario(document))
    return Placed(
        sum(node.memory_hits for node in result.nodes) / nodes,
        sum(node.peer_hits for node in result.nodes) / nodes,
        sum(node.stored for node in result.nodes) / result.images,
    )


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    cases = [
        (name, divisor * SMALLER * (4 if quick else 1), ahead)
        for name, (nodes, _, _, divisor) in CASES.items()
        if nodes > 1
        for ahead in (False, True)
    ]
    for place, (name, divisor, ahead) in enumerate(cases):
        how = "reading ahead" if ahead else "on demand"
        progress.step(place, len(cases), f"{name}, {how}")
        found = placed(name, divisor, ahead=ahead)
        yield beside(
            f"headrace, one memory, {how}: {name}, misses of a node that another node has", None, found.of_misses,
            "simulated", "%", "three ways to load, no figure",
            f"uses: {found.local:.1%} on the node, {found.peers:.1%} on others; storage gives {found.stored:.1%}; "
            f"1/{divisor} of samples and memory",
        )  # fmt: skip


EXPERIMENT = Experiment(
    "lobster-peers", "Lobster", "section 4.2", "samples from other nodes, on eight with one memory", run
)
