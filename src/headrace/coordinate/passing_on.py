"""Whether what a job augments is kept for others: where augmenting takes so long that the host keeps up with it.

A sample that is augmented once and taken by others passes through the host's books each time. All processors together
augment so many samples in a second, and the host, which is one process, passes on so many. Where the former is more,
jobs are faster if each augments for itself what all of them have decoded. And so they are where to pass a sample on,
and to copy it, costs the processors more than all but the first of them save by it.
"""

from __future__ import annotations

from headrace.coordinate.costs import COPY
from headrace.coordinate.members import Job
from headrace.coordinate.state import State
from headrace.core.forms import Form

_HOST = 12e-6
"""Seconds that the host takes for each sample that it passes on."""
_CLEARLY = 1.5
"""What is saved has to be more than what it costs by this factor: it takes room, too."""
_WAY_BACK = 1.5
"""What was too little has to be more by this factor before it is enough."""


class PassingOn:
    """Decides it, from what workers report."""

    def __init__(self, state: State) -> None:
        self._state = state

    def augmented(self, job: Job) -> bool:
        """Whether others take what a job augments."""
        shelf = job.shelves.get(Form.AUGMENTED)
        return shelf is not None and len(shelf.jobs) > 1 and self._state.pool.allows(Form.AUGMENTED)

    def pays(self, job: Job) -> bool:
        """Whether it pays for samples that are cached in their decoded form, too."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None or not self.augmented(job):
            return False
        mean = shelf.costs.augment_cpu
        if mean.known:
            jobs = len(shelf.jobs)
            least = max(_HOST * self._state.shared_split.cpus, _CLEARLY * (_HOST + COPY) * jobs / (jobs - 1))
            if mean.mean < least:
                shelf.cheap = True
            elif mean.mean > _WAY_BACK * least:
                shelf.cheap = False
        return not shelf.cheap
