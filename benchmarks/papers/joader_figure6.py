"""Joader, figure 6: five jobs of different speeds, each of which should keep its own.

The text gives one number: ResNet18 runs 4 times as fast as in lockstep with ResNet152. So the slowest job's step is
taken as four times the fastest's, with the others spread evenly between; the fastest is as on its GPU alone (table
1). What is asked is whether data holds the fast job back while it shares with slow ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.joader_server import BATCH, GPU_RATE, simulate_jobs
from benchmarks.papers.results import Result, read_result
from benchmarks.papers.rows import Row, absent, claim, near

FASTER = 4.0
MODELS = ("ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152")


def jobs_of(slowest: float, *, lockstep: bool = False) -> list[dict[str, Any]]:
    """Five jobs whose steps go from 1 to ``slowest``; in lockstep all have the slowest's."""
    step = BATCH / GPU_RATE
    steps = [step * (1 + (slowest - 1) * place / (len(MODELS) - 1)) for place in range(len(MODELS))]
    return [
        {"name": name, "step": steps[-1] if lockstep else one, "epochs": 3 if place == 0 else 0}
        for place, (name, one) in enumerate(zip(MODELS, steps, strict=True))
    ]


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    samples = 2_500 if quick else 8_000
    measure = {"warmup": 1}
    progress.step(0, 3, "with Joader's rules")
    joader = simulate_jobs(jobs_of(FASTER), samples, joader=True, measure=measure)
    progress.step(1, 3, "in lockstep")
    lockstep = simulate_jobs(jobs_of(FASTER, lockstep=True), samples, joader=True, measure=measure)
    yield near(
        "ResNet18 with Joader's rules over lockstep", FASTER, joader.jobs[0].images_s / lockstep.jobs[0].images_s,
        0.1, "simulated", "x",
    )  # fmt: skip
    progress.step(2, 3, "the baseline")
    baseline = simulate_jobs(jobs_of(FASTER), samples, joader=False, measure=measure)
    share = joader.cpu_s_per_1000 / baseline.cpu_s_per_1000
    yield claim(
        "CPU per image, of the baseline's", "less CPU than the baseline", share, share < 1, "less than 100 %",
        "simulated", "%", note=f"CPUs busy {joader.nodes[0].cpu:.0%} and {baseline.nodes[0].cpu:.0%}",
    )  # fmt: skip
    yield from measured(read_result("sharing"))


def measured(sharing: Result | None) -> Iterator[Row]:
    """Three jobs of speeds 1:2:4 here, with headrace's auto."""
    quantity = "the fastest of three jobs of speeds 1:2:4, over alone"
    words = "jobs keep their own speeds"
    for item in sharing["targets"] if sharing is not None else ():
        if "rate of the fast job over its rate alone" in item["name"] and item["value"] is not None:
            found = item["value"]
            yield claim(quantity, words, found, found >= 0.95, "at least 0.95", "measured", "x")
            return
    yield absent(quantity, None, "make bench-sharing", words=words)


EXPERIMENT = Experiment("joader-figure-6", "Joader", "figure 6", "five jobs of different speeds", run)
