"""Joader's server (section 5): 24 cores, 1 GB/s of storage, and GPUs that take a ResNet18 through ImageNet.

Two numbers of table 1 set it: one job alone needs 31.74 minutes for an epoch, which is what its GPU takes; six jobs
of the baseline need 67.85, which is what the processors can prepare. All else is then the simulator's answer. Joader
is ``dependent`` sampling with eviction by reference counts; the paper does not say how large its cache is, only that
it is small: here a tenth of the decoded dataset. The baseline is a plain loader whose jobs have a worker per core.
Of the 1.28 million images some thousands are simulated, and times are scaled.
"""

from __future__ import annotations

from typing import Any

from headrace.simulate import Result, read_scenario, simulate

IMAGES = 1_280_000
ALONE_MIN, BASELINE_SIX_MIN = 31.74, 67.85
GPU_RATE = IMAGES / (60 * ALONE_MIN)
CPU_RATE = 6 * IMAGES / (60 * BASELINE_SIX_MIN)
CPUS = 24
BATCH = 64
CACHE = "10%"
AUGMENTING = 0.2
"""The share of augmenting in the work for a sample; the paper has no number. Where everything is shared it matters
little, as augmented samples are."""


def simulate_jobs(
    jobs: list[dict[str, Any]], samples: int, *, joader: bool, measure: dict[str, Any] | None = None
) -> Result:
    """These jobs on the server, with Joader's rules or with the baseline's."""
    seconds = CPUS / CPU_RATE
    loader: dict[str, Any] = {"loader": "plain", "workers": CPUS}
    if joader:
        loader = {"loader": "shared", "sampling": "dependent", "eviction": "refcount"}
    decode = (1 - AUGMENTING) * seconds
    document = {
        "data": {"samples": samples, "encoded": 110_000, "decoded": 590_000},
        "nodes": [{"cpus": CPUS, "cache": CACHE}],
        "storage": {"rate": "1GB"},
        "jobs": [{"batch": BATCH, **loader, **job} for job in jobs],
        "costs": {"fetch": 0.0, "decode": decode, "decode_whole": decode, "augment": AUGMENTING * seconds},
        "measure": {"warmup": 1, "barrier": True} if measure is None else measure,
    }
    return simulate(read_scenario(document))


def epoch_minutes(result: Result) -> float:
    """Of each of several equal jobs, over all of ImageNet."""
    return IMAGES * len(result.jobs) / result.images_s / 60
