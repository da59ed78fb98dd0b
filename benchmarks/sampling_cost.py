"""What a draw costs with every sampling policy, in time and memory, and how fast the sampling tree takes datasets.

    python benchmarks/sampling_cost.py          (QUICK=1 for a tenth of the draws)

1.3 million samples and 8 jobs, whose epochs started one after the other; each draws 256 samples in turn, 20 % of the
samples ready and 0.1 % pending. The draws are spread over the whole epoch, because a set costs more to choose from
when few samples are left in it. Nothing here waits, so times are CPU times: other programs do not disturb them much.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks.common.machine import describe_machine  # noqa: E402
from benchmarks.common.report import Target, publish, table, target  # noqa: E402

from headrace.core.bits import Bits  # noqa: E402
from headrace.sampling import SAMPLERS, CacheView, Geometry, Remaining, Sampler, Tree, UniformEpoch  # noqa: E402

SAMPLES, JOBS, BATCH = 1_300_000, 8, 256
READY, PENDING = 0.2, 0.001
CACHE_SETS = 7  # a dataset's samples, and of each of three forms what is cached and what is being prepared
PARTS = 10  # stretches of the epoch over which the draws are spread
DATASETS = 128
UNIVERSE = 2_000_000


def random_set(size: int, count: int, rng: np.random.Generator) -> Bits:
    """``count`` of ``size`` samples."""
    return Bits.of(size, rng.permutation(size)[:count])


def staggered(rng: np.random.Generator) -> Remaining:
    """The jobs at the start: the first has seen a third of its epoch, the last nothing.

    Jobs that share draw alike where they can, so what one has seen the others further on have seen too.
    """
    remaining = Remaining(SAMPLES)
    order = rng.permutation(SAMPLES)
    for job in range(JOBS):
        seen = SAMPLES // 3 * (JOBS - 1 - job) // (JOBS - 1)
        remaining.join(job, Bits.of(SAMPLES, order[seen:]))
    return remaining


def measure_sampler(name: str, draws: int) -> dict[str, Any]:
    """Times of draws over an epoch, and the memory that the policy keeps."""
    rng = np.random.default_rng(0)
    sampler: Sampler = SAMPLERS[name]()
    remaining = staggered(rng)
    times: list[float] = []
    kept, key = 0, 0
    for part in range(PARTS):
        # What is ready is drawn first by some policies; a new set in each stretch stands for the cache's change.
        thirds = [random_set(SAMPLES, int(SAMPLES * READY / 3), rng).words for _ in range(3)]
        pending = random_set(SAMPLES, int(SAMPLES * PENDING), rng).words
        views = [
            CacheView(tuple(thirds), pending, tuple(peer for peer in range(JOBS) if peer != job))
            for job in range(JOBS)
        ]
        for _ in range(draws // PARTS // JOBS):
            for job in range(JOBS):
                start = time.thread_time()
                drawn = sampler.draw(remaining, job, BATCH, views[job], key)
                times.append(time.thread_time() - start)
                key += 1
                if len(drawn) != min(BATCH, len(drawn) + remaining.left(job)):
                    raise AssertionError(f"{name} gave {len(drawn)} samples")
        kept = max(kept, int(getattr(sampler, "nbytes", 0)))
        skip(remaining, part, rng)
    # Beside what each job still needs: which augmented samples it must not get, because it may have had them.
    return {**summary(times), "kept_bytes": kept, "remaining_bytes": 2 * remaining.nbytes}


def skip(remaining: Remaining, part: int, rng: np.random.Generator) -> None:
    """Move all jobs on by a stretch of the epoch, as if they had drawn meanwhile."""
    order = rng.permutation(SAMPLES)
    for job in remaining.jobs:
        # The same random samples for everybody, so that what jobs have in common stays in common.
        remaining.take(job, order[: SAMPLES // (PARTS + 1 - part)])


def measure_uniform(draws: int) -> dict[str, Any]:
    """The policy of a job that draws by itself; its order lives in the job's process."""
    epoch = UniformEpoch(SAMPLES, Geometry(BATCH), seed=0, epoch=0, shuffle=True)
    times = []
    for _ in range(min(draws, epoch.steps)):
        start = time.thread_time()
        epoch.draw()
        times.append(time.thread_time() - start)
    return {**summary(times), "kept_bytes": 8 * SAMPLES, "remaining_bytes": 0}


