"""What a shared host forgets: jobs that left, datasets and shelves that none uses, beyond a few, after a while."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np

from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.coordinate.universe import Dataset
from headrace.core.bits import Bits

Key = TypeVar("Key", bound=Hashable)

_DATASETS = 16
"""Datasets that are remembered for those who come again, though no job has them now."""
_SHELVES = 3 * _DATASETS
_AFTER = 3600.0
"""Seconds after which even they are forgotten."""


class Upkeep:
    """Looks now and then at what is used, so that a host that lives long is no larger than its jobs make it."""

    def __init__(self, state: State, *, datasets: int = _DATASETS, shelves: int = _SHELVES) -> None:
        self._state = state
        self._datasets, self._shelves = datasets, shelves
        self._unused: dict[Hashable, float] = {}
        """When a look first found no job with it."""

    def look(self) -> None:
        """Forget what is due."""
        state = self._state
        state.absent.forget(state.now)
        used = {job.dataset.key for job in state.jobs.values()}
        datasets, shelves = state.universe.datasets, state.pool.shelves
        unused = [key for key in datasets if key not in used]
        empty = [key for key, shelf in shelves.items() if not shelf.jobs]
        self._unused = {key: self._unused.get(key, state.now) for key in (*unused, *empty)}
        for key in self._due(empty, self._shelves):
            self._forget_shelf(shelves[key])
        for name in self._due(unused, self._datasets):
            self._forget_dataset(datasets[name])

    def _due(self, keys: Iterable[Key], most: int) -> list[Key]:
        """Those that are forgotten now, the longest unused first."""
        ordered = sorted(keys, key=self._unused.__getitem__)
        late = self._state.now - _AFTER
        return [key for at, key in enumerate(ordered) if self._unused[key] < late or at < len(ordered) - most]

    def _forget_shelf(self, shelf: Shelf) -> None:
        if not shelf.busy and not shelf.owner:
            self._state.pool.evict(shelf, shelf.cached.ids().tolist())
            self._state.pool.changed()
            del self._state.pool.shelves[shelf.form, shelf.key]

    def _forget_dataset(self, dataset: Dataset) -> None:
        """Its samples that are in no other dataset give their numbers back."""
        state, pool = self._state, self._state.pool
        own = state.universe.only_in(dataset)
        if any(_any_of(own, [*shelf.busy, *shelf.owner]) for shelf in pool.shelves.values()):
            return  # workers of a job that is gone may be reading them
        for shelf in pool.shelves.values():
            pool.evict(shelf, (shelf.cached & own).ids().tolist())
        for job in state.jobs.values():
            if job.stale is not None:
                job.stale = job.stale - own
        pool.changed()
        state.universe.forget(dataset, own)


def _any_of(bits: Bits, samples: list[int]) -> bool:
    return bool(bits.test(np.array(samples, np.int64)).any())
