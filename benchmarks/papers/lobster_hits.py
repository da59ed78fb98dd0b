"""Lobster, section 5.5: hit ratios of one node with eight GPUs, and figure 4: how far apart uses of a sample are.

40 GB of cache for the 135 GB of ImageNet-1K. On one node every sample passes once per epoch. A hit needs a sample
that was kept from one epoch into the next, and no more can be kept over the border between them than the cache holds:
so no rule that fetches on demand, Belady's included, has more hits than the share that is cached.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, at_least, beside, later, near
from benchmarks.papers.traces import belady, epochs_of, keep_first, least_recent

from headrace.simulate import read_scenario, simulate

LOBSTER, PYTORCH, DALI, NOPFS = 0.632, 0.245, 0.326, 0.489
SHARE = 40 / 135
LONG, FAR, ITERATIONS, NODES = 0.80, 1000, 562, 8
"""Figure 4: of the samples, 80 % are used again after more than 1,000 iterations; eight nodes, 562 per epoch."""
NO_FIGURE = "not in the paper"
CAPABILITY = "eviction by reuse distance, and fetching ahead of it"


def simulated_hits(samples: int, eviction: str) -> float:
    """Of one job with eight ranks and a uniform order, in the product's own cache."""
    document = {
        "data": {"samples": samples, "encoded": 105_000, "decoded": 590_000},
        "nodes": [{"cpus": 16, "cache": f"{100 * SHARE:.4f}%"}],
        "jobs": [
            {"ranks": 8, "batch": 16, "epochs": 4, "sampling": "uniform", "eviction": eviction,
             "split": [0.0, 1.0, 0.0]}
        ],
        "measure": {"warmup": 2},
    }  # fmt: skip
    return simulate(read_scenario(document)).hit_rate


def long_reuses(samples: int, epochs: int) -> float:
    """The share of uses on one of the nodes that come more than ``FAR`` iterations after the last one there."""
    rng = np.random.default_rng(0)
    last = np.full(samples, -1)
    far = uses = 0
    per_iteration = samples / ITERATIONS
    for epoch in range(epochs):
        order = rng.permutation(samples)
        places = np.flatnonzero(rng.integers(NODES, size=samples) == 0)
        seen = order[places]
        now = epoch * ITERATIONS + places // per_iteration
        before = last[seen]
        again = before >= 0
        uses += int(np.count_nonzero(again))
        far += int(np.count_nonzero(now[again] - before[again] > FAR))
        last[seen] = now
    return far / uses


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    samples, epochs = (4_000, 6) if quick else (20_000, 12)
    progress.step(0, 3, "rules on a known order")
    order = epochs_of(samples, epochs)
    room, after = int(SHARE * samples), 2 * samples
    best = belady(order, room, after)
    yield at_least(
        "Belady's rule, the most that fetching on demand can have", LOBSTER, best, "computed", "%",
        words="63.2 % with Lobster", note="so Lobster's ratio counts something else",
    )  # fmt: skip
    yield near(
        "least recently used, as in a page cache of 40 GB", PYTORCH, least_recent(order, room, after), 0.1,
        "computed", "%", note="the paper's is PyTorch's",
    )  # fmt: skip
    found = keep_first(order, room, after)
    yield beside(
        "nothing ever goes", None, found, "computed", "%", NO_FIGURE, f"{found / best:.1%} of Belady's"
    )
    progress.step(1, 3, "one job in the simulator")
    for eviction in ("none", "auto"):
        found = simulated_hits(2_000 if quick else 8_000, eviction)
        yield beside(
            f"headrace, uniform order, eviction {eviction}", None, found, "simulated", "%", NO_FIGURE,
            f"{found / best:.1%} of Belady's",
        )  # fmt: skip
    progress.step(2, 3, "reuse distances")
    yield near(
        "figure 4: uses more than 1,000 iterations apart, one node of eight", LONG,
        long_reuses(samples, 60 if quick else 100), 0.1, "computed", "%",
    )  # fmt: skip
    yield later(
        "hit ratio with Lobster's eviction", LOBSTER, CAPABILITY, "%", note="DALI 32.6 %, NoPFS 48.9 %"
    )


EXPERIMENT = Experiment(
    "lobster-hits", "Lobster", "section 5.5", "hit ratios of one node with eight GPUs", run
)
