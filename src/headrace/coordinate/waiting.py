"""Rows that wait for what somebody else prepares: until it stands, or nobody will make it, or it takes too long."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.admission import Admission
from headrace.coordinate.entering import Entering
from headrace.coordinate.members import Job
from headrace.coordinate.protocol import (
    Update,
)
from headrace.coordinate.state import State
from headrace.coordinate.tickets import Ticket
from headrace.core.bits import put, test
from headrace.core.forms import Form

Ids = NDArray[np.int64]


class Waiting:
    """Looks after those who wait."""

    def __init__(self, state: State, entering: Entering, admission: Admission) -> None:
        self._state = state
        self._entering = entering
        self._admission = admission

    @staticmethod
    def hopes(job: Job, ids: Ids) -> set[int]:
        """Those of ``ids`` that somebody is augmenting now, and that this job cannot have had before.

        They are promised from here on: no other draw of the job's gets or hopes for them.
        """
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None or job.stale is None:
            return set()
        coming = ids[test(shelf.pending.words, ids) & ~test(job.stale.words, ids)]
        put(job.stale.words, coming)
        return set(coming.tolist())

    def forget(self, sample: int, ticket: Ticket) -> None:
        waiting = self._state.waiting.get(sample)
        if waiting is not None and ticket in waiting:
            waiting.remove(ticket)
            if not waiting:
                del self._state.waiting[sample]

    def settle(self, samples: Iterable[int]) -> None:
        """Samples that some wait for are cached now, or will not be."""
        found: dict[Ticket, list[int]] = {}
        """Rows that have what they waited for."""
        told: dict[Ticket, None] = {}
        for sample in samples:
            for ticket in self._state.waiting.pop(sample, ()):
                told[ticket] = None
                rows = [row for row in ticket.waiting.pop(sample, []) if ticket.open[row]]
                if self._finds(ticket, sample, rows):
                    found.setdefault(ticket, []).extend(rows)
        # All are held before others are told: what is kept for those may take the place of what nobody holds.
        for ticket, rows in found.items():
            self._entering.read(ticket, np.array(rows, np.int64))
        for ticket in told:
            if not ticket.waiting:
                self.resolve(ticket)

    def _finds(self, ticket: Ticket, sample: int, rows: list[int]) -> bool:
        """Whether a sample is there for those of a ticket who waited for it."""
        job = self._state.jobs[ticket.job]
        for form in (Form.AUGMENTED, Form.DECODED):
            shelf = job.shelves.get(form)
            if form == Form.AUGMENTED and sample not in ticket.hopes:
                continue  # the decoded one was waited for: this one the job may have had
            if shelf is not None and sample in shelf:
                # The augmented one is the one that was waited for, whatever has become stale meanwhile.
                address, nbytes = shelf.extent_of(sample)
                for row in rows:
                    ticket.dress.forms[row] = form
                    ticket.dress.offsets[row], ticket.dress.lengths[row] = address, nbytes
                return True
        return False

    def resolve(self, ticket: Ticket) -> None:
        """Nothing of a ticket waits any more: say how the rest of its rows enters."""
        if ticket.member not in self._state.ranks:
            return  # it waited for another ticket of a member that is gone, and goes with it
        job, rank = self._state.ranks[ticket.member]
        rows = np.arange(ticket.waits, len(ticket.ids))
        missed = rows[(ticket.dress.forms[rows] == 0) & ticket.open[rows]]
        if len(missed):
            again, _ = self._entering.enter(job, ticket.ids[missed], may_wait=False)
            # (an augmented one that came meanwhile may be one that this job had in an epoch before)
            plain = again.forms < int(Form.AUGMENTED)
            for name in ("forms", "offsets", "lengths"):
                getattr(ticket.dress, name)[missed[plain]] = getattr(again, name)[plain]
            self._entering.read(ticket, missed[plain])
            self._admission.keep(job, ticket, missed)
        dress, first = ticket.dress, ticket.waits
        rank.count(dress.forms[first:], self._state.now)
        self._state.out.append(
            (
                ticket.member,
                Update(
                    ticket=ticket.id,
                    forms=dress.forms[first:].tobytes(),
                    offsets=dress.offsets[first:].tobytes(),
                    lengths=dress.lengths[first:].tobytes(),
                    keep=dress.keep[first:].tobytes(),
                    grants=ticket.grants(first),
                ),
            )
        )

    def lose_patience(self) -> None:
        """Now and then: whoever has waited too long prepares for itself."""
        late = self._state.now - self._state.patience
        for ticket in [t for t in self._state.tickets.values() if t.waiting and t.given < late]:
            job = self._state.jobs[ticket.job]
            for sample in list(ticket.waiting):
                self.forget(sample, ticket)
                self._state.late |= self._state.owners(job, sample)
            ticket.waiting.clear()
            self.resolve(ticket)
