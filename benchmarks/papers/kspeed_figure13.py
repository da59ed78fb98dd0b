"""KSpeed, figure 13: one job on 8 to 512 GPUs.

154 images/s on 8 GPUs set the training step; images are of 200 KB to 2 MB, here 1.1 MB. The paper has no rate for its
parallel file system: it says that PyTorch's scalability drops sharply beyond 256 GPUs, so here it gives a tenth more
than 256 GPUs read. The paper's servers hold the dataset in their memory together and push batches from there. What
headrace has today is a cache on each machine that the others cannot read from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, at_least, beside, later

from headrace.simulate import read_scenario, simulate

EIGHT, MOST = 154.0, 9_300.0
EFFICIENCY = 0.942
IMAGE = 1_100_000
STORAGE = 1.1 * 256 / 8 * EIGHT * IMAGE
BATCH, CPUS, GPUS = 16, 32, 8
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


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    few, many = 8, 512
    samples = many * BATCH * (2 if quick else 8)
    steps = 7
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
        found = rate(many, samples, loader="shared", storage=storage)
        yield at_least(
            f"headrace, 512 GPUs over 8, {what}", EFFICIENCY, found / many / one, "simulated", "%",
            note=f"{found:,.0f} images/s; the paper {MOST:,.0f}",
        )  # fmt: skip
    yield later(
        "512 GPUs over 8, with memory and processors pooled", EFFICIENCY,
        "servers that prepare for others, caches that machines share", "%",
    )  # fmt: skip


EXPERIMENT = Experiment("kspeed-figure-13", "KSpeed", "figure 13", "one job on 8 to 512 GPUs", run)
