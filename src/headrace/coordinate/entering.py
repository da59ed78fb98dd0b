"""In which form the rows of a draw enter, and which of them wait for what others prepare."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.members import Job
from headrace.coordinate.state import State
from headrace.coordinate.tickets import Dress, Ticket
from headrace.core.bits import test
from headrace.core.forms import CACHEABLE, Form

Ids = NDArray[np.int64]
_DECODED, _AUGMENTED = int(Form.DECODED), int(Form.AUGMENTED)  # numpy takes long over enumerations


class Entering:
    """Looks rows up."""

    def __init__(self, state: State) -> None:
        self._state = state

    def enter(self, job: Job, ids: Ids, *, may_wait: bool) -> tuple[Dress, NDArray[np.bool_]]:
        """The form in which each row enters, and which rows wait for what others are preparing."""
        dress = Dress.plain(len(ids))
        waits = np.zeros(len(ids), np.bool_)
        for form in CACHEABLE:
            shelf = job.shelves.get(form)
            if shelf is None or not len(shelf):
                continue
            here = test(shelf.cached.words, ids)
            if form == Form.AUGMENTED and job.stale is not None:
                here &= ~test(job.stale.words, ids)
            rows = np.flatnonzero(here)
            if len(rows):
                dress.forms[rows] = int(form)
                dress.offsets[rows], dress.lengths[rows] = shelf.find(ids[rows])
        if may_wait:
            for form in (Form.DECODED, Form.AUGMENTED):
                shelf = job.shelves.get(form)
                if shelf is not None and shelf.owner:
                    coming = test(shelf.pending.words, ids)
                    if form == Form.AUGMENTED and job.stale is not None:
                        coming &= ~test(job.stale.words, ids)
                    waits |= coming
            waits &= dress.forms < _DECODED
            if self._state.late:
                for row in np.flatnonzero(waits).tolist():
                    waits[row] = self._state.in_time(job, int(ids[row]))
        return dress, waits

    def read(self, ticket: Ticket, rows: Ids) -> None:
        """Rows that enter from the cache: their extents stay until they are read."""
        job = self._state.jobs[ticket.job]
        ticket.reads[rows] = ticket.dress.forms[rows] != 0
        for form, samples in ticket.by_form(rows):
            shelf = job.shelves[form]
            shelf.read(samples)
            shelf.use(samples, self._state.pool.tick())
