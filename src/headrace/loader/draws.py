"""Where a loader's batches come from: our own uniform order, or the user's sampler."""

from __future__ import annotations

import itertools
import operator
import pickle
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from headrace.coordinate.coordinator import Draws, Later
from headrace.loader.divided import division_of, rest_of, whole_order
from headrace.loader.own_order import pass_on, told_by
from headrace.loader.repeats import Repeats
from headrace.loader.state import SamplerMark, pack_generator, set_generator, unpack_generator
from headrace.loader.stateful import Snapshots, dumps, is_stateful, load, take
from headrace.sampling import Draw


class SamplerDraws:
    """Batches of keys from a user's sampler or batch sampler, read as they are needed."""

    def __init__(
        self,
        sampler: Any,
        *,
        batched: bool,
        seed: int,
        epoch: int,
        size: int | None = None,
        position: int = 0,
        resume: SamplerMark | None = None,
        prefetched: bool = False,
        every: int | None = None,
    ) -> None:
        """``batched``: the sampler yields lists of keys; otherwise each key is a batch of its own.

        ``size``: keys must be indices below it; None: they can be anything that the dataset understands.

        ``position``: batches that were delivered before; their keys are passed over, their samples never touched,
        and if the sampler keeps a state of its own, it goes on by itself.

        ``prefetched``: batches are drawn before they are asked for, so the sampler's state is taken as they are
        drawn, every so many (``every``).
        """
        # torch's own batch sampler hides the iterator of the sampler in it, which may keep a state.
        cuts = batched and type(sampler) is BatchSampler
        self._owner = sampler.sampler if cuts else sampler
        self._batched = batched
        self.seed = seed
        self._epoch = epoch
        self._size = size
        self._step = position
        self._rng: torch.Tensor | None = None
        """Torch's global generator before the sampler drew from it, if it did."""
        self._started = False
        self._ahead: list[Any] = []
        """Batches that the sampler has given and nobody has drawn."""
        self._repeats = Repeats(size or 0)
        self._open: deque[tuple[int, NDArray[np.int64]]] = deque()
        """Of a sampler with states: batches that were drawn and not delivered, by the position after each."""
        self._snapshots = Snapshots(every) if prefetched else None
        self._marks: deque[tuple[int, bytes]] = deque()
        """States of the sampler and its iterator after so many batches; the first is not after what is delivered."""
        if resume is not None and resume.over:
            self._finish(resume)
            resume = SamplerMark(torch=resume.torch)
        resume = resume or SamplerMark(since=position)
        load(self._owner, resume.sampler, "sampler")
        _set_generators(self._owner, resume.generators)
        if resume.epoch is not None:
            pass_on(resume.epoch, self._owner)
        self._told = max(map(int, told_by(self._owner)), default=None)
        self._division, self._passed = division_of(sampler, batched=batched), resume.passed
        self._base = position - resume.since
        """Without states: batches of the epoch before those that are passed over."""
        self._first = between_epochs(self._owner)
        users = torch.get_rng_state()
        if resume.torch is not None:
            torch.set_rng_state(unpack_generator(resume.torch))
        start = torch.get_rng_state()
        self._keys = self._begin(size)
        if not torch.equal(torch.get_rng_state(), start):
            self._rng, self._started = start, True
        load(self._keys, resume.iterator, "sampler's iterator")
        self._batches: Iterator[Any] = (
            _cut(self._keys, sampler.batch_size, sampler.drop_last) if cuts else self._keys
        )
        self._stateful = is_stateful(self._owner) or is_stateful(self._keys)
        if resume.torch is not None and not self._started:
            self._ahead = [self._next()]  # it draws its order with the first batch
        if resume.times is not None and size is not None:
            self._repeats = Repeats.unpack(resume.times, size)
        for _ in range(resume.since):
            keys = self._next()
            if keys is _END:
                break
            if resume.times is None and size is not None:
                self._repeats.count(_indices(keys if batched else [keys], size))
        if not torch.equal(users, start):
            # The sampler drew once more what it drew in another process; the generator is the user's.
            torch.set_rng_state(users)
        if self._stateful and self._snapshots is not None:
            self._marks.append((self._step, dumps(self._states())))

    def _begin(self, size: int | None) -> Iterator[Any]:
        """The sampler's keys, of which other ranks may have been given some."""
        if not self._passed or self._division is None or self._division.sampler is None:
            return iter(self._owner)
        order = whole_order(self._owner)
        if size is not None:
            self._repeats.count(_indices(order[: self._passed], size))
        return rest_of(self._owner, order, self._passed)

    def _finish(self, mark: SamplerMark) -> None:
        """Bring the sampler to where an epoch that ended has left it."""
        load(self._owner, mark.sampler, "sampler")
        if mark.sampler is not None or mark.iterator is not None:
            keys = iter(self._owner)
            load(keys, mark.iterator, "sampler's iterator")
            if next(keys, _END) is not _END:
                load(self._owner, mark.sampler, "sampler")  # what it says at its end is where it starts again
        _set_generators(self._owner, mark.generators)

    def draw(self) -> Draw | None:
        """The next batch, or None at the end."""
        keys = self._next()
        if keys is _END:
            return None
        step, self._step = self._step, self._step + 1
        if self._snapshots is not None and self._stateful:
            state = self._snapshots.after_batch(self._states)
            if state:
                self._marks.append((self._step, state))
        listed = keys if self._batched else [keys]
        if self._size is not None:
            indices = _indices(listed, self._size)
            if self._stateful:
                self._open.append((self._step, indices))
            return Draw(self._epoch, step, indices, self._step, words=self._repeats.count(indices))
        if type(listed) is list and all(type(key) is int for key in listed):
            return Draw(self._epoch, step, np.array(listed, np.int64), self._step)
        indices = np.full(_count(listed), -1, np.int64)
        return Draw(self._epoch, step, indices, self._step, keys=pickle.dumps(keys))

    def _next(self) -> Any:
        if self._ahead:
            return self._ahead.pop()
        if self._started:
            return next(self._batches, _END)
        # The sampler may draw its order now, from torch's global generator.
        self._started = True
        before = torch.get_rng_state()
        keys = next(self._batches, _END)
        if not torch.equal(torch.get_rng_state(), before):
            self._rng = before
        return keys

    # -- state --------------------------------------------------------------------------------------------

    def mark(self, position: int) -> SamplerMark:
        """Where the sampler is after ``position`` batches; more may have been drawn."""
        if position == 0 and not self._passed:
            return self._first
        if not self._stateful:
            start = None if self._rng is None else pack_generator(self._rng)
            division = self._division
            return SamplerMark(
                since=position - self._base,
                generators=self._first.generators,
                torch=start,
                epoch=self._told,
                ranks=None if division is None else division.ranks,
                batch_size=0 if division is None else division.batch_size,
                passed=self._passed,
            )
        self.delivered(position)
        times = self._times()
        if self._snapshots is None:
            return SamplerMark(sampler=take(self._owner), iterator=take(self._keys), times=times)
        at, states = self._marks[0]
        sampler, iterator = pickle.loads(states)
        return SamplerMark(sampler=sampler, iterator=iterator, since=position - at, times=times)

    def _times(self) -> str | None:
        """How often each sample was delivered: what went before its states, a sampler does not name again."""
        if self._size is None:
            return None
        repeats = self._repeats.copy()
        for _, indices in self._open:
            repeats.uncount(indices)
        return repeats.pack()

    def delivered(self, position: int) -> None:
        """So many batches were delivered: older states are not needed any more."""
        while self._open and self._open[0][0] <= position:
            self._open.popleft()
        while len(self._marks) > 1 and self._marks[1][0] <= position:
            self._marks.popleft()

    def end(self) -> SamplerMark:
        """Where the sampler is after an epoch that ended."""
        mark = between_epochs(self._owner)
        mark.iterator = take(self._keys)
        return mark

    def _states(self) -> tuple[Any, Any]:
        return _state_of(self._owner), _state_of(self._keys)


