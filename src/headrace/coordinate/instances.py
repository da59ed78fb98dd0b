"""Which augmented samples a job may still take: each instance is for every job once, and only in an epoch that began
before it was made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.members import Epoch, Job
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.core.bits import put, test
from headrace.core.forms import Form

Ids = NDArray[np.int64]


class Instances:
    """Keeps count of who has yet to take what."""

    def __init__(self, state: State) -> None:
        self._state = state

    def take(self, job: Job, epoch: Epoch, taken: Ids) -> None:
        """A job is given instances, and never again: a rank that lags may take what its job's next epoch draws."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None or job.stale is None or not len(taken):
            return
        counted = taken
        if epoch is not job.epoch:  # what was counted is the need of the newest epoch, which now goes without
            counted = taken[test(self._state.remaining.words(job.number), taken)]
        shelf.count_down(counted)
        put(job.stale.words, taken)

    def take_no_more(self, job: Job) -> None:
        """A job will not take what it has not taken of the augmented samples that are cached."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is not None and len(shelf):
            ids = shelf.cached.ids()
            self.change_left(job, shelf, ids, -1)

    def change_left(self, job: Job, shelf: Shelf, ids: Ids, by: int) -> None:
        """A job will take so many instances more (``by`` 1), or fewer (-1), of those of ``ids`` that it may."""
        wanted = test(self._state.remaining.words(job.number), ids)
        if job.stale is not None:
            wanted &= ~test(job.stale.words, ids)
        shelf.change_left(by * wanted.astype(np.int64), ids)
