"""Samplers that stand for a loader's own order, and what trainers tell samplers.

Trainers take a loader apart: they put a sampler of theirs around or in place of ``loader.sampler``, tell it the
epoch, and build a new loader around ``loader.dataset``. So a loader's parts carry what the loader was told: from
any one of them the new loader can be made the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from headrace.sampling.uniform import epoch_order

_INNER = ("batch_sampler", "sampler", "_batch_sampler", "_sampler")
"""What wrappers call the sampler that they wrap."""
_DEEP = 6
"""Wrappers around each other, at most."""


@dataclass
class Told:
    """Which epoch a loader and those made of its parts are on."""

    epoch: int = 0
    """The one that runs, or that somebody asked for."""
    following: int = 0
    """The one that a loader begins with that is made now."""
    times: int = 0
    """How often somebody asked for one."""
    begun: int = 0
    """How often a loader began one."""
    rebuilt: bool = False
    """Whether a trainer built a loader around the order of another, which then is what counts batches."""

    def tell(self, epoch: int) -> None:
        """The next iteration is to run ``epoch``."""
        self.epoch = self.following = int(epoch)
        self.times += 1

    def begin(self, epoch: int) -> None:
        """A loader begins ``epoch``."""
        self.epoch, self.following = epoch, epoch + 1
        self.begun += 1


@dataclass(frozen=True)
class Carried:
    """What a loader's parts carry: how it was made, and the epoch that it was told."""

    options: dict[str, Any]
    """Parameters that torch's loader does not have, as far as they were given."""
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    collate_fn: Any = None
    told: Told = field(default_factory=Told)


class OwnOrder:
    """A loader's own order, as a sampler: all samples, whatever the rank. ``set_epoch`` reaches the loader."""

    carried: Carried
    seed: int | None
    shuffled: bool
    generator: Any

    def __init__(self, dataset: Any, carried: Carried, seed: int | None, **options: Any) -> None:
        super().__init__(dataset, **options)  # type: ignore[call-arg]
        self.dataset, self.carried, self.seed = dataset, carried, seed
        self._ran: tuple[int, int] | None = None

    @property
    def epoch(self) -> int:
        """The epoch whose order this is."""
        return self.carried.told.epoch

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the loader runs next."""
        self.carried.told.tell(epoch)

    def __iter__(self) -> Iterator[int]:
        told = self.carried.told
        if self._ran == (told.times, told.begun):
            told.epoch += 1  # nobody counts for us, so epochs count up by themselves
        self._ran = (told.times, told.begun)
        seed, epoch = self.seed, told.epoch
        if seed is None:
            generator = getattr(self, "generator", None)
            seed, epoch = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item()), 0
        yield from epoch_order(len(self.dataset), seed, epoch, self.shuffled).tolist()


class OwnRandomSampler(OwnOrder, RandomSampler):
    """Of ``shuffle=True``."""

    shuffled = True


class OwnSequentialSampler(OwnOrder, SequentialSampler):
    """Of ``shuffle=False``."""

    shuffled = False

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.dataset)))


def chain(*samplers: Any) -> Iterator[Any]:
    """Samplers, and those that they wrap."""
    for outer in samplers:
        inner = [outer]
        for _ in range(_DEEP):
            if not inner or inner[0] is None:
                break
            at = inner.pop(0)
            yield at
            inner += [getattr(at, name) for name in _INNER if getattr(at, name, None) is not None]


def carried_by(*samplers: Any) -> Carried | None:
    """What samplers carry, if one of them was made by a loader of ours."""
    for sampler in chain(*samplers):
        found = getattr(sampler, "carried", None)
        if isinstance(found, Carried):
            return found
    return None


def own_batches(batch_sampler: Any) -> OwnOrder | None:
    """The order that ``batch_sampler`` cuts into batches, where that is ours and nothing else is done to it."""
    if type(batch_sampler) is BatchSampler and isinstance(batch_sampler.sampler, OwnOrder):
        return batch_sampler.sampler
    return None


def told_by(*samplers: Any) -> tuple[int, ...]:
    """The epochs that samplers of others say they are on."""
    seen: dict[int, Any] = {id(sampler): sampler for sampler in chain(*samplers)}
    epochs = (getattr(at, "epoch", None) for at in seen.values() if not isinstance(at, OwnOrder))
    return tuple(epoch for epoch in epochs if isinstance(epoch, int))


class _PassedOn(int):
    """An epoch that a loader told a sampler, to tell it from the same number that a trainer tells."""


def pass_on(epoch: int, *samplers: Any) -> None:
    """Tell samplers of others, so that they give the order of ``epoch``."""
    for sampler in chain(*samplers):
        if hasattr(sampler, "set_epoch") and not isinstance(sampler, OwnOrder):
            sampler.set_epoch(_PassedOn(epoch))


def is_news(now: int, before: int) -> bool:
    """Whether a sampler that said ``before`` and says ``now`` was told in between."""
    return now != before or (isinstance(before, _PassedOn) and now is not before)


def skipped(batch_sampler: Any) -> int:
    """Batches that Accelerate's ``skip_first_batches`` leaves out."""
    return sum(
        at.skip_batches for at in chain(batch_sampler) if isinstance(getattr(at, "skip_batches", None), int)
    )