_END = object()


def draws_from_torch(sampler: Any, *, batched: bool) -> bool:
    """Whether a sampler takes its order from torch's global generator, where it says so as torch's samplers do."""
    owner = sampler.sampler if batched and type(sampler) is BatchSampler else sampler
    owners = (owner, getattr(owner, "sampler", None))
    return not is_stateful(owner) and any(getattr(one, "generator", owner) is None for one in owners)


def between_epochs(sampler: Any) -> SamplerMark:
    """Where a sampler is before an epoch begins."""
    if is_stateful(sampler):
        return SamplerMark(sampler=take(sampler), over=True)
    states = [pack_generator(generator.get_state()) for generator in _generators(sampler)]
    return SamplerMark(generators=states, over=True)


def before_first_epoch(sampler: Any, *, batched: bool) -> SamplerMark:
    """Where a sampler is that no epoch has used yet."""
    return between_epochs(sampler.sampler if batched and type(sampler) is BatchSampler else sampler)


def _generators(sampler: Any) -> list[torch.Generator]:
    """What a sampler draws from, where it says so as torch's samplers do."""
    found = [getattr(owner, "generator", None) for owner in (sampler, getattr(sampler, "sampler", None))]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _set_generators(sampler: Any, states: list[str]) -> None:
    for generator, state in zip(_generators(sampler), states, strict=False):
        set_generator(generator, state)


