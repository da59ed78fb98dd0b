"""One batch of a job that shares, as its host drew it, or as the job draws it where there is no host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.protocol import Drawn, Join, Update
from headrace.core import random as rnd
from headrace.core.bits import Bits, choose
from headrace.core.errors import HostUnavailable
from headrace.sampling import Geometry

Ids = NDArray[np.int64]


@dataclass(eq=False)
class SharedDraw:
    """One batch of a job that shares: its samples, and how each enters."""

    epoch: int
    step: int
    indices: Ids
    position: int
    """Samples of the epoch that are given out once every rank has this batch."""
    last: bool
    ticket: int
    instance: int
    randomness: tuple[int, int] | None
    forms: NDArray[np.uint8]
    offsets: Ids
    lengths: Ids
    keep: NDArray[np.uint8]
    grants: Ids
    waits: int
    whole: Ids
    """The samples of the whole step, over all ranks."""
    copies: int = 0
    """Rows at the front that only have to be copied."""
    keys: bytes = b""
    given: Any = None
    """What the job itself drew, where it does."""

    @property
    def words(self) -> Ids | None:
        """What random numbers of the rows go by, where that is not the sample alone."""
        return getattr(self.given, "words", None)

    @classmethod
    def read(cls, reply: Drawn, given: Any, instance: int) -> SharedDraw:
        """What the host ``instance`` replied; ``given``: what the job asked for, if it drew that itself."""
        indices = np.frombuffer(reply.indices, np.int64)
        return cls(
            epoch=reply.epoch,
            step=reply.step if given is None else given.step,
            indices=indices,
            position=reply.given if given is None else given.position,
            last=reply.last if given is None else getattr(given, "last", False),
            ticket=reply.ticket,
            instance=instance,
            randomness=(reply.seed, reply.key) if given is None else None,
            forms=np.frombuffer(reply.forms, np.uint8).copy(),
            offsets=np.frombuffer(reply.offsets, np.int64).copy(),
            lengths=np.frombuffer(reply.lengths, np.int64).copy(),
            keep=np.frombuffer(reply.keep, np.uint8).copy(),
            grants=_grants(reply.grants),
            waits=reply.waits,
            whole=np.frombuffer(reply.whole, np.int64) if reply.whole else indices,
            keys=b"" if given is None else getattr(given, "keys", b""),
            given=given,
        )

    @classmethod
    def alone(cls, epoch: int, step: int, indices: Ids, position: int, given: Any) -> SharedDraw:
        """Without a host: nothing is cached, and nothing is kept."""
        count = len(indices)
        return cls(
            epoch=epoch,
            step=step,
            indices=indices,
            position=position,
            last=False,
            ticket=-1,
            instance=0,
            randomness=None,
            forms=np.zeros(count, np.uint8),
            offsets=np.full(count, -1, np.int64),
            lengths=np.zeros(count, np.int64),
            keep=np.zeros(count, np.uint8),
            grants=np.zeros((0, 4), np.int64),
            waits=count,
            whole=indices,
            given=given,
        )

    def update(self, reply: Update) -> None:
        """Take in what the host says of the rows that waited."""
        rest = slice(self.waits, None)
        self.forms[rest] = np.frombuffer(reply.forms, np.uint8)
        self.offsets[rest] = np.frombuffer(reply.offsets, np.int64)
        self.lengths[rest] = np.frombuffer(reply.lengths, np.int64)
        self.keep[rest] = np.frombuffer(reply.keep, np.uint8)
        self.grants = np.concatenate([self.grants, _grants(reply.grants)])


def draw_alone(join: Join, given: Bits, instance: int, epoch: int, step: int) -> SharedDraw | None:
    """Draw as the host would, from what is not ``given`` out; None at the end of the epoch.

    ``instance``: the host that was there last; with epoch and step it is the key of what is chosen.
    """
    if join.world_size > 1:
        raise HostUnavailable("the shared host is gone, and the ranks of a job need one to agree on samples")
    left = Bits.full(join.samples) - given
    total = left.count()
    geometry = Geometry(join.batch_size, 0, 1, join.drop_last)
    if geometry.steps(total) == 0:
        return None
    stop = geometry.cut(total, 0)[1]
    ids = choose(left.words, stop, rnd.key(instance, epoch, step))
    drawn = SharedDraw.alone(epoch, step, ids, given.count() + stop, None)
    drawn.randomness = (instance & ((1 << 63) - 1), (1 << 40) + epoch)
    return drawn


def _grants(data: bytes) -> Ids:
    return np.frombuffer(data, np.int64).reshape(-1, 4)
