"""Joader, figure 7: jobs that start one after the other (a), and two jobs on datasets that overlap in part (b).

The paper does not say when jobs start, nor for how many epochs they run: here each starts when the one before is
through a quarter of its first epoch, and runs for two. In (b) both datasets are equally large and only what they have
in common changes; the GPUs are those of table 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.joader_server import BATCH, GPU_RATE, simulate_jobs
from benchmarks.papers.results import Result, median_of, read_result
from benchmarks.papers.rows import Row, absent, at_least, claim, near

SAVED_TIME, SAVED_CPU = 0.171, 0.087
SAME, HALF = 0.60, 0.10
OVERLAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
STEP = BATCH / GPU_RATE


def arriving(samples: int, *, joader: bool) -> tuple[float, float]:
    """Seconds until the last of four jobs has ended, and how busy the processors were."""
    job = {"count": 4, "epochs": 2, "step": STEP, "after": 0.25}
    result = simulate_jobs([job], samples, joader=joader, measure={"warmup": 0})
    return result.seconds, result.nodes[0].cpu


def overlapping(samples: int, overlap: float) -> float:
    """How busy the processors were with two jobs on ``samples`` each, of which they share so large a part."""
    union = round(samples * (2 - overlap))
    share = samples / union
    jobs = [
        {"name": name, "epochs": 3, "step": STEP, "part": part}
        for name, part in (("low", [0.0, share]), ("high", [1 - share, 1.0]))
    ]
    return simulate_jobs(jobs, union, joader=True).nodes[0].cpu


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    samples = 2_500 if quick else 8_000
    steps = 2 + len(OVERLAPS)
    progress.step(0, steps, "four jobs, one after the other: the baseline")
    base_s, base_cpu = arriving(samples, joader=False)
    progress.step(1, steps, "four jobs, one after the other: Joader's rules")
    joader_s, joader_cpu = arriving(samples, joader=True)
    yield at_least(
        "(a) four jobs that start apart: time saved", SAVED_TIME, 1 - joader_s / base_s, "simulated", "%",
        note="until the last has ended",
    )  # fmt: skip
    yield at_least(
        "(a) four jobs that start apart: CPU utilisation saved", SAVED_CPU, base_cpu - joader_cpu, "simulated",
        "%", note=f"in points: {base_cpu:.0%} and {joader_cpu:.0%}",
    )  # fmt: skip
    busy = {}
    for place, overlap in enumerate(OVERLAPS):
        progress.step(2 + place, steps, f"two datasets that overlap by {overlap:.0%}")
        busy[overlap] = overlapping(samples // 2, overlap)
    yield near(
        "(b) CPU utilisation with one dataset, of that with two",
        SAME,
        busy[1.0] / busy[0.0],
        0.15,
        "simulated",
        "%",
    )
    yield at_least(
        "(b) CPU utilisation saved where half is common", HALF, 1 - busy[0.5] / busy[0.0], "simulated", "%"
    )
    falls = [
        before - after for before, after in zip(list(busy.values()), list(busy.values())[1:], strict=False)
    ]
    yield claim(
        "(b) smallest fall of CPU utilisation for another 25 % in common", "always decreases", min(falls),
        min(falls) > 0, "more than 0", "simulated", "%",
        note=", ".join(f"{overlap:.0%}: {value:.1%}" for overlap, value in busy.items()),
    )  # fmt: skip
    yield from measured(read_result("sharing"))


def measured(sharing: Result | None) -> Iterator[Row]:
    """Two datasets of two thirds of the photos each, a half of each in common, with headrace's auto."""
    quantity = "(b) decodes saved where half is common"
    found = None if sharing is None else median_of(sharing, "overlap", "decodes_per_sample")
    if found is None:
        yield absent(quantity, HALF, "make bench-sharing", "%")
        return
    apart = 4 / 3
    yield at_least(
        quantity,
        HALF,
        1 - found / apart,
        "measured",
        "%",
        note="decodes, not CPU; a cache of 20 % saves some",
    )


EXPERIMENT = Experiment(
    "joader-figure-7", "Joader", "figure 7", "jobs that start apart, datasets that overlap", run
)
