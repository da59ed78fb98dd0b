"""Joader, theorem 1 and section 6: how often two jobs draw the same sample, and what the tree costs.

The sampler is the product's. Two jobs draw a first few samples, as rounds of the paper have them, many times over
from sets of the sizes named; the theorem says how often both can get the same one in a round at most.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.results import Result, read_result
from benchmarks.papers.rows import Row, absent, at_most, near

from headrace.core.bits import Bits
from headrace.sampling import CacheView, Dependent, Remaining

INSERT_MS = 570.0
SETS = {
    "equal sets, half in common": (4000, 4000, 2000),
    "sets of 1:2, the smaller inside": (2000, 4000, 2000),
}
"""Sizes of both sets, and of what they have in common."""
ROUNDS = 64


def meetings(first: int, second: int, common: int, times: int) -> float:
    """The share of rounds in which both jobs draw the same sample."""
    size = first + second - common
    everything = np.arange(size)
    nothing = Bits.of(size, everything[:0]).words
    same = 0
    for key in range(times):
        remaining = Remaining(size)
        remaining.join(0, Bits.of(size, everything[:first]))
        remaining.join(1, Bits.of(size, everything[first - common :]))
        sampler = Dependent(ROUNDS)
        one, other = (
            sampler.draw(remaining, job, ROUNDS, CacheView((), nothing, (1 - job,)), key) for job in (0, 1)
        )
        same += int(np.count_nonzero(one == other))
    return same / (ROUNDS * times)


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    for place, (name, (first, second, common)) in enumerate(SETS.items()):
        progress.step(place, len(SETS), name)
        bound = common / max(first, second)
        yield near(
            f"theorem 1, {name}: rounds in which both draw the same",
            bound,
            meetings(first, second, common, 50 if quick else 500),
            0.05,
            "computed",
            "%",
            note="the most there can be",
        )
    yield from insertion(read_result("sampling_cost"))


def insertion(cost: Result | None) -> Iterator[Row]:
    """What it takes to insert a dataset into the tree, the 128 of section 6."""
    quantity = "inserting a dataset of 1 to 2 million, 128 in the tree"
    if cost is None or cost["tree"]["datasets"] != 128:
        yield absent(quantity, INSERT_MS, "python benchmarks/sampling_cost.py", "ms")
        return
    for kind in ("random", "overlapping"):
        found = cost["tree"][kind]["mean_ms"]
        yield at_most(f"{quantity}, {kind}", INSERT_MS, found, "measured", "ms", note="mean; another machine")


EXPERIMENT = Experiment(
    "joader-sampling",
    "Joader",
    "theorem 1 and section 6",
    "how often draws meet, and what the tree costs",
    run,
)
