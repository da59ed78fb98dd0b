"""What of the rows that have to be prepared is kept in the cache: room is granted before it is made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.futures import Futures
from headrace.coordinate.members import Job
from headrace.coordinate.passing_on import PassingOn
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.coordinate.tickets import Ticket
from headrace.core.bits import drop, put, test
from headrace.core.forms import CACHEABLE, Form

Ids = NDArray[np.int64]
_DECODED, _AUGMENTED = int(Form.DECODED), int(Form.AUGMENTED)  # numpy takes long over enumerations


class Admission:
    """Decides what is kept."""

    def __init__(self, state: State, passing_on: PassingOn, futures: Futures) -> None:
        self._state = state
        self._passing_on = passing_on
        self._futures = futures

    def keep(self, job: Job, ticket: Ticket, rows: Ids) -> None:
        """Decide what of the rows that have to be prepared is kept, and grant memory for it."""
        forms = ticket.dress.forms[rows]
        if len(forms) and int(forms.min()) >= _DECODED and not self._passing_on.pays(job):
            return  # all of it is there
        rows = rows[forms < _AUGMENTED]
        if not len(rows):
            return
        ids = ticket.ids[rows]
        if len(set(ids.tolist())) < len(ids):  # a sample that comes twice is kept once
            _, first = np.unique(ids, return_index=True)
            rows, ids = rows[np.sort(first)], ids[np.sort(first)]
        encoded, decoded, augmented = (job.shelves.get(form) for form in CACHEABLE)
        served: set[int] = set()
        if augmented is not None and self._passes_on(job, decoded, ticket, rows):
            served = augmented.jobs
            there = test(augmented.cached.words, ids) | test(augmented.pending.words, ids)
            needs = self._state.fresh_needs(augmented, ids)
            wanted = ~there & (needs > 0)
            self.grant(ticket, augmented, rows[wanted], ids[wanted], needs[wanted], len(augmented.jobs))
        undecoded = ticket.dress.forms[rows] < _DECODED
        if not undecoded.any():
            return
        rows, ids = rows[undecoded], ids[undecoded]
        if decoded is not None and self._state.pool.allows(Form.DECODED):
            fresh = ~(test(decoded.cached.words, ids) | test(decoded.pending.words, ids))
            needs = self._state.needs_of(decoded, ids, decoded.jobs)
            if len(served) > 1:
                # Those who will take it augmented do not need it decoded: it is kept if there is room to spare.
                augments = (ticket.dress.keep[rows] & (1 << Form.AUGMENTED)) != 0
                needs[augments] = self._state.needs_of(decoded, ids[augments], decoded.jobs - served)
                spare = fresh & (needs == 0)
                fresh &= ~spare
                most = max(0, self._state.pool.spare // decoded.expected)
                parts = rows[spare][:most], ids[spare][:most], needs[spare][:most]
                self.grant(ticket, decoded, *parts, len(decoded.jobs), displace=False)
            self.grant(ticket, decoded, rows[fresh], ids[fresh], needs[fresh], len(decoded.jobs))
        if encoded is not None and self._state.pool.allows(Form.ENCODED):
            others = encoded.jobs - self._state.content(job)
            if others or self._state.pool.limited:
                fresh = ~(test(encoded.cached.words, ids) | test(encoded.pending.words, ids)) & (
                    ticket.dress.forms[rows] == 0
                )
                needs = self._state.needs_of(encoded, ids, others)
                wanted = needs > 0
                if (
                    self._state.pool.limited
                ):  # encoded samples have a part of their own: for those that are not kept decoded
                    lasts = (ticket.dress.keep[rows] & (1 << Form.DECODED)) != 0
                    if decoded is not None:
                        lasts |= test(decoded.pending.words, ids)
                    wanted |= ~lasts
                fresh &= wanted
                self.grant(ticket, encoded, rows[fresh], ids[fresh], needs[fresh], len(encoded.jobs))

    def _passes_on(self, job: Job, decoded: Shelf | None, ticket: Ticket, rows: Ids) -> bool:
        """Whether what is augmented is kept for others."""
        if not self._passing_on.augmented(job):
            return False
        if decoded is None or not self._state.pool.allows(Form.DECODED) or self._passing_on.pays(job):
            return True
        # It does not pay where all of them are decoded, or are about to be because there is room for it.
        missing = int(np.count_nonzero(ticket.dress.forms[rows] < _DECODED))
        return missing > max(0, self._state.pool.spare // decoded.expected)

    def grant(
        self,
        ticket: Ticket,
        shelf: Shelf,
        rows: Ids,
        ids: Ids,
        needs: NDArray[np.int64],
        jobs: int,
        *,
        displace: bool = True,
    ) -> None:
        granted: list[int] = []
        bit = 1 << shelf.form
        near = self._futures.newcomers(shelf, ids, ahead=ticket.fill)
        if near is not None:
            needs = near
        places = self._state.pool.admit(shelf, needs.tolist(), jobs, displace=displace)
        for row, sample, place in zip(rows.tolist(), ids.tolist(), places, strict=True):
            if place is None:
                continue
            offset, capacity = place
            ticket.blocks[offset] = (row, shelf.form, capacity)
            ticket.dress.keep[row] |= bit
            shelf.owner[sample] = ticket.id
            granted.append(sample)
        if granted:
            array = np.array(granted, np.int64)
            put(shelf.pending.words, array)
            if shelf.form == Form.AUGMENTED:
                # A new one is in the making. From here on, whoever begins another epoch will not get it.
                for number in shelf.jobs:
                    stale = self._state.jobs[number].stale
                    if stale is not None:
                        drop(stale.words, array)
                own = self._state.jobs[ticket.job].stale
                if own is not None and not ticket.fill:
                    put(own.words, array)  # the job that makes it has it, even if it has begun anew meanwhile

    def drop_encoded(self, job: Job, samples: list[int]) -> None:
        """Samples are kept decoded from now on; they need not be kept encoded as well."""
        encoded = job.shelves.get(Form.ENCODED)
        if encoded is None or not len(encoded) or encoded.jobs - self._state.content(job):
            return
        self._state.pool.evict(
            encoded, [sample for sample in samples if sample in encoded and not encoded.busy.get(sample)]
        )
