"""Samplers that divide an order among ranks, where a state is loaded by other ranks or with other batches.

torch's ``DistributedSampler`` shuffles all samples by seed and epoch, and each rank takes every so many-th of them.
So what all ranks were given after so many batches is the beginning of one order, whatever their number, and what is
left of it can be divided anew.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from headrace.core.errors import StateError
from headrace.loader.own_order import chain
from headrace.loader.state import LoaderState
from headrace.loader.stateful import is_stateful


@dataclass(frozen=True)
class Division:
    """How a loader's order is divided."""

    ranks: int
    batch_size: int
    """Samples of one batch of one rank; 0: only the sampler knows."""
    drop_last: bool
    sampler: Any
    """torch's own, which can divide anew; None: it is another one."""

    def steps(self, samples: int) -> int:
        """Batches of each rank, if so many samples are left."""
        assert self.sampler is not None
        each = samples // self.ranks if self.sampler.drop_last else -(-samples // self.ranks)
        return each // self.batch_size if self.drop_last else -(-each // self.batch_size)


def division_of(keys: Any, *, batched: bool) -> Division | None:
    """How the sampler ``keys`` divides its order, if it says so and keeps no state of its own."""
    cuts = batched and type(keys) is BatchSampler
    owner = keys.sampler if cuts else keys
    if is_stateful(owner):
        return None
    found = [at for at in chain(owner) if isinstance(getattr(at, "num_replicas", None), int)]
    if not found:
        return None
    plain = isinstance(owner, DistributedSampler) and type(owner).__iter__ is DistributedSampler.__iter__
    known = cuts or not batched
    size, drop_last = (keys.batch_size, keys.drop_last) if cuts else (int(known), False)
    return Division(found[0].num_replicas, size, drop_last, owner if plain and known else None)


def divide_anew(state: LoaderState, now: Division | None) -> None:
    """Let a state that was saved with another division go on with this one."""
    mark = state.sampler
    if mark is None or mark.over or mark.ranks is None or now is None:
        return
    if (mark.ranks, mark.batch_size) == (now.ranks, now.batch_size):
        return
    if now.sampler is None or not mark.batch_size:
        raise StateError(
            f"the state is of a sampler that divides samples among {mark.ranks} ranks, and this one has {now.ranks}; "
            "a state of another number of ranks, or of other batches, goes on with headrace's own order, with "
            "torch's DistributedSampler, or with a sampler that has a state of its own"
        )
    samples = len(now.sampler.dataset)
    mark.passed = min(samples, mark.passed + mark.since * mark.batch_size * mark.ranks)
    mark.since, mark.ranks, mark.batch_size = 0, now.ranks, now.batch_size
    state.position = max(0, now.steps(samples) - now.steps(samples - mark.passed))


def whole_order(sampler: Any) -> list[int]:
    """What a ``DistributedSampler`` divides: the order of all ranks."""
    alone = copy.copy(sampler)
    alone.num_replicas, alone.rank = 1, 0
    alone.num_samples = alone.total_size = len(sampler.dataset)
    return list(DistributedSampler.__iter__(alone))


def rest_of(sampler: Any, order: list[int], passed: int) -> Iterator[int]:
    """What is left for the sampler's rank once so many samples of ``order`` were given out: as many as for any other.

    As torch does it, what does not divide is dropped, or filled up with samples from the beginning of the epoch.
    """
    rest, ranks = order[passed:], sampler.num_replicas
    odd = len(rest) % ranks
    if odd and sampler.drop_last:
        rest = rest[:-odd]
    elif odd:
        rest += itertools.islice(itertools.cycle(order), ranks - odd)
    return iter(rest[sampler.rank :: ranks])
