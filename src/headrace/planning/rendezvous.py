"""Which node a sample lies on: rendezvous hashing, weighted by the memory that each node gives.

Each node draws a number for each sample, from the two names alone, and the smallest one wins. So everybody who knows
the nodes knows where a sample lies, without a table; a node that comes takes its share from all others in equal
parts, and of one that goes nothing moves but what was there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.random import key, uniforms


def key_of(name: str) -> int:
    """A node's (or a dataset's) name as a number that is the same everywhere."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def owners(
    samples: NDArray[Any], dataset: int, nodes: Sequence[int], weights: Sequence[float]
) -> NDArray[np.intp]:
    """The node of each sample, by its place in ``nodes``. Nodes and dataset are numbers of ``key_of``.

    A node of weight 0 has no sample, unless all have that. (Two who compute it on different machines may differ about
    a sample in billions: nothing but time may depend on it.)
    """
    if len(nodes) != len(weights) or not nodes:
        raise ValueError(f"{len(nodes)} nodes with {len(weights)} weights")
    if not any(weight > 0 for weight in weights):
        weights = [1.0] * len(nodes)
    best = np.full(len(samples), np.inf)
    out = np.zeros(len(samples), np.intp)
    for place, (node, weight) in enumerate(zip(nodes, weights, strict=True)):
        if weight <= 0:
            continue
        # Exponential numbers of this rate: the chance to be the smallest of all is a weight's part of their sum.
        drawn = -np.log1p(-uniforms(key(dataset, node), samples)[:, 0]) / weight
        wins = drawn < best
        best[wins] = drawn[wins]
        out[wins] = place
    return out
