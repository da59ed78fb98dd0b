"""What idle workers prepare for the cache: the help of jobs for each other, and the refill of what was used up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.desk import Desk
from headrace.coordinate.members import Job
from headrace.coordinate.messages import Order
from headrace.coordinate.shelf import Shelf
from headrace.core import random as rnd
from headrace.core.bits import choose, count
from headrace.core.forms import Form

Ids = NDArray[np.int64]

_FILL = 8
"""Samples of a fill: little enough that a worker's own job hardly waits for it."""


class Fills(Desk):
    """Finds something for idle hands to do."""

    def fill(self, session: int) -> Order | None:
        """Something for an idle worker of a job to prepare into the cache: what most jobs still need."""
        if session not in self.ranks:
            return None
        job, _ = self.ranks[session]
        shelf = self._shelf_to_fill(job)
        if shelf is None or self.pool.eviction.name == "none" or not job.fills:
            return None
        # Somebody else's workers have something to do, so there is no time to spare, only this worker's turn.
        if any(not ticket.fill and ticket.id not in self._late for ticket in self.tickets.values()):
            return None
        room = self.pool.room(Form.AUGMENTED) if shelf.form == Form.AUGMENTED else self.pool.spare
        if room < _FILL * self.pool.size_for(shelf):
            return None
        decoded = job.shelves.get(Form.DECODED)
        cached = shelf.cached.words | shelf.pending.words
        if decoded is not None:
            cached = cached | decoded.cached.words | decoded.pending.words
        wanted = job.dataset.bits(self.universe.size).words & ~cached
        ids = self._most_needed(shelf, wanted)
        if not len(ids):
            return None
        dress, _ = self._enter_rows(job, ids, may_wait=False)
        ticket = self._ticket(job, session, -1, ids, dress, fill=True)
        self._read(ticket, np.arange(len(ids)))
        if shelf.form == Form.AUGMENTED:
            self._grant(
                ticket, shelf, np.arange(len(ids)), ids, self._fresh_needs(shelf, ids), len(shelf.jobs)
            )
        else:
            self._keep(job, ticket, np.arange(len(ids)))
        if not ticket.blocks:
            self._close_rows(ticket, np.arange(len(ids)))
            return None
        self.refills += len(ids)
        seed, key = self._randomness(ticket)
        grants = [(int(form), offset, size) for offset, (_, form, size) in ticket.blocks.items()]
        return Order(
            id=ticket.id,
            slot_offset=0,
            slot_bytes=0,
            rows=len(ids),
            start=0,
            seed=seed,
            epoch=key,
            step=0,
            indices=job.dataset.to_local(ids).tobytes(),
            forms=dress.forms.tobytes(),
            offsets=dress.offsets.tobytes(),
            lengths=dress.lengths.tobytes(),
            keep=dress.keep.tobytes(),
            grants=np.array(grants, np.int64).tobytes(),
            instance=self.instance,
            ticket=ticket.id,
            fill=True,
        )

    def _shelf_to_fill(self, job: Job) -> Shelf | None:
        """What others can use augmented is prepared for them. For a job alone, what lasts is worth more."""
        augmented = job.shelves.get(Form.AUGMENTED)
        if augmented is not None and len(augmented.jobs) > 1 and self.pool.allows(Form.AUGMENTED):
            return augmented
        return job.shelves.get(Form.DECODED) if self.pool.allows(Form.DECODED) else None

    def _most_needed(self, shelf: Shelf, wanted: NDArray[np.uint64]) -> Ids:
        """A few samples that as many jobs as possible still need."""
        best: NDArray[np.uint64] | None = None
        left = sorted(shelf.jobs, key=lambda number: -self.remaining.left(number))
        for number in left[:16]:
            words = (wanted if best is None else best) & self.remaining.bits(number).words
            if count(words) >= (_FILL if best is not None else 1):
                best = words
        if best is None:
            return np.zeros(0, np.int64)
        return choose(best, _FILL, rnd.key(self.nonce, 1, self._next_ticket))
