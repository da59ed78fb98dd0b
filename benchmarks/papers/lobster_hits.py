"""Lobster, section 5.5: hit ratios of one node with eight GPUs, and figure 4: how far apart uses of a sample are.

40 GB of cache for the 135 GB of ImageNet-1K. On one node every sample passes once per epoch. A hit needs a sample
that was kept from one epoch into the next, and no more can be kept over the border between them than the cache holds:
so no rule that fetches on demand, Belady's included, has more hits than the share that is cached. What was fetched
ahead lies in memory, too, when it is asked for: where storage has time for that, nearly all are hits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import Row, at_least, beside, near
from benchmarks.papers.traces import belady, epochs_of, keep_first, least_recent

from headrace.simulate import Simulation, make_result, read_scenario, simulate

LOBSTER, PYTORCH, DALI, NOPFS = 0.632, 0.245, 0.326, 0.489
SHARE = 40 / 135
LONG, FAR, ITERATIONS, NODES = 0.80, 1000, 562, 8
"""Figure 4: of the samples, 80 % are used again after more than 1,000 iterations; eight nodes, 562 per epoch."""
NO_FIGURE = "not in the paper"
HITS, READS = 0.9, 1.02
"""What is asked of headrace: hits, kept or fetched ahead, and reads over Belady's rule."""
RANKS, BATCH, GPU_S = 8, 32, 0.045
"""Of a node; and for how long a GPU trains on a batch: about what ResNet50 takes on the paper's, 5,700 images/s."""
CASES = {
    # name: nodes, share of the data that a node's 40 GB hold, bytes of a sample, divisor of samples and cache
    "ImageNet-1K, 1 node": (1, 40 / 135, 105_000, 16),
    "ImageNet-22K, 1 node": (1, 40 / 1300, 92_000, 128),
    "ImageNet-1K, 8 nodes": (8, 40 / 135, 105_000, 16),
    "ImageNet-22K, 8 nodes": (8, 40 / 1300, 92_000, 128),
}
SAMPLES = {"ImageNet-1K": 1_281_167, "ImageNet-22K": 14_197_103}


@dataclass(frozen=True)
class Foreseen:
    """Of a job on nodes that keep what is needed soonest, and fetch ahead."""

    hits: float
    """Samples that lay in the node's memory when its rank's worker asked for them."""
    reads: float
    """Samples read from storage by all nodes, over what Belady's rule reads that fetches on demand with as much
    memory; counted from the third epoch on, or from the first where that rule reads nothing later."""
    taken_over: float
    """Samples taken over from another node, of those used."""


def foreseen(name: str, divisor: int, epochs: int = 4) -> Foreseen:
    """Simulate one of the cases, scaled down."""
    nodes, share, nbytes, _ = CASES[name]
    samples = SAMPLES[name.split(",")[0]] // divisor
    room = int(share * samples)
    # Of eight nodes the batches are scaled as well, so that a step is not a large part of a node's memory.
    batch = BATCH if nodes == 1 else max(4, BATCH // 4)
    everything = nodes * room >= samples
    document = {
        "data": {"samples": samples, "encoded": nbytes},
        "nodes": [{"count": nodes, "cpus": 64, "page_cache": room * nbytes, "keeps": "soonest",
                   "peers": nodes > 1, "network": "10GB"}],
        "storage": {"rate": "2GB", "latency": 0.002, "shared": False},
        "jobs": [{"loader": "alone", "nodes": 0, "ranks": RANKS, "batch": batch, "epochs": epochs,
                  "sampling": "uniform", "workers": 4, "step": GPU_S * batch / BATCH}],
        "measure": {"warmup": 2},
    }  # fmt: skip
    simulation = Simulation(read_scenario(document))
    simulation.run()
    result = make_result(simulation)
    stored = sum(
        node.reads.stored if everything else found.stored
        for node, found in zip(simulation.nodes, result.nodes, strict=True)
    )
    order = epochs_of(samples, epochs)
    after = 0 if everything else 2 * samples
    least = (1 - belady(order, nodes * room, after)) * (len(order) - after)
    return Foreseen(
        sum(node.memory_hits for node in result.nodes) / nodes,
        stored / least,
        sum(node.taken_over for node in result.nodes) / result.images,
    )


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
    progress.step(0, 3 + len(CASES), "rules on a known order")
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
    progress.step(1, 3 + len(CASES), "one job in the simulator")
    for eviction in ("none", "auto"):
        found = simulated_hits(2_000 if quick else 8_000, eviction)
        yield beside(
            f"headrace, uniform order, eviction {eviction}", None, found, "simulated", "%", NO_FIGURE,
            f"{found / best:.1%} of Belady's",
        )  # fmt: skip
    progress.step(2, 3 + len(CASES), "reuse distances")
    yield near(
        "figure 4: uses more than 1,000 iterations apart, one node of eight", LONG,
        long_reuses(samples, 60 if quick else 100), 0.1, "computed", "%",
    )  # fmt: skip
    for place, (name, (nodes, _, _, divisor)) in enumerate(CASES.items()):
        progress.step(3 + place, 3 + len(CASES), name)
        yield from foreseen_rows(name, nodes, 4 * divisor if quick else divisor)
    if not quick:
        name, divisor = next((name, case[3]) for name, case in CASES.items())
        found = foreseen(name, divisor // 4)
        yield beside(
            f"the same at four times the size: {name}, hits", None, found.hits, "simulated", "%", NO_FIGURE,
            f"reads {found.reads:.3f} times Belady's",
        )  # fmt: skip


def foreseen_rows(name: str, nodes: int, divisor: int) -> Iterator[Row]:
    """What came of one case."""
    found = foreseen(name, divisor)
    paper = LOBSTER if name == "ImageNet-1K, 1 node" else None
    scale = f"1/{divisor} of samples and memory"
    yield Row(
        f"headrace, what is needed last goes, fetching ahead: {name}, hits", paper, found.hits, "simulated",
        f"at least {HITS:.0%}", "yes" if found.hits >= HITS else "no", "%",
        "" if paper else NO_FIGURE, f"{scale}; DALI 32.6 %, NoPFS 48.9 %" if paper else scale,
    )  # fmt: skip
    moved = f"; {found.taken_over:.0%} of uses from a peer" if nodes > 1 else ""
    yield Row(
        f"reads from storage over Belady's rule: {name}", None, found.reads, "simulated",
        f"at most {READS:g}", "yes" if found.reads <= READS else "no", "x", NO_FIGURE, f"{scale}{moved}",
    )  # fmt: skip


EXPERIMENT = Experiment(
    "lobster-hits", "Lobster", "section 5.5", "hit ratios of one node with eight GPUs", run
)
