"""What lies near: samples that the memory of a cluster holds already, while the rest of a dataset is read into it.

Until all of it is there, jobs that draw for themselves from what is left would each wait for other samples, and
storage gives as many for all of them together as for one. So they take what has come, which is the same for all of
them; and where storage gives more of it before long, a draw waits for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.coordinate.events import Neared
from headrace.coordinate.members import Job
from headrace.coordinate.state import State
from headrace.coordinate.universe import Dataset
from headrace.core.bits import Bits, Words, at_least
from headrace.core.errors import ProtocolError
from headrace.sampling import CacheView

_SILENT = 2.0
"""Seconds without news after which what is near is not gone by any more: whoever told it is gone."""
_SOON = 0.5
"""Seconds for which a draw may wait for samples to come near."""
_LATELY = 0.5
"""Seconds over which it is averaged how many come."""


@dataclass(eq=False)
class Near:
    """Of one dataset."""

    dataset: Dataset
    bits: Bits
    since: float
    heard: float
    rate: float = 0.0
    """Samples a second that have come lately."""


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
            bits = Bits.of(self._state.universe.size, ids)
            self._near[dataset.key] = Near(dataset, bits, now, now)
        else:
            near.bits.add(ids)
            passed = max(now - near.heard, 1e-3)
            weight = passed / min(_LATELY, max(now - near.since, passed))
            near.rate += min(1.0, weight) * (len(ids) / passed - near.rate)
            near.heard = now

    def _of(self, dataset: Dataset) -> Near | None:
        near = self._near.get(dataset.key)
        if near is None:
            return None
        # (a dataset that was forgotten and came again has other numbers)
        if near.dataset is not dataset or self._state.now - near.heard > _SILENT:
            del self._near[dataset.key]
            return None
        if near.bits.size < self._state.universe.size:
            near.bits.grow(self._state.universe.size)
        return near

    def words(self, job: Job) -> Words | None:
        """What is near to a job; None where it makes no difference."""
        near = self._of(job.dataset)
        return None if near is None else near.bits.words

    def comes(self, job: Job, view: CacheView, count: int) -> bool:
        """Whether a draw of so many samples had better wait until that many are near."""
        near = self._of(job.dataset)
        if near is None:
            return False
        found = near.bits.words | view.pending
        for ready in view.ready:
            found |= ready
        found &= self._state.remaining.words(job.number)
        # (at the beginning it is not known yet how many come)
        young = not near.rate and self._state.now - near.since < _SOON
        soon = count if young else int(near.rate * _SOON)
        return not at_least(found, count) and at_least(found, max(0, count - soon))
