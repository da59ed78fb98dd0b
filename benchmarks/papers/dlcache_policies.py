"""The eviction policies of DLCache's figure 7, on chunks of datasets: one function each, one signature.

They stand here because headrace evicts samples and not datasets yet; when it does, its own take their places.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

P, STEP = 2.0, 0.5
"""Of F(x) = (1/p)^(step x). Step 0 is LFU and 1 is LRU, the paper says; it does not say which it used."""


@dataclass
class Chunk:
    """A part of a dataset that is downloaded and extracted as a whole."""

    name: str
    size: float
    """In GB."""
    cost: float
    """Seconds to prepare it."""
    uses: list[int] = field(default_factory=list)
    """The times at which jobs that use it came, while it was there and before."""


Key = tuple[float, ...]
Policy = Callable[[Chunk, int, random.Random], Key]
"""What goes first has the smallest key. Given the chunk, the time, and dice."""


def frequency_and_recency(chunk: Chunk, now: int) -> float:
    """CRF: each use counts, and less the longer ago it was."""
    return math.fsum(P ** (-STEP * (now - use)) for use in chunk.uses)


def lru(chunk: Chunk, now: int, dice: random.Random) -> Key:
    """Least recently used."""
    return (chunk.uses[-1],)


def lfu(chunk: Chunk, now: int, dice: random.Random) -> Key:
    """Least frequently used."""
    return (len(chunk.uses),)


def lrfu(chunk: Chunk, now: int, dice: random.Random) -> Key:
    """Least recently and frequently used."""
    return (frequency_and_recency(chunk, now),)


def at_random(chunk: Chunk, now: int, dice: random.Random) -> Key:
    """Any."""
    return (dice.random(),)


def greedy(chunk: Chunk, now: int, dice: random.Random) -> Key:
    """What is cheapest to prepare again."""
    return (chunk.cost,)


def cost_aware_lrfu(chunk: Chunk, now: int, dice: random.Random) -> Key:
    """As LRFU; of chunks that are alike, the cheapest first."""
    return (round(frequency_and_recency(chunk, now), 12), chunk.cost)


OURS = "cost-aware LRFU"
POLICIES: dict[str, Policy] = {
    "LRU": lru,
    "LFU": lfu,
    "LRFU": lrfu,
    "random": at_random,
    "greedy": greedy,
    OURS: cost_aware_lrfu,
}
