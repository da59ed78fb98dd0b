"""The best split of a cache: all of them are tried."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from headrace.planning import bottleneck
from headrace.planning.terms import Floats, Terms

Model = Callable[[Terms, Floats], Floats]
Split = tuple[float, float, float]

AS_GOOD = 0.02
"""Splits that differ by less than this part of their throughput are as good as each other: models err by more."""
WORTH = 0.03
"""A change of split has to promise more than this part of the present throughput: models and measurements err."""


class Plan(NamedTuple):
    """A split (encoded, decoded, augmented), and the samples per second that a model expects of it."""

    split: Split
    throughput: float


@lru_cache(4)
def grid(steps: int = 100) -> Floats:
    """Every way to divide a cache into so many parts between three forms."""
    encoded, decoded = np.divmod(np.arange((steps + 1) ** 2), steps + 1)
    inside = encoded + decoded <= steps
    encoded, decoded = encoded[inside], decoded[inside]
    splits = np.stack([encoded, decoded, steps - encoded - decoded], axis=1) / steps
    splits.setflags(write=False)
    return splits


def search(terms: Terms, model: Model = bottleneck.cautious, steps: int = 100) -> Plan:
    """The split of which a model expects most; among those that are as good, the one with least work to do."""
    splits = grid(steps)
    expected = model(terms, splits)
    good = np.flatnonzero(expected >= (1.0 - AS_GOOD) * expected.max())
    work = bottleneck.demands(terms, splits[good])
    # Work that is spared leaves the machine to others, storage more than the CPU, which may be all the job's own.
    order = np.lexsort((splits[good, 2], np.round(work["cpu"], 12), np.round(work["storage"], 12)))
    best = good[order[0]]
    encoded, decoded, augmented = splits[best].tolist()
    return Plan((encoded, decoded, augmented), float(expected[best]))


def reconsider(
    present: Split, terms: Terms, model: Model = bottleneck.cautious, *, joint: bool = False
) -> Plan:
    """The best split, unless the present one is about as good: then that one.

    ``joint``: decoded and augmented samples divide between them what encoded ones leave, as it is best.
    """
    splits = np.array([present])
    if joint:
        rest = np.linspace(0.0, 1.0 - present[0], 101)
        splits = np.stack([np.full(101, present[0]), rest, rest[::-1]], axis=1)
    expected = model(terms, splits)
    best = int(np.argmax(expected))
    now = Plan((present[0], float(splits[best, 1]), float(splits[best, 2])), float(expected[best]))
    found = search(terms, model)
    return found if found.throughput > (1.0 + WORTH) * now.throughput else now
