"""DLCache, figure 7: time to prepare datasets over 24,000 series of jobs, by the policy that evicts them.

The datasets, their sizes, the numbers of reuses and sharers and the ten sizes of storage are the paper's (section
IV.A): 480 configurations, each with 50 random sequences. What it leaves open, and what is taken here: a dataset is
cut into chunks of about 7 GB, the 6.89 GB of CSE-CIC-IDS2018 into ten files; a chunk takes 10 s/GB to prepare at the
median, and chunks differ by a factor that is log-normal with a standard deviation of 0.5; a reuse is a job that comes
later; jobs that share LibriSpeech come at the same time; and the job on new data of CSE-CIC-IDS2018 replaces all
files but those that are reused. What an active job uses is not evicted, and jobs come one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from benchmarks.papers.bar import Bar
from benchmarks.papers.dlcache_policies import OURS, PAPERS, POLICIES, Chunk, Policy, use, victims
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, beside, claim
from numpy.typing import NDArray

from headrace.eviction.lrfu import CostAwareLRFU, History

SIZES = {"TrafficInrix": (96.0, 14), "ImageNet": (136.0, 20), "IDS": (6.89, 10), "LibriSpeech": (105.0, 15)}
"""GB, and chunks."""
REUSES, SHARED, REUSED_FILES = (1, 3, 5), (1, 3, 5, 7), (1, 3, 5, 7)
STORAGE = tuple(float(size) for size in np.linspace(160, 260, 10))
SECONDS_PER_GB, DIVERSITY = 10.0, 0.5
QUANTILES = np.linspace(0.01, 0.99, 99)
Job = tuple[list[Chunk], int]
"""What it uses, and how many of its kind come at the same time."""


def make_jobs(reuses: int, shared: int, reused_files: int, dice: random.Random) -> list[Job]:
    """The jobs of a series, in random order, with chunks of their own."""

    def chunks(name: str, label: str = "") -> list[Chunk]:
        size, count = SIZES[name]
        each = size / count
        return [
            Chunk(f"{name}{label} {n}", each, each * SECONDS_PER_GB * dice.lognormvariate(0.0, DIVERSITY))
            for n in range(count)
        ]

    image, old = chunks("ImageNet"), chunks("IDS")
    renewed = old[:reused_files] + chunks("IDS", " new")[reused_files:]
    jobs: list[Job] = [
        (chunks("TrafficInrix"), 1),
        *[(image, 1)] * (1 + reuses),
        (old, 1),
        (renewed, 1),
        (chunks("LibriSpeech"), shared),
    ]
    dice.shuffle(jobs)
    return jobs


def preparation_time(
    jobs: list[Job], storage: float, policy: Policy | CostAwareLRFU, dice: random.Random
) -> float:
    """Seconds spent on preparing chunks, over a series of jobs."""
    for chunks, _ in jobs:
        for chunk in chunks:
            chunk.uses.clear()
            chunk.history = History()
    here: dict[str, Chunk] = {}
    used = seconds = 0.0
    for now, (chunks, count) in enumerate(jobs):
        wanted = {chunk.name for chunk in chunks}
        missing = [chunk for chunk in chunks if chunk.name not in here]
        need = used + sum(chunk.size for chunk in missing) - storage
        if need > 0:
            eligible = [chunk for name, chunk in here.items() if name not in wanted]
            for victim in victims(policy, eligible, need, now, dice):
                del here[victim.name]
                used -= victim.size
        for chunk in missing:
            here[chunk.name] = chunk
            used += chunk.size
            seconds += chunk.cost
        for chunk in chunks:
            use(chunk, now, count, policy)
    return seconds


def series(sequences: int, progress: Bar) -> dict[str, NDArray[np.float64]]:
    """The time of each of 480 configurations, in so many sequences, for each policy."""
    times: dict[str, list[float]] = {name: [] for name in POLICIES}
    configurations = [
        (reuses, shared, files, storage)
        for reuses in REUSES for shared in SHARED for files in REUSED_FILES for storage in STORAGE
    ]  # fmt: skip
    for number, (reuses, shared, files, storage) in enumerate(configurations):
        if number % 48 == 0:
            progress.step(number, len(configurations), f"{number * sequences:,} series")
        for sequence in range(sequences):
            seed = number * 1000 + sequence
            jobs = make_jobs(reuses, shared, files, random.Random(seed))
            for name, policy in POLICIES.items():
                times[name].append(preparation_time(jobs, storage, policy, random.Random(seed)))
    return {name: np.array(found) for name, found in times.items()}


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    times = series(4 if quick else 50, progress)
    for mine in (OURS, PAPERS):
        for name, found in times.items():
            if name not in (OURS, PAPERS):
                yield above(mine, name, times[mine], found)
    for name, found in times.items():
        tail = f"{np.quantile(found, 0.95):,.0f} s and {np.quantile(found, 0.99):,.0f} s"
        yield beside(
            f"median series with {name}", None, float(np.median(found)), "computed", "s",
            words="a figure without numbers", note=f"95 % and 99 % of series take no more than {tail}",
        )  # fmt: skip


def above(mine: str, name: str, ours: NDArray[np.float64], found: NDArray[np.float64]) -> Row:
    """Whether one curve lies above another."""
    ahead = np.quantile(ours, QUANTILES) <= np.quantile(found, QUANTILES) * (1 + 1e-9)
    share = float(ahead.mean())
    return claim(
        f"quantiles at which {mine} is no slower than {name}", "its curve lies above all others", share,
        share == 1.0, "100 %", "computed", "%",
        note=f"{ours.mean():,.0f} s and {found.mean():,.0f} s on average, {len(ours):,} series",
    )  # fmt: skip


EXPERIMENT = Experiment(
    "dlcache-figure-7", "DLCache", "figure 7", "time to prepare datasets, by eviction policy", run
)
