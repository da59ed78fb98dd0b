"""KSpeed, figure 13: one job on 8 to 512 GPUs.

154 images/s on 8 GPUs set the training step; images are of 200 KB to 2 MB, here 1.1 MB. The paper has no rate for its
parallel file system: it says that PyTorch's scalability drops sharply beyond 256 GPUs, so here it gives a tenth more
than 256 GPUs read. The paper's servers hold the dataset in their memory together and push batches from there.
headrace is here once with a cache on each machine that the others cannot read from, and once with the memory of all
machines as one pool, from which each worker takes what it needs. A machine's link is of 10 GB/s each way, a tenth of
the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, at_least, beside

from headrace.simulate import Simulation, make_result, read_scenario, simulate

NO_FIGURE = "in a figure alone"
EIGHT, MOST = 154.0, 9_300.0
EFFICIENCY = 0.942
IMAGE = 1_100_000
STORAGE = 1.1 * 256 / 8 * EIGHT * IMAGE
BATCH, CPUS, GPUS = 16, 32, 8
WANTED = 0.97
"""What is asked of headrace with one memory."""
LINK, DELAY = "10GB", 50e-6
"""Of a machine's link, each way, and for a message between two."""
SAMPLE_S = 0.02
"""Processor time for an image; the paper has none. A node has more than enough of it."""


def rate(gpus: int, samples: int, *, loader: str, storage: float) -> float:
    """Images/s of a job on so many GPUs, from its second epoch on."""
    job: dict[str, Any] = {
        "nodes": 0, "ranks": GPUS, "batch": BATCH, "epochs": 3, "step": BATCH * GPUS / EIGHT, "loader": loader,
        "sampling": "uniform", "workers": CPUS // GPUS, "drop_last": True,
    }  # fmt: skip
    if loader == "shared":
        job["split"] = [1.0, 0.0, 0.0]
    document = {
        "data": {"samples": samples, "encoded": IMAGE, "decoded": 6 * IMAGE},
        "nodes": [{"count": gpus // GPUS, "cpus": CPUS, "cache": samples * IMAGE}],
        "storage": {"rate": storage, "latency": 0.002},
        "jobs": [job],
        "costs": {"decode": 0.9 * SAMPLE_S, "decode_whole": 0.9 * SAMPLE_S, "augment": 0.1 * SAMPLE_S},
        "measure": {"warmup": 1},
    }
    return simulate(read_scenario(document)).images_s


@dataclass(frozen=True)
class Pooled:
    """Of a job whose machines have one memory."""

    rate: float
    """Images/s from the second epoch on, and in the first."""
    first: float
    stored: float
    """Samples that were read from storage, over all epochs, of the dataset's."""


def pooled(gpus: int, samples: int, epochs: int = 3) -> Pooled:
    """The memory of all machines holds the dataset, with a quarter to spare."""
    machines = gpus // GPUS
    document = {
        "data": {"samples": samples, "encoded": IMAGE, "decoded": 6 * IMAGE},
        "nodes": [{"count": machines, "cpus": CPUS, "pool": int(1.25 * samples * IMAGE / machines) + 64 * IMAGE,
                   "network": LINK, "delay": DELAY}],
        "storage": {"rate": STORAGE, "latency": 0.002},
        "jobs": [{"nodes": 0, "ranks": GPUS, "batch": BATCH, "epochs": epochs, "step": BATCH * GPUS / EIGHT,
                  "loader": "alone", "sampling": "uniform", "workers": CPUS // GPUS, "drop_last": True}],
        "costs": {"decode": 0.9 * SAMPLE_S, "decode_whole": 0.9 * SAMPLE_S, "augment": 0.1 * SAMPLE_S},
        "measure": {"warmup": 1},
    }  # fmt: skip
    simulation = Simulation(read_scenario(document))
    simulation.run()
    result = make_result(simulation)
    images = result.images / (epochs - 1)
    stored = sum(node.reads.stored for node in simulation.nodes)
    return Pooled(result.images_s, images / result.began, stored / samples)


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    few, many = 8, 512
    samples = many * BATCH * (2 if quick else 8)
    sizes = (64, many) if quick else (64, 128, 256, many)
    steps = 7 + len(sizes)
    plain = {}
    for place, gpus in enumerate((few, 256, many)):
        progress.step(place, steps, f"a plain loader, {gpus} GPUs")
        plain[gpus] = rate(gpus, samples, loader="plain", storage=STORAGE) / gpus
    yield beside(
        "a plain loader: what a GPU gets with 512, of that with 256", None, plain[many] / plain[256],
        "simulated", "%", "drops sharply beyond 256 GPUs", "this set the file system's rate",
    )  # fmt: skip
    progress.step(3, steps, f"headrace, {few} GPUs")
    one = rate(few, samples, loader="shared", storage=STORAGE) / few
    for place, (storage, what) in enumerate(
        ((STORAGE, "the same file system"), (4 * STORAGE, "four times its rate"))
    ):
        progress.step(4 + place, steps, f"headrace, {many} GPUs, {what}")
        speed = rate(many, samples, loader="shared", storage=storage)
        yield at_least(
            f"headrace, a cache on each machine: 512 GPUs over 8, {what}", EFFICIENCY, speed / many / one,
            "simulated", "%", note=f"{speed:,.0f} images/s; the paper {MOST:,.0f}",
        )  # fmt: skip
    progress.step(6, steps, f"headrace, one memory, {few} GPUs")
    alone = pooled(few, samples)
    found = alone
    for place, gpus in enumerate(sizes):
        progress.step(7 + place, steps, f"headrace, one memory, {gpus} GPUs")
        found = pooled(gpus, samples)
        share = found.rate / gpus * few / alone.rate
        paper = EFFICIENCY if gpus == many else None
        yield Row(
            f"headrace, one memory: {gpus} GPUs over 8, the same file system", paper, share, "simulated",
            f"at least {WANTED:.0%}", "yes" if share >= WANTED else "no", "%", "" if paper else NO_FIGURE,
            f"{found.rate:,.0f} images/s; {found.stored:.3f} times the dataset read from storage in three epochs",
        )  # fmt: skip
    yield beside(
        "the same in its first epoch, when all of it comes from storage", None, found.first / many * few / EIGHT,
        "simulated", "%", "it does not say which epochs count", f"{found.first:,.0f} images/s on 512 GPUs",
    )  # fmt: skip


EXPERIMENT = Experiment("kspeed-figure-13", "KSpeed", "figure 13", "one job on 8 to 512 GPUs", run)