def summary(times: list[float]) -> dict[str, Any]:
    """Mean, p99 and worst in microseconds."""
    micros = sorted(1e6 * one for one in times)
    return {
        "draws": len(micros),
        "mean_us": statistics.fmean(micros),
        "median_us": statistics.median(micros),
        "p99_us": micros[int(0.99 * (len(micros) - 1))],
        "max_us": micros[-1],
    }


def measure_tree(datasets: int) -> dict[str, Any]:
    """Milliseconds to insert a dataset and to compute all vertices anew, for two kinds of datasets."""
    out = {}
    for kind in ("random", "overlapping"):
        rng = np.random.default_rng(1)
        tree, times = Tree(), []
        core = rng.permutation(UNIVERSE)
        for job in range(datasets):
            count = int(rng.integers(1_000_000, 2_000_000))
            if kind == "random":
                bits = random_set(UNIVERSE, count, rng)
            else:
                # Most of each dataset is common to all, so that no intersection is empty.
                own = rng.permutation(UNIVERSE)[: count // 10]
                bits = Bits.of(UNIVERSE, np.concatenate([core[: count - len(own)], own]))
            start = time.thread_time()
            tree.insert(job, bits)
            tree.vertex_sizes()
            for place in range(len(tree.jobs)):
                tree.vertex(place)
            times.append(time.thread_time() - start)
        millis = [1e3 * one for one in times]
        out[kind] = {"mean_ms": statistics.fmean(millis), "last_ms": millis[-1], "max_ms": max(millis)}
    return out


def targets_of(policies: dict[str, Any], metadata: int, tree: dict[str, Any]) -> list[Target]:
    """The wanted numbers."""
    found = [
        target(f"draw of {BATCH}, {name}: mean us", [item["mean_us"]], "<=", 500)
        for name, item in policies.items()
    ]
    found.append(target("metadata of all jobs, most of any policy: MB", [metadata / 1e6], "<=", 4))
    found += [
        target(f"insertion of a dataset into the tree, {kind}: mean ms", [item["mean_ms"]], "<=", 20)
        for kind, item in tree.items()
    ]
    return found


def main() -> None:
    """Measure, print, write. What it finds never makes it fail."""
    quick = os.environ.get("QUICK", "") not in ("", "0")
    draws = 800 if quick else 8000
    policies = {
        "uniform": measure_uniform(draws),
        **{name: measure_sampler(name, draws) for name in SAMPLERS},
    }
    tree = measure_tree(DATASETS // 4 if quick else DATASETS)
    cache_bytes = CACHE_SETS * 8 * -(-SAMPLES // 64)
    rows = [("policy", "mean us", "median us", "p99 us", "max us", "jobs' sets", "policy", "cache's sets")]
    for name, item in policies.items():
        shared = name != "uniform"
        sizes = (item["remaining_bytes"], item["kept_bytes"] if shared else 0, cache_bytes if shared else 0)
        item["metadata_bytes"] = sum(sizes)
        times = (f"{item[field]:.0f}" for field in ("mean_us", "median_us", "p99_us", "max_us"))
        rows.append((name, *times, *(f"{size / 1e6:.2f} MB" for size in sizes)))
    print(f"{SAMPLES:,} samples, {JOBS} jobs, draws of {BATCH}, {READY:.0%} of the samples ready\n")
    print(table(rows))
    print(
        f"\nuniform: the order of a job, {8 * SAMPLES / 1e6:.1f} MB, lies in that job's process, not in the service"
    )
    for kind, item in tree.items():
        print(
            f"tree, {kind} datasets: {item['mean_ms']:.1f} ms to insert on average, "
            f"{item['last_ms']:.1f} ms the last, {item['max_ms']:.1f} ms at most"
        )
    found = targets_of(policies, max(item["metadata_bytes"] for item in policies.values()), tree)
    result = {
        "settings": {"samples": SAMPLES, "jobs": JOBS, "batch": BATCH, "ready": READY, "quick": quick},
        "machine": describe_machine(),
        "policies": policies,
        "tree": {"datasets": DATASETS // 4 if quick else DATASETS, "universe": UNIVERSE, **tree},
    }
    publish("sampling_cost", quick, result, found)


if __name__ == "__main__":
    main()
