"""Seneca, figure 13: hit rates of three jobs by the share of the dataset that is cached.

Simulated: ImageNet-1K's sizes (table 6), the paper's factor of 5.12 for decoded samples, three jobs that train as
fast as they are fed. ``opportunistic`` with eviction by uses is the paper's rule, but for one thing: here a sample
comes in when a job misses it, there the background refills what was evicted. What that can add is computed. ``none``
on a uniform order is MINIO's rule. The paper trains AlexNet, ResNet-50 and MobileNetV2 and does not say how fast each
of them is, so jobs of equal speed and jobs of speeds 1:2:4 are both simulated. Measured: the same in ``make
bench-sharing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.results import median_of, read_result
from benchmarks.papers.rows import Row, absent, at_least, near
from benchmarks.papers.seneca_ods import published_hits

from headrace.simulate import read_scenario, simulate

PAPER = {0.2: 0.54, 0.4: 0.66}
"""Of Seneca; the text has no number for 60 and 80 %."""
SHARES = (0.2, 0.4, 0.6, 0.8)
ENCODED = 114_620
DECODED = round(5.12 * ENCODED)
SPEEDS = (1, 2, 4)
PER_CPU = 1_200.0
"""Samples that a processor prepares in a second; hit rates do not depend on it while jobs wait for data."""


def scenario(
    share: float, samples: int, *, sampling: str, eviction: str, paced: bool = False
) -> dict[str, Any]:
    """Three jobs on one machine whose cache holds ``share`` of the decoded dataset."""
    cost = 1 / PER_CPU
    job = {
        "batch": 64, "epochs": 4, "sampling": sampling, "eviction": eviction, "split": [0.0, 1.0, 0.0],
    }  # fmt: skip
    jobs: list[dict[str, Any]] = [{**job, "count": 3}]
    if paced:
        # The fastest wants a quarter of what the machine can prepare, so that nobody waits for data.
        fastest = 64 / (4 * PER_CPU / 4)
        jobs = [
            {**job, "name": f"speed {speed}", "step": fastest * max(SPEEDS) / speed,
             "epochs": 4 if speed == max(SPEEDS) else 0}
            for speed in SPEEDS
        ]  # fmt: skip
    return {
        "data": {"samples": samples, "encoded": ENCODED, "decoded": DECODED, "augmented": 150_528},
        "nodes": [{"cpus": 4, "cache": f"{round(100 * share)}%"}],
        "jobs": jobs,
        "costs": {"decode": 0.7 * cost, "decode_whole": 0.7 * cost, "augment": 0.3 * cost},
        "measure": {"warmup": 1} if paced else {"warmup": 1, "barrier": True},
    }


def hit_rate(share: float, samples: int, **options: Any) -> float:
    """Simulated."""
    return simulate(read_scenario(scenario(share, samples, **options))).hit_rate


RULES = {
    "Seneca's rule": {"sampling": "opportunistic", "eviction": "uses"},
    "headrace's auto": {"sampling": "auto", "eviction": "auto"},
}


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    samples = 2000 if quick else 8000
    cases = [(share, rule, paced) for share in PAPER for rule in RULES for paced in (False, True)]
    total = len(cases) + len(SHARES)
    for number, (share, rule, paced) in enumerate(cases):
        quantity = f"{rule}, {'speeds 1:2:4' if paced else 'equal speeds'}, {share:.0%} cached"
        progress.step(number, total, quantity)
        found = hit_rate(share, samples, paced=paced, **RULES[rule])
        if rule == "Seneca's rule":
            yield near(quantity, PAPER[share], found, 0.1, "simulated", "%")
        else:
            yield at_least(quantity, PAPER[share], found, "simulated", "%")
    for number, share in enumerate(SHARES):
        quantity = f"MINIO's rule, {share:.0%} cached"
        progress.step(len(cases) + number, total, quantity)
        found = hit_rate(share, samples, sampling="uniform", eviction="none")
        yield near(
            quantity, share, found, 0.1, "simulated", "%", note="the paper: about the share that is cached"
        )
    for share, paper in PAPER.items():
        quantity = f"Seneca's rule as published, refilled at once, {share:.0%} cached"
        found = published_hits(share, samples)
        yield at_least(quantity, paper, found, "computed", "%", note="refilling takes no time here")
    yield from measured()


def measured() -> Iterator[Row]:
    """What ``make bench-sharing`` found with headrace's auto."""
    sharing = read_result("sharing")
    for share, paper in PAPER.items():
        quantity = f"headrace's auto, equal speeds, {share:.0%} cached"
        found = None if sharing is None else median_of(sharing, f"hits-{round(100 * share)}", "hit_rate")
        if found is None:
            yield absent(quantity, paper, "make bench-sharing", "%")
        else:
            yield at_least(quantity, paper, found, "measured", "%")


EXPERIMENT = Experiment("seneca-figure-13", "Seneca", "figure 13", "hit rates of three jobs", run)
