"""The eviction policies of DLCache's figure 7, on chunks of datasets: cost-aware LRFU is the product's own, with the
paper's parameters and with ours; those that it is compared with are one function each."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.eviction.lrfu import Candidate, CostAwareLRFU, History

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
    history: History = field(default_factory=History)
    """The same, as cost-aware LRFU keeps it."""


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


def use(chunk: Chunk, now: int, count: int, policy: Policy | CostAwareLRFU) -> None:
    """So many jobs come at the same time and use it."""
    chunk.uses += [now] * count
    if isinstance(policy, CostAwareLRFU):
        for job in range(count):
            # One after the other, within a moment.
            chunk.history = policy.use(chunk.history, now + job * MOMENT)


def victims(
    policy: Policy | CostAwareLRFU, eligible: list[Chunk], need: float, now: int, dice: random.Random
) -> list[Chunk]:
    """Who goes, for ``need`` GB."""
    if isinstance(policy, CostAwareLRFU):
        named = {chunk.name: chunk for chunk in eligible}
        asked = [Candidate(name, _bytes(one.size), one.cost, one.history) for name, one in named.items()]
        free = sum(one.size for one in asked)
        return [named[one.key] for one in policy.choose(asked, min(_bytes(need), free), now) or []]
    chosen = []
    for chunk in sorted(eligible, key=lambda chunk: policy(chunk, now, dice)):
        if need <= 0:
            break
        chosen.append(chunk)
        need -= chunk.size
    return chosen


def _bytes(gigabytes: float) -> int:
    return round(gigabytes * 1e9)


MOMENT = 1e-9
OURS, PAPERS = "headrace's cost-aware LRFU", "cost-aware LRFU as the paper has it"
POLICIES: dict[str, Policy | CostAwareLRFU] = {
    "LRU": lru,
    "LFU": lfu,
    "LRFU": lrfu,
    "random": at_random,
    "greedy": greedy,
    PAPERS: CostAwareLRFU(P, STEP, grain=0.0),
    OURS: CostAwareLRFU(together=0.5),
}
