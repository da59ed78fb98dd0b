"""What each rule of a cluster adds: all of them, and all but one.

Four machines train with two processors each, for GPUs that would take twice what these prepare. Four more have
processors to spare and memory to give, one of them behind a slow link. Storage gives less than the job reads. So each
rule has something to do: placement (each sample on one machine, or on every one that used it), help (rows prepared on
other machines), pacing (a limit for bytes on their way to a rank), and peers (a machine that is slower than storage
is left for it). Pacing is looked at once more where eight machines send to one rank over a link that is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, beside

from headrace.simulate import Result, Simulation, make_result, read_scenario

IMAGE = 50_000
NO_FIGURE = "not in the paper"
STEP, BATCH, AHEAD = 0.02, 32, 8
LINK, SLOW, STORAGE = "1GB", "10MB", "150MB"
OFF: dict[str, tuple[dict[str, Any], int, int]] = {
    # what is off: rules of the cluster, helpers of each machine, and of the one behind the slow link
    "all rules": ({}, 8, 0),
    "without placement: each machine keeps what it used": ({"placement": "own"}, 8, 0),
    "without help": ({}, 0, 0),
    "without pacing": ({"pacing": False}, 8, 0),
    "without choosing: a machine that has a sample is always asked": ({"peers": "always"}, 8, 0),
    "all rules, and helpers behind the slow link, too": ({}, 8, 8),
}


def trained(
    samples: int, rules: dict[str, Any], helpers: int = 8, slow: int = 0, epochs: int = 4
) -> tuple[Result, float]:
    """The job on its machines, from the third epoch on; and samples read from storage in all, of the dataset's."""
    poor = {"cpus": 2, "pool": "30%", "network": LINK, "delay": 50e-6}
    rich = {**poor, "cpus": 16, "helpers": helpers}
    document = {
        "data": {"samples": samples, "encoded": IMAGE},
        "nodes": [{**poor, "count": 4}, {**rich, "count": 3}, {**rich, "network": SLOW, "helpers": slow}],
        "storage": {"rate": STORAGE, "latency": 0.002},
        "cluster": rules,
        "jobs": [{"loader": "alone", "nodes": 4, "ranks": 2, "batch": BATCH, "epochs": epochs, "step": STEP,
                  "sampling": "uniform", "workers": 1, "ahead": AHEAD}],
        "measure": {"warmup": 2},
    }  # fmt: skip
    simulation = Simulation(read_scenario(document))
    simulation.run()
    return make_result(simulation), sum(node.reads.stored for node in simulation.nodes) / samples


def incast(samples: int, *, paced: bool, link: str = "100MB") -> Result:
    """One rank whose rows eight machines make, and whose link is short."""
    node = {"pool": "30%", "delay": 50e-6}
    document = {
        "data": {"samples": samples, "encoded": IMAGE},
        "nodes": [{**node, "cpus": 1, "network": link},
                  {**node, "count": 8, "cpus": 4, "network": LINK, "helpers": 2}],
        "cluster": {"pacing": paced},
        "jobs": [{"loader": "alone", "batch": 64, "epochs": 4, "sampling": "uniform", "workers": 1, "ahead": 16}],
        "measure": {"warmup": 2},
    }  # fmt: skip
    simulation = Simulation(read_scenario(document))
    simulation.run()
    return make_result(simulation)


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    samples, steps = (4_000 if quick else 16_000), len(OFF) + 2
    everything = 0.0
    for place, (name, (rules, helpers, slow)) in enumerate(OFF.items()):
        progress.step(place, steps, name)
        result, stored = trained(samples, rules, helpers, slow)
        job = result.jobs[0]
        everything = everything or result.images_s
        yield beside(
            name, None, result.images_s, "simulated", "images/s", NO_FIGURE,
            f"{result.images_s / everything:.0%} of all rules; waits p50 {1e3 * job.wait_p50:.1f} ms, "
            f"p99 {1e3 * job.wait_p99:.1f} ms; {stored:.2f} times the dataset from storage in four epochs; "
            f"{job.helped:.0%} of rows made elsewhere",
        )  # fmt: skip
    for place, paced in enumerate((True, False)):
        name = f"eight machines send to one rank, {'paced' if paced else 'not paced'}: rows on their way, p99"
        progress.step(len(OFF) + place, steps, name)
        result = incast(samples // 4, paced=paced)
        job = result.jobs[0]
        yield beside(
            name, None, 1e3 * job.delay_p99, "simulated", "ms", NO_FIGURE,
            f"p50 {1e3 * job.delay_p50:.0f} ms; {result.images_s:,.0f} images/s, waits p50 "
            f"{1e3 * job.wait_p50:.0f} ms, p99 {1e3 * job.wait_p99:.0f} ms; links lose nothing here",
        )  # fmt: skip


EXPERIMENT = Experiment("cluster-rules", "KSpeed", "section III", "what each rule of a cluster adds", run)
