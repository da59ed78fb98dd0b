"""What a sampling policy is: the protocol, and what all policies have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.core import bits as bitset
from headrace.core.bits import Ids, Words
from headrace.sampling.remaining import Remaining


@dataclass(frozen=True)
class CacheView:
    """What the cache holds, as one job sees it at this draw; words of bit sets over the universe."""

    ready: tuple[Words, ...]
    """Samples that this job could enter from the cache, best form first. The sets may overlap, and may contain
    samples that the job does not need."""
    pending: Words
    """Samples that somebody is preparing right now and that will be cached."""
    peers: tuple[int, ...]
    """Other jobs that could share what is prepared for this job now."""
    room: int = 1 << 62
    """How many more samples the cache could keep without losing what others need."""
    later: Words | None = None
    """Samples that it would be a waste to prepare now: another one of them is cached for others, so nobody else
    could use it. They come after everything else."""
    read_only: int = 0
    """So many of the sets in ``ready``, the first of them, have samples that would only be read: nothing more would
    be kept of them."""
    near: Words | None = None
    """Of samples that have to be prepared, those for which storage has been read already, somewhere in a cluster;
    None: that makes no difference."""


class Sampler(Protocol):
    """Decides which samples a job is given next.

    A sampler is pure: what it draws follows from ``remaining``, the view, the key, and the calls before. Where it
    promised samples ahead, these stay in ``remaining`` until they are drawn.
    """

    name: str

    def draw(self, remaining: Remaining, job: int, count: int, view: CacheView, key: int) -> Ids:
        """``min(count, left)`` different samples that the job still needs; they are taken from ``remaining``.

        Rows that enter alike lie together: first those that are ready, set by set, then those that nobody has
        prepared, then those that are pending.
        """
        ...

    def forget(self, job: int) -> None:
        """The job left, or began another epoch: drop what was promised to it."""
        ...


def arrange(ids: Ids, view: CacheView) -> Ids:
    """The samples in the order of ``Sampler.draw``; those that enter alike stay in the order they had."""
    place = np.full(len(ids), len(view.ready), np.uint8)
    place[bitset.test(view.pending, ids)] += 1
    for rank in reversed(range(len(view.ready))):
        place[bitset.test(view.ready[rank], ids)] = rank
    return ids[np.argsort(place, kind="stable")]
