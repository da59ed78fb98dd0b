"""What lies near: samples that the memory of a cluster holds already, while the rest of a dataset is read into it.

Until all of it is there, jobs that draw for themselves from what is left would each wait for other samples, and
storage gives as many for all of them together as for one. So they take what has come, which is the same for all of
them; and where storage gives more of it before long, a draw waits for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from headrace.coordinate.events import Neared
from headrace.coordinate.members import Job
from headrace.coordinate.state import State
from headrace.coordinate.universe import Dataset
from headrace.core.bits import Bits, Words
from headrace.core.errors import ProtocolError
from headrace.sampling import CacheView

_SILENT = 2.0
"""Seconds without news after which what is near is not gone by any more: whoever told it is gone."""
_SOON, _LATER = 0.5, 2.0
"""Seconds for which a draw may wait for samples to come near; where it needs most of what comes, the second. (To ask
storage for others by name would take no less, and the jobs would have nothing in common any more.)"""
_MOST = 0.5
"""The part of what comes that is most of it."""
_AGAIN = 1.5
"""So many times as long as it was to take it may take."""
_VAIN = 2.0
"""Seconds after a wait that was in vain for which the job waits no more."""
_LOOK = 0.05
"""Seconds after which it is looked again whether one that waits has to, where no more has come meanwhile."""
_WORDS = 1 << 13
"""Of a set, so many words are looked at at a time: they stay in the cache of the CPU."""
_LATELY = 0.5
"""Seconds over which it is averaged how many come."""


@dataclass
class Wait:
    """Of a job's draw."""

    until: float
    looked: float
    heard: float
    """When the news had come that were looked at last."""


@dataclass(eq=False)
class Near:
    """Of one dataset."""

    dataset: Dataset
    bits: Bits
    since: float
    heard: float
    rate: float = 0.0
    """Samples a second that have come lately."""
    count: int = 0
    waits: dict[int, Wait] = field(default_factory=dict)
    """By job: the draw that waits, or has waited in vain."""


class Nearby:
    """Keeps what is near, and says what draws make of it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._near: dict[str, Near] = {}
        """By dataset."""

    def expect(self, dataset: Dataset) -> None:
        """Somebody is about to tell what is near: a job that draws before that need not wait for what is not."""
        if self._of(dataset) is None:
            now = self._state.now
            self._near[dataset.key] = Near(dataset, Bits.empty(self._state.universe.size), now, now)

    def hear(self, event: Neared) -> None:
        """More has come, or nothing more comes."""
        dataset, now = self._state.universe.datasets.get(event.dataset), self._state.now
        if dataset is None:
            raise ProtocolError("samples of a dataset that is not known")
        if len(event.samples) % 8:
            raise ProtocolError(f"{len(event.samples)} bytes of samples")
        ids = dataset.to_universe(np.frombuffer(event.samples, np.int64))
        near = self._of(dataset)
        if not event.more:
            self._near.pop(dataset.key, None)
        elif near is None:
            # (what was there before says nothing of how fast it comes)
            near = self._near[dataset.key] = Near(dataset, Bits.empty(self._state.universe.size), now, now)
            near.count = near.bits.add(ids)
        else:
            # (each job on this machine tells of the same ones)
            new = near.bits.add(ids)
            near.count += new
            passed = max(now - near.heard, 1e-3)
            weight = passed / min(_LATELY, max(now - near.since, passed))
            near.rate += min(1.0, weight) * (new / passed - near.rate)
            near.heard = now

    def has_lost(self, name: str, now: float) -> bool:
        """Whether by now nothing is known of what was told of a dataset before: those who told it had fallen silent,
        or others have said that no more comes."""
        near = self._near.get(name)
        return near is None or not near.count or self._is_over(near, now)

    def look(self) -> None:
        """Forget what is not gone by any more: nobody may ever ask for it again."""
        now = self._state.now
        for name in [name for name, near in self._near.items() if self._is_over(near, now)]:
            del self._near[name]

    def _is_over(self, near: Near, now: float) -> bool:
        # (a dataset that was forgotten and came again has other numbers)
        known = self._state.universe.datasets.get(near.dataset.key)
        return near.dataset is not known or now - near.heard > _SILENT

    def _of(self, dataset: Dataset) -> Near | None:
        near = self._near.get(dataset.key)
        if near is None:
            return None
        if self._is_over(near, self._state.now):
            del self._near[dataset.key]
            return None
        if near.bits.size < self._state.universe.size:
            near.bits.grow(self._state.universe.size)
        return near

    def words(self, job: Job) -> Words | None:
        """What is near to a job; None where it makes no difference."""
        near = self._of(job.dataset)
        return None if near is None else near.bits.words

    def still_waits(self, job: Job) -> bool:
        """Whether the draw of a job has to wait on, as it had to when it was looked at just now. (That takes time
        where there are millions of samples, and much happens at a host that has nothing to do with it.)"""
        near = self._of(job.dataset)
        wait = None if near is None else near.waits.get(job.number)
        if near is None or wait is None or wait.heard != near.heard:
            return False
        now = self._state.now
        return now < wait.until and now < wait.looked + _LOOK

    def comes(self, job: Job, view: CacheView, wanted: int) -> bool:
        """Whether a draw of so many samples had better wait until that many are near."""
        near, now = self._of(job.dataset), self._state.now
        if near is None:
            return False
        found = self._found(near, job, view, wanted)
        if found >= wanted:
            near.waits.pop(job.number, None)
            return False
        seconds = 0.0
        # (at the beginning it is not known yet how many come)
        if near.rate or now - near.since >= _SOON:
            # Of what comes, a job can use what it still needs. Where that is little, it would wait for long.
            far = max(1, near.dataset.size - near.count)
            useful = min(1.0, max(0, self._state.remaining.left(job.number) - found) / far)
            comes = near.rate * useful
            seconds = (wanted - found) / comes if comes > 0 else math.inf
            if seconds > (_LATER if useful >= _MOST else _SOON):
                near.waits.pop(job.number, None)
                return False
        wait = near.waits.get(job.number)
        if wait is None or now >= wait.until + _VAIN:
            wait = near.waits[job.number] = Wait(now + max(_SOON, _AGAIN * seconds), now, near.heard)
        wait.looked, wait.heard = now, near.heard
        return now < wait.until

    def _found(self, near: Near, job: Job, view: CacheView, wanted: int) -> int:
        """How many samples that a job needs are near, or better; where it is enough, it may be more."""
        needed = self._state.remaining.words(job.number)
        sets = (near.bits.words, view.pending, *view.ready)
        found = start = 0
        memory = np.empty(_WORDS, np.uint64)
        while found < wanted and start < len(needed):
            stop = min(start + _WORDS, len(needed))
            some = memory[: stop - start]
            np.bitwise_or(sets[0][start:stop], sets[1][start:stop], out=some)
            for words in sets[2:]:
                some |= words[start:stop]
            some &= needed[start:stop]
            found += int(np.bitwise_count(some).sum(dtype=np.int64))
            start = stop
        return found
