"""Seneca, figure 8: what the models expect of six splits of the cache, against what was measured.

The paper varies the size of the dataset under a fixed cache, here the cache varies under a fixed dataset. It asks of
each split on each machine that modelled and measured throughput correlate by at least 0.90.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.results import Result, read_result
from benchmarks.papers.rows import Row, absent, at_least

BAR = 0.90
MODELS = {"seneca": "equations 1 to 9", "bottleneck": "headrace's own model"}


def correlation(points: list[Result], model: str) -> float:
    """Pearson's, of a model with what was measured; 0 where one of them does not vary."""
    measured, expected = (np.array([point[key] for point in points]) for key in ("measured", model))
    if len(points) < 2 or not measured.std() or not expected.std():
        return 0.0
    return float(np.corrcoef(measured, expected)[0, 1])


def varies(points: list[Result], model: str) -> bool:
    """Whether a model expects throughput to depend on the size of the cache; if not, nothing can correlate."""
    expected = np.array([point[model] for point in points])
    return bool(expected.std() > 0.01 * expected.mean())


def compare(result: Result) -> Iterator[Row]:
    """The rows of a result of ``make bench-model``."""
    points = result["points"]
    splits = list(dict.fromkeys(point["split"] for point in points))
    for model, label in MODELS.items():
        by_split = {split: [point for point in points if point["split"] == split] for split in splits}
        rated = {split: correlation(some, model) for split, some in by_split.items() if varies(some, model)}
        left_out = ", ".join(split for split in splits if split not in rated)
        if rated:
            worst = min(rated, key=rated.__getitem__)
            note = f"the lowest is {worst}"
            if left_out:
                note += f"; {left_out} left out: the model expects no effect of the cache's size"
            quantity = f"correlation, {label}: lowest of {len(rated)} splits"
            yield at_least(quantity, BAR, rated[worst], "measured", words=">= 0.90 in all 24", note=note)
        quantity = f"correlation, {label}: over all splits and sizes"
        yield at_least(quantity, BAR, correlation(points, model), "measured", words=">= 0.90 in all 24")


def run(quick: bool, progress: Bar) -> Iterator[Row]:
    """See ``Experiment``."""
    result = read_result("model")
    if result is None:
        for label in MODELS.values():
            yield absent(f"correlation, {label}", BAR, "make bench-model", words=">= 0.90 in all 24")
        return
    yield from compare(result)


EXPERIMENT = Experiment(
    "seneca-figure-8", "Seneca", "figure 8", "modelled and measured throughput of six splits", run
)
