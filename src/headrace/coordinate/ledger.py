"""The books of a shared host: who is there, what is cached and what is given out, and what is worth keeping."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.absent import Absent
from headrace.coordinate.division import Division
from headrace.coordinate.members import Job, Rank
from headrace.coordinate.pool import Pool
from headrace.coordinate.protocol import Join, Reply
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.tickets import Dress, Ticket
from headrace.coordinate.universe import Universe
from headrace.core.bits import drop, put, test
from headrace.core.forms import CACHEABLE, Form
from headrace.sampling import SAMPLERS, Remaining, Sampler

Ids = NDArray[np.int64]
_DECODED, _AUGMENTED = int(Form.DECODED), int(Form.AUGMENTED)  # numpy takes long over enumerations


class Ledger:
    """What the commons know. Decides how rows enter, and what is kept of them."""

    def __init__(self, *, instance: int, nonce: int, span: int, universe: Universe | None = None) -> None:
        """``universe``: samples that are known from the start; several hosts on paper may have one in common."""
        self.instance, self.nonce = instance, nonce
        self.now = 0.0
        self.out: list[tuple[int, Reply]] = []
        """Replies to send: the session, and what to tell it."""
        self.universe = Universe() if universe is None else universe
        self.remaining = Remaining(self.universe.size)
        self.jobs: dict[int, Job] = {}
        self.ranks: dict[int, tuple[Job, Rank]] = {}
        """By session."""
        self.absent = Absent()
        self.tickets: dict[int, Ticket] = {}
        self.pool = Pool(span, self.needs)
        self.division = Division()
        self.decodes = self.fetches = self.refills = 0
        self._samplers: dict[str, Sampler] = {name: make() for name, make in SAMPLERS.items()}
        self._joining: dict[int, tuple[str, Join, int]] = {}
        self._next_ticket = 1
        self._next_job = 0
        self._waiting: dict[int, list[Ticket]] = defaultdict(list)
        """By sample: the tickets that wait for it."""
        self._orphans: dict[int, list[int]] = {}
        """Blocks that a lost session's workers may still be writing to."""
        self._reads: dict[int, list[tuple[Shelf, list[int]]]] = {}
        """Samples that they may still be reading."""
        self._late: set[int] = set()
        """Tickets that somebody has waited for in vain: their job may be paused. Nobody waits for them again."""
        self._stalled = False
        self._span_of_tickets = 0.1
        """Seconds from giving a ticket out to its end, a moving average."""

    def needs(self, shelf: Shelf, ids: Ids) -> NDArray[np.int64]:
        """How many jobs still need each sample in their present epochs and could take it from this shelf."""
        return self._needs_of(shelf, ids, shelf.jobs)

    def _needs_of(self, shelf: Shelf, ids: Ids, jobs: set[int]) -> NDArray[np.int64]:
        if not jobs or not len(ids):
            return np.zeros(len(ids), np.int64)
        if shelf.form != Form.AUGMENTED:
            return self.remaining.needs(ids, tuple(jobs)).astype(np.int64)
        total = np.zeros(len(ids), np.int64)
        for number in jobs:
            stale = self.jobs[number].stale
            wanted = test(self.remaining.words(number), ids)
            total += wanted if stale is None else wanted & ~test(stale.words, ids)
        return total

    def _enter_rows(self, job: Job, ids: Ids, *, may_wait: bool) -> tuple[Dress, NDArray[np.bool_]]:
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
                dress.offsets[rows], dress.lengths[rows] = shelf.find(ids[rows].tolist())
        if may_wait:
            for form in (Form.DECODED, Form.AUGMENTED):
                shelf = job.shelves.get(form)
                if shelf is not None and shelf.owner:
                    coming = test(shelf.pending.words, ids)
                    if form == Form.AUGMENTED and job.stale is not None:
                        coming &= ~test(job.stale.words, ids)
                    waits |= coming
            waits &= dress.forms < _DECODED
            if self._late:
                for row in np.flatnonzero(waits).tolist():
                    waits[row] = self._in_time(job, int(ids[row]))
        return dress, waits

    def _read(self, ticket: Ticket, rows: Ids) -> None:
        """Rows that enter from the cache: their extents stay until they are read."""
        job = self.jobs[ticket.job]
        ticket.reads[rows] = ticket.dress.forms[rows] != 0
        for form, samples in ticket.by_form(rows):
            shelf = job.shelves[form]
            shelf.read(samples)
            shelf.use(samples, self.pool.tick())

    def _keep(self, job: Job, ticket: Ticket, rows: Ids) -> None:
        """Decide what of the rows that have to be prepared is kept, and grant memory for it."""
        forms = ticket.dress.forms[rows]
        rows = rows[forms < _AUGMENTED]
        if not len(rows):
            return
        ids = ticket.ids[rows]
        if len(set(ids.tolist())) < len(ids):  # a sample that comes twice is kept once
            _, first = np.unique(ids, return_index=True)
            rows, ids = rows[np.sort(first)], ids[np.sort(first)]
        encoded, decoded, augmented = (job.shelves.get(form) for form in CACHEABLE)
        served: set[int] = set()
        if augmented is not None and len(augmented.jobs) > 1 and self.pool.allows(Form.AUGMENTED):
            served = augmented.jobs
            there = test(augmented.cached.words, ids) | test(augmented.pending.words, ids)
            needs = self._fresh_needs(augmented, ids)
            wanted = ~there & (needs > 0)
            self._grant(ticket, augmented, rows[wanted], ids[wanted], needs[wanted], len(augmented.jobs))
        undecoded = ticket.dress.forms[rows] < _DECODED
        if not undecoded.any():
            return
        rows, ids = rows[undecoded], ids[undecoded]
        if decoded is not None and self.pool.allows(Form.DECODED):
            fresh = ~(test(decoded.cached.words, ids) | test(decoded.pending.words, ids))
            needs = self._needs_of(decoded, ids, decoded.jobs)
            if len(served) > 1:
                # Those who will take it augmented do not need it decoded: it is kept if there is room to spare.
                augments = (ticket.dress.keep[rows] & (1 << Form.AUGMENTED)) != 0
                needs[augments] = self._needs_of(decoded, ids[augments], decoded.jobs - served)
                spare = fresh & (needs == 0)
                fresh &= ~spare
                most = max(0, self.pool.spare // decoded.expected)
                parts = rows[spare][:most], ids[spare][:most], needs[spare][:most]
                self._grant(ticket, decoded, *parts, len(decoded.jobs), displace=False)
            self._grant(ticket, decoded, rows[fresh], ids[fresh], needs[fresh], len(decoded.jobs))
        if encoded is not None and self.pool.allows(Form.ENCODED):
            others = encoded.jobs - self._content(job)
            if others or self.pool.limited:
                fresh = ~(test(encoded.cached.words, ids) | test(encoded.pending.words, ids)) & (
                    ticket.dress.forms[rows] == 0
                )
                needs = self._needs_of(encoded, ids, others)
                wanted = needs > 0
                if (
                    self.pool.limited
                ):  # encoded samples have a part of their own: for those that are not kept decoded
                    lasts = (ticket.dress.keep[rows] & (1 << Form.DECODED)) != 0
                    if decoded is not None:
                        lasts |= test(decoded.pending.words, ids)
                    wanted |= ~lasts
                fresh &= wanted
                self._grant(ticket, encoded, rows[fresh], ids[fresh], needs[fresh], len(encoded.jobs))

    @staticmethod
    def _content(job: Job) -> set[int]:
        """The jobs that have no use for an encoded sample which this job has decoded."""
        decoded = job.shelves.get(Form.DECODED)
        return decoded.jobs if decoded is not None else {job.number}

    def _drop_encoded(self, job: Job, samples: list[int]) -> None:
        """Samples are kept decoded from now on; they need not be kept encoded as well."""
        encoded = job.shelves.get(Form.ENCODED)
        if encoded is None or not len(encoded) or encoded.jobs - self._content(job):
            return
        self.pool.evict(
            encoded, [sample for sample in samples if sample in encoded and not encoded.busy.get(sample)]
        )

    def _fresh_needs(self, shelf: Shelf, ids: Ids) -> NDArray[np.int64]:
        """How many jobs could take an augmented sample that is about to be made: nobody has had that one."""
        return self.remaining.needs(ids, tuple(shelf.jobs)).astype(np.int64)

    def _grant(
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
        places = self.pool.admit(shelf, needs.tolist(), jobs, displace=displace)
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
                    stale = self.jobs[number].stale
                    if stale is not None:
                        drop(stale.words, array)
                own = self.jobs[ticket.job].stale
                if own is not None and not ticket.fill:
                    put(own.words, array)  # the job that makes it has it, even if it has begun anew meanwhile

    def _ticket(
        self, job: Job, session: int, epoch: int, ids: Ids, dress: Dress, *, fill: bool = False
    ) -> Ticket:
        ticket = Ticket(self._next_ticket, job.number, session, epoch, ids, dress, self.now, fill)
        self._next_ticket += 1
        self.tickets[ticket.id] = ticket
        return ticket

    def _randomness(self, ticket: Ticket) -> tuple[int, int]:
        """Takes the place of seed and epoch: no two tickets ever make the same augmented sample."""
        return self.nonce & ((1 << 63) - 1), ticket.id

    def _left_to_take(self, job: Job, ticket: Ticket, first: int, stop: int) -> list[int]:
        """For each row how many jobs have yet to take its sample, were it augmented."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None:
            return [0] * (stop - first)
        rows = first + np.flatnonzero(ticket.dress.keep[first:stop] & (1 << Form.AUGMENTED))
        left = np.zeros(stop - first, np.int64)
        left[rows - first] = self.needs(shelf, ticket.ids[rows])
        found: list[int] = left.tolist()
        return found

    def _take_no_more(self, job: Job) -> None:
        """A job will not take what it has not taken of the augmented samples that are cached."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is not None and len(shelf):
            ids = shelf.cached.ids()
            self._change_left(job, shelf, ids, -1)

    def _change_left(self, job: Job, shelf: Shelf, ids: Ids, by: int) -> None:
        wanted = test(self.remaining.words(job.number), ids)
        if job.stale is not None:
            wanted &= ~test(job.stale.words, ids)
        shelf.change_left(by * wanted.astype(np.int64), ids)

    @staticmethod
    def _owners(job: Job, sample: int) -> set[int]:
        """The tickets that prepare a sample for a shelf of this job."""
        shelves = (job.shelves.get(form) for form in (Form.DECODED, Form.AUGMENTED))
        return {shelf.owner[sample] for shelf in shelves if shelf is not None and sample in shelf.owner}

    def _in_time(self, job: Job, sample: int) -> bool:
        """Whether a sample in preparation is worth waiting for."""
        return not self._owners(job, sample) & self._late
