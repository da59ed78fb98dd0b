"""What a disk tier had better keep: encoded samples, decoded ones, or some of each."""

from __future__ import annotations

import numpy as np

from headrace.planning import bottleneck
from headrace.planning.search import Split
from headrace.planning.terms import Terms

_WORTH = 0.1
"""Decoded samples are kept where that promises so much more: they take up room, and are read in full each time."""
_STEPS = 20


def decoded_share(terms: Terms, split: Split) -> float:
    """The share of samples that are kept on disk in decoded form, 0 to 1. ``split``: that of the cache in memory."""
    shares = np.linspace(0.0, 1.0, _STEPS + 1)
    splits = np.column_stack([np.tile(split, (len(shares), 1)), shares])
    expected = bottleneck.cautious(terms, splits)
    best = int(np.argmax(expected))
    return float(shares[best]) if expected[best] > (1.0 + _WORTH) * expected[0] else 0.0
