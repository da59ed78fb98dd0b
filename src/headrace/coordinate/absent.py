"""Jobs that are expected again: all ranks that came have left, before every rank has had its part of each epoch.

Ranks that do not wait for each other may come one after the other, and a job is known to the host only while a rank
of it is there. What was drawn is kept, so that a rank which comes later is dealt its part of it. A new run of the
same name begins with the same draws: whatever runs its ranks are of, those of one epoch get parts of the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.members import Job

Ids = NDArray[np.int64]

_JOBS = 16
_SAMPLES = 1 << 25
"""Samples of all epochs that are remembered (256 MiB)."""
_AFTER = 3600.0
"""Seconds after which nobody is expected any more."""


@dataclass(frozen=True)
class _Past:
    terms: tuple[object, ...]
    """A job that has others draws otherwise."""
    epochs: dict[int, list[Ids]]
    """By number: the steps that were drawn, in the dataset's own indices."""
    came: set[int]
    waits: bool
    """Whether some rank never came."""
    since: float

    @property
    def samples(self) -> int:
        return sum(len(step) for steps in self.epochs.values() for step in steps)


class Absent:
    """What was drawn of epochs that some rank has yet to begin, by the group of a job whose ranks have all left."""

    def __init__(self, *, jobs: int = _JOBS, samples: int = _SAMPLES) -> None:
        self._jobs, self._samples = jobs, samples
        self._past: dict[str, _Past] = {}
        """The one that left last is the last."""

    @property
    def awaited(self) -> bool:
        """Whether there is a rank that never came. (One that was there may have had its next epoch prepared, too.)"""
        return any(past.waits for past in self._past.values())

    def leave(self, job: Job, now: float) -> None:
        """The last rank has left."""
        epochs = job.unfinished()
        if epochs:
            waits = len(job.came) < job.world_size
            self._past[job.group] = _Past(_terms(job), epochs, job.came, waits, now)
            self.forget(now)

    def come(self, job: Job) -> None:
        """The first rank is here (again)."""
        past = self._past.pop(job.group, None)
        if past is not None and past.terms == _terms(job):
            job.past, job.came = past.epochs, past.came

    def forget(self, now: float) -> None:
        """Those who left long ago, or before too many others, are not expected any more."""
        samples = sum(past.samples for past in self._past.values())
        for group, past in list(self._past.items()):
            if past.since >= now - _AFTER and len(self._past) <= self._jobs and samples <= self._samples:
                break
            samples -= past.samples
            del self._past[group]


def _terms(job: Job) -> tuple[object, ...]:
    return job.dataset.key, job.dataset.size, job.sampling, job.geometry