def _state_of(owner: Any) -> Any:
    return owner.state_dict() if is_stateful(owner) else None


def _cut(keys: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Batches, as torch's ``BatchSampler`` makes them."""
    while batch := list(itertools.islice(keys, size)):
        if len(batch) < size and drop_last:
            return
        yield batch


def _indices(keys: Any, size: int) -> NDArray[np.int64]:
    """Keys that must be sample indices: integers of any kind, in range."""
    try:
        indices = np.array([operator.index(key) for key in keys], np.int64)
    except TypeError:
        raise TypeError(f"the sampler gave {keys!r}, and the samples of a recipe go by their index") from None
    if len(indices) and not 0 <= indices.min() <= indices.max() < size:
        raise IndexError(f"the sampler gave {indices.tolist()}, and there are samples 0 to {size - 1}")
    return indices


def _count(keys: Any) -> int:
    try:
        return len(keys)
    except TypeError:
        return 1


class EndlessDraws:
    """Batches of an iterable dataset: nothing to choose, until its workers have no more."""

    def __init__(self, *, seed: int, epoch: int, position: int = 0) -> None:
        self.seed = seed
        self._epoch = epoch
        self._step = position
        self.over = False

    def draw(self) -> Draw | None:
        """The next batch, or None once ``over``."""
        if self.over:
            return None
        self._step += 1
        return Draw(self._epoch, self._step - 1, np.zeros(0, np.int64), self._step)


class LooseDraws:
    """Draws whose batches may be delivered in any order: knows which of them were."""

    def __init__(self, draws: Draws, *, position: int, early: Collection[int]) -> None:
        """``early``: batches after ``position`` that were delivered before."""
        self.inner = draws
        self.seed = draws.seed
        self._before = frozenset(early)
        self._early = set(early)
        self._open: deque[int] = deque()
        self.position = position
        """All batches up to here were delivered."""

    def draw(self) -> Draw | Later | None:
        """See ``Draws``."""
        while True:
            drawn = self.inner.draw()
            if not isinstance(drawn, Draw):
                return drawn
            self._open.append(drawn.position)
            if drawn.position not in self._before:
                return drawn
            self.delivered(drawn.position)

    def upcoming(self, steps: int) -> NDArray[np.int64] | None:
        """The samples of a batch to come, where they are known."""
        known = getattr(self.inner, "upcoming", None)
        return None if known is None else known(steps)

    def delivered(self, position: int) -> None:
        """This batch was delivered."""
        self._early.add(position)
        while self._open and self._open[0] in self._early:
            self.position = self._open.popleft()
            self._early.discard(self.position)

    @property
    def early(self) -> list[int]:
        """Batches after ``position`` that were delivered."""
        return sorted(self._early)
