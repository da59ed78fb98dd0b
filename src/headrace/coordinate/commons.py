"""The commons: what a shared host knows and decides. Which job gets which samples, from where, and what is kept.

Events in (a rank joins, asks, has finished; a process is gone), replies out, through ``out``. There is no I/O
here, no thread, and no clock but ``now``, which whoever carries the events sets. Each sample of a draw enters
at the most prepared form there is for its job. What has to be prepared is prepared by the job that drew it, and
kept as far as that pays for the others; a sample that somebody is preparing is waited for rather than prepared
twice, but never for longer than ``patience``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.members import Epoch, Job, Rank, read_progress
from headrace.coordinate.messages import Order
from headrace.coordinate.pool import Pool
from headrace.coordinate.protocol import Begin, Drawn, Finished, Join, Joined, Over, Refused, Reply, Update
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.tickets import Dress, Ticket
from headrace.coordinate.universe import Dataset, Universe
from headrace.core import random as rnd
from headrace.core.bits import Bits, at_least, choose, count, drop, put, test
from headrace.core.errors import ProtocolError
from headrace.core.forms import CACHEABLE, Form
from headrace.eviction import EVICTIONS
from headrace.sampling import SAMPLERS, Remaining, Sampler, View

Ids = NDArray[np.int64]

MOST_JOBS = 255
_SHORTEST_PATIENCE, _LONGEST_PATIENCE = 1.0, 10.0
_FILL = 8
"""Samples of a fill: little enough that a worker's own job hardly waits for it."""


class Commons:
    """All jobs of a shared host, its cache, and their draws."""

    def __init__(self, *, instance: int, nonce: int, span: int) -> None:
        self.instance, self.nonce = instance, nonce
        self.now = 0.0
        self.out: list[tuple[int, Reply]] = []
        """Replies to send: the session, and what to tell it."""
        self.universe = Universe()
        self.remaining = Remaining()
        self.jobs: dict[int, Job] = {}
        self.ranks: dict[int, tuple[Job, Rank]] = {}
        """By session."""
        self.tickets: dict[int, Ticket] = {}
        self.pool = Pool(span, self.needs)
        self.decodes = self.fetches = self.refills = 0
        self._samplers: dict[str, Sampler] = {name: make() for name, make in SAMPLERS.items()}
        self._joining: dict[int, tuple[str, Join, int]] = {}
        self._next_ticket = 1
        self._next_job = 0
        self._waiting: dict[int, list[Ticket]] = defaultdict(list)
        """By sample: the tickets that wait for it."""
        self._orphans: dict[int, list[int]] = {}
        """Blocks that a lost session's workers may still be writing to."""
        self._late: set[int] = set()
        """Tickets that somebody has waited for in vain: their job may be paused. Nobody waits for them again."""
        self._stalled = False
        self._span_of_tickets = 0.1
        """Seconds from giving a ticket out to its end, a moving average."""

    # -- joining and leaving ---------------------------------------------------------------------------------

    def join(self, session: int, token: str, pid: int, join: Join) -> Joined | Refused:
        """A rank wants to share."""
        if join.sampling not in (*SAMPLERS, "uniform") or join.eviction not in EVICTIONS:
            return Refused(f"this host knows no sampling {join.sampling!r} with eviction {join.eviction!r}")
        dataset = self.universe.datasets.get(join.dataset)
        if dataset is None:
            self._joining[session] = (token, join, pid)
            return Joined(identities=True)
        if dataset.size != join.samples:
            return Refused(f"the dataset has {dataset.size} samples here and {join.samples} there")
        return self._enter(session, token, pid, join, dataset)

    def identities(self, session: int, table: NDArray[np.uint8]) -> Joined | Refused:
        """The identities of the samples of a dataset that was not known when the rank joined."""
        token, join, pid = self._joining.pop(session)
        if table.shape != (join.samples, 16):
            raise ProtocolError(f"{table.shape} identities for {join.samples} samples")
        dataset = self.universe.datasets.get(join.dataset)
        if dataset is None:
            dataset = self.universe.add(join.dataset, join.label, table)
            self.remaining.grow(self.universe.size)
            for shelf in self.pool.shelves.values():
                shelf.grow(self.universe.size)
            for job in self.jobs.values():
                if job.stale is not None:
                    job.stale.grow(self.universe.size)
        return self._enter(session, token, pid, join, dataset)

    def _enter(self, session: int, token: str, pid: int, join: Join, dataset: Dataset) -> Joined | Refused:
        group = token if join.sampling == "uniform" else join.group
        found = [job for job in self.jobs.values() if job.group == group]
        if found:
            job = found[0]
            same = (job.dataset is dataset, job.world_size == join.world_size, job.sampling == join.sampling)
            if not all(same) or job.geometry.batch_size != join.batch_size:
                return Refused(
                    "ranks of one job must have the same dataset, sampling, batch size and world size"
                )
            if join.rank in job.ranks:
                return Refused(f"rank {join.rank} of this job is already here", again=True)
        else:
            if len(self.jobs) >= MOST_JOBS:
                return Refused(f"{MOST_JOBS} jobs share already, which is the most that one host serves")
            if not self.jobs:
                self.pool.eviction = EVICTIONS[join.eviction]
            job = self.jobs[self._next_job] = Job(self._next_job, join, dataset)
            self._next_job += 1
            keys = (join.encoded, join.decoded, join.augmented)
            for form, key in zip(CACHEABLE, keys, strict=True):
                if key and (form != Form.AUGMENTED or join.sampling != "uniform"):
                    body = join.body if form == Form.AUGMENTED else 0
                    found_shelf = self.pool.shelf(form, key, self.universe.size, body)
                    found_shelf.jobs.add(job.number)
                    job.shelves[form] = found_shelf
            self.remaining.join(job.number, dataset.bits(self.universe.size))
            shelf = job.shelves.get(Form.AUGMENTED)
            if shelf is not None:
                job.stale = Bits.empty(self.universe.size)
                self._change_left(job, shelf, shelf.cached.ids(), 1)
            self._set_budget()
        rank = Rank(session, token, join.rank if join.sampling != "uniform" else 0, pid, heard=self.now)
        job.ranks[rank.rank] = rank
        self.ranks[session] = (job, rank)
        return Joined(identities=False)

    def _set_budget(self) -> None:
        budget = max((job.budget for job in self.jobs.values()), default=0)
        split = next((job.split for job in self.jobs.values() if job.split is not None), None)
        limits = None
        if split is not None and sum(split) > 0:
            whole = sum(split)
            limits = {form: int(budget * part / whole) for form, part in zip(CACHEABLE, split, strict=True)}
        if self.jobs:  # the last one's cache stays for whoever comes next
            self.pool.set_budget(budget, limits)

    def gone(self, session: int) -> None:
        """A job's process is gone, or has left. Its workers may go on for a moment: see ``buried``."""
        self._joining.pop(session, None)
        if session not in self.ranks:
            return
        job, rank = self.ranks.pop(session)
        orphans = self._orphans.setdefault(session, [])
        for ticket in [ticket for ticket in self.tickets.values() if ticket.session == session]:
            orphans += ticket.blocks
            ticket.blocks.clear()
            self._close_rows(ticket, np.flatnonzero(ticket.open))
        del job.ranks[rank.rank]
        if not job.ranks:
            self._end(job)
        self.pool.fit()
        self._go_on()

    def _end(self, job: Job) -> None:
        self._take_no_more(job)
        del self.jobs[job.number]
        self.remaining.leave(job.number)
        for sampler in self._samplers.values():
            sampler.forget(job.number)
        for shelf in job.shelves.values():
            shelf.jobs.discard(job.number)
        self.pool.changed()
        self._set_budget()

    def buried(self, session: int) -> None:
        """Nothing of a lost session runs any more."""
        self.pool.give_back(self._orphans.pop(session, []))

    # -- epochs ------------------------------------------------------------------------------------------------

    def begin(self, session: int, begin: Begin, progress: bytes | None) -> None:
        """A rank begins an epoch, or goes on with one that another host began."""
        job, rank = self.ranks[session]
        seen = Bits.empty(job.dataset.size)
        steps: dict[int, Ids] = {}
        if progress is not None:
            seen, steps = read_progress(progress, job.dataset.size)
            steps = {number: job.dataset.to_universe(indices) for number, indices in steps.items()}
        rank.asks.clear()
        number = rank.rank
        explicit = begin.explicit or job.sampling == "uniform"
        given = seen.count() if not explicit else 0
        taken_over = progress is not None and job.world_size > 1 and not explicit
        new = job.begin(
            number, begin.epoch, explicit=explicit, given=given, step=begin.step, taken_over=taken_over
        )
        epoch = rank.epoch
        assert epoch is not None
        if new:
            self._begin_epoch(job)
        if progress is not None and not explicit:
            epoch.steps.update(steps)
            if epoch is job.epoch:  # else all of it was drawn before, and another rank knows the rest
                self._merge_progress(job, epoch, seen, begin.step)
        self._serve_all(job)

    def _begin_epoch(self, job: Job) -> None:
        self._take_no_more(job)
        for sampler in self._samplers.values():
            sampler.forget(job.number)
        self.remaining.begin(job.number, job.dataset.bits(self.universe.size))
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is not None and job.stale is not None:
            job.stale = shelf.cached | shelf.pending
        self.pool.epoch()

    def _merge_progress(self, job: Job, epoch: Epoch, seen: Bits, step: int) -> None:
        """What one rank knows of an epoch that another host began. The rank that is farthest knows all of it."""
        self.remaining.take(job.number, job.dataset.to_universe(seen.ids()))
        epoch.base = max(epoch.base, step)
        epoch.left = self.remaining.left(job.number)
        epoch.given = job.dataset.size - epoch.left

    # -- draws -------------------------------------------------------------------------------------------------

    def ask(self, session: int, indices: bytes) -> None:
        """A rank asks for a batch."""
        job, rank = self.ranks[session]
        if rank.epoch is None:
            raise ProtocolError("a draw was asked for before an epoch began")
        rank.heard = self.now
        rank.asks.append(indices)
        self._serve(job, rank)

    def _serve_all(self, job: Job) -> None:
        for rank in job.ranks.values():
            self._serve(job, rank)

    def _serve(self, job: Job, rank: Rank) -> None:
        epoch = rank.epoch
        while rank.asks and epoch is not None and not epoch.awaited:
            if self._unsure(job):
                self._stalled = True  # for a moment: memory set aside for guessed sizes is memory lost
                return
            if epoch.explicit:
                self._serve_explicit(job, rank, epoch, rank.asks.popleft())
                continue
            step = epoch.cursors[rank.rank]
            if step not in epoch.steps:
                if step < epoch.base:
                    self.out.append(
                        (rank.session, Refused("the samples of a step were lost with their host"))
                    )
                    return
                count = job.next_count(epoch) if epoch is job.epoch else 0
                if not count:
                    rank.asks.popleft()
                    self.out.append((rank.session, Over(epoch.number)))
                    continue
                view = self._view(job)
                if self._should_wait(job, rank, view, count):
                    self._stalled = True
                    return
                self._draw(job, epoch, view, count)
            rank.asks.popleft()
            ids = job.share(epoch, rank.rank, step)
            whole = epoch.steps[step] if job.world_size > 1 else None
            epoch.cursors[rank.rank] = step + 1
            epoch.taken_by_all(job.world_size)
            given = epoch.given + self._cut(job, epoch, step)
            self._give(job, rank, epoch, step, ids, given, job.is_last(epoch, step), whole)

    def _unsure(self, job: Job) -> bool:
        """Whether sizes are about to be known. Of a job that is paused they are not."""
        late = self.now - self.patience
        return any(
            shelf.unsure and all(self.tickets[ticket].given >= late for ticket in shelf.owner.values())
            for shelf in job.shelves.values()
        )

    @staticmethod
    def _cut(job: Job, epoch: Epoch, step: int) -> int:
        """Samples given out by the end of a step, since the epoch's base."""
        return job.geometry.cut(epoch.left, step - epoch.base)[1] if step >= epoch.base else 0

    def _serve_explicit(self, job: Job, rank: Rank, epoch: Epoch, indices: bytes) -> None:
        if len(indices) % 8:
            raise ProtocolError("indices are cut off")
        ids = job.dataset.to_universe(np.frombuffer(indices, np.int64))
        self.remaining.take(job.number, ids)
        step = epoch.cursors[rank.rank]
        epoch.cursors[rank.rank] = step + 1
        self._give(job, rank, epoch, step, ids, 0, False, None)

    def _should_wait(self, job: Job, rank: Rank, view: View, count: int) -> bool:
        """Whether a draw had better wait a moment, for the rank has others under way.

        What it would prepare now could not be kept, and so would be prepared again for others, although room
        is about to come.
        """
        if job.sampling != "auto" or not view.peers or view.room >= count or not rank.open:
            return False
        found = view.pending.copy()
        for ready in view.ready:
            found |= ready
        found &= self.remaining.words(job.number)
        return not at_least(found, count - view.room)

    def _draw(self, job: Job, epoch: Epoch, view: View, count: int) -> None:
        """Draw the next step of a job."""
        job.draws += 1
        key = rnd.key(self.nonce, job.number, epoch.number, job.draws)
        sampler = self._samplers[job.sampling]
        ids = sampler.draw(self.remaining, job.number, count, view, key)
        if len(ids) != count:
            raise ProtocolError(f"{count} samples were to be drawn and {len(ids)} were left")
        epoch.steps[epoch.base + epoch.drawn] = ids
        epoch.drawn += 1

    def _peers(self, job: Job) -> tuple[int, ...]:
        """Jobs that could share what is prepared for this one."""
        peers: set[int] = set()
        for shelf in job.shelves.values():
            peers |= shelf.jobs
        return tuple(sorted(peers - {job.number}))

    def _view(self, job: Job) -> View:
        peers = self._peers(job)
        augmented, decoded = job.shelves.get(Form.AUGMENTED), job.shelves.get(Form.DECODED)
        encoded = job.shelves.get(Form.ENCODED)
        ready = []
        later = None
        pending = np.zeros(-(-self.universe.size // 64), np.uint64)
        if augmented is not None and job.stale is not None:
            fresh = ~job.stale.words
            ready.append(augmented.cached.words & fresh)
            pending |= augmented.pending.words & fresh
            later = (augmented.cached.words | augmented.pending.words) & ~fresh
        if decoded is not None:
            pending |= decoded.pending.words
            if peers:  # alone, nothing of it is lost by waiting for its turn
                ready.append(decoded.cached.words)
        if encoded is not None and peers:
            ready.append(encoded.cached.words)
        room = self._room(job)
        if 0 < room < 1 << 60:
            self.pool.reconsider()
        return View(tuple(ready), pending, peers, room, later)

    def _room(self, job: Job) -> int:
        """How many samples that this job prepares could be kept without losing what others need."""
        space = self.pool.space.available
        whole = self.pool.space.largest
        augmented, decoded = job.shelves.get(Form.AUGMENTED), job.shelves.get(Form.DECODED)
        if augmented is not None and len(augmented.jobs) > 1 and self.pool.allows(Form.AUGMENTED):
            displaced = sum(shelf.bytes for shelf in self.pool.shelves.values() if shelf.form == Form.DECODED)
            if displaced:
                return 1 << 61
            return ((space if whole >= augmented.estimate else 0) + displaced) // augmented.estimate
        if decoded is None or len(decoded.jobs) < 2 or not self.pool.allows(Form.DECODED):
            return 1 << 62
        used_up = decoded.cached.words
        for number in decoded.jobs:
            used_up = used_up & ~self.remaining.words(number)
        reading = np.fromiter(decoded.busy, np.int64, len(decoded.busy))
        free = space // decoded.estimate if whole >= decoded.estimate else 0
        return free + count(used_up) - int(np.count_nonzero(test(used_up, reading)))

    def _give(
        self,
        job: Job,
        rank: Rank,
        epoch: Epoch,
        step: int,
        ids: Ids,
        given: int,
        last: bool,
        whole: Ids | None,
    ) -> None:
        """Make a ticket of a rank's samples, and tell it."""
        dress, waits = self._enter_rows(job, ids, may_wait=not (epoch.explicit or job.whole))
        if not epoch.explicit:
            # Rows that enter alike lie together, those that wait at the end: they make orders of their own.
            rank_of = np.where(waits, 4, 3 - dress.forms.astype(np.int64))
            order = np.argsort(rank_of, kind="stable")
            ids, waits = ids[order], waits[order]
            dress = Dress(dress.forms[order], dress.offsets[order], dress.lengths[order], dress.keep)
        ticket = self._ticket(job, rank.session, epoch.number, ids, dress)
        self.pool.tick(len(ids))
        rank.open += 1
        if waits.any():
            ticket.waits = int(np.argmax(waits))
            # What is cached of them in a lesser form is not held, so it may go before they are told.
            dress.forms[waits], dress.offsets[waits], dress.lengths[waits] = 0, -1, 0
            for row in np.flatnonzero(waits).tolist():
                sample = int(ids[row])
                ticket.waiting.setdefault(sample, []).append(row)
            ticket.hopes = self._hopes(job, ids[waits])
            for sample in ticket.waiting:
                self._waiting[sample].append(ticket)
        augmented = job.shelves.get(Form.AUGMENTED)
        if augmented is not None:
            taken = ids[: ticket.waits][dress.forms[: ticket.waits] == Form.AUGMENTED]
            if len(taken):
                augmented.count_down(taken.tolist())
        self._read(ticket, range(ticket.waits))
        self._keep(job, ticket, np.flatnonzero(~waits))
        rank.count(dress.forms[: ticket.waits], self.now)
        seed, key = self._randomness(ticket)
        self.out.append(
            (
                rank.session,
                Drawn(
                    ticket=ticket.id,
                    epoch=epoch.number,
                    step=step,
                    seed=seed,
                    key=key,
                    indices=job.dataset.to_local(ids).tobytes(),
                    forms=dress.forms.tobytes(),
                    offsets=dress.offsets.tobytes(),
                    lengths=dress.lengths.tobytes(),
                    keep=dress.keep.tobytes(),
                    grants=ticket.grants(),
                    waits=ticket.waits,
                    given=given,
                    last=last,
                    whole=b"" if whole is None else job.dataset.to_local(whole).tobytes(),
                ),
            )
        )

    def _randomness(self, ticket: Ticket) -> tuple[int, int]:
        """Takes the place of seed and epoch: no two tickets ever make the same augmented sample."""
        return self.nonce & ((1 << 63) - 1), ticket.id

    def _ticket(
        self, job: Job, session: int, epoch: int, ids: Ids, dress: Dress, *, fill: bool = False
    ) -> Ticket:
        ticket = Ticket(self._next_ticket, job.number, session, epoch, ids, dress, self.now, fill)
        self._next_ticket += 1
        self.tickets[ticket.id] = ticket
        return ticket

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
                dress.forms[rows] = form
                dress.offsets[rows], dress.lengths[rows] = shelf.find(ids[rows].tolist())
        if may_wait:
            for form in (Form.DECODED, Form.AUGMENTED):
                shelf = job.shelves.get(form)
                if shelf is not None and shelf.owner:
                    coming = test(shelf.pending.words, ids)
                    if form == Form.AUGMENTED and job.stale is not None:
                        coming &= ~test(job.stale.words, ids)
                    waits |= coming
            waits &= dress.forms < Form.DECODED
            if self._late:
                for row in np.flatnonzero(waits).tolist():
                    waits[row] = self._in_time(job, int(ids[row]))
        return dress, waits

    def _read(self, ticket: Ticket, rows: Sequence[int]) -> None:
        """Rows that enter from the cache: their extents stay until they are read."""
        job = self.jobs[ticket.job]
        by_form: dict[Form, list[int]] = {}
        chosen = np.asarray(rows, np.int64)
        forms = ticket.dress.forms[chosen].tolist()
        for row, form, sample in zip(chosen.tolist(), forms, ticket.ids[chosen].tolist(), strict=True):
            if form:
                ticket.reads[row] = form
                by_form.setdefault(form, []).append(sample)
        for form, samples in by_form.items():
            shelf = job.shelves[form]
            shelf.read(samples)
            shelf.use(samples, self.pool.tick())

    # -- keeping -----------------------------------------------------------------------------------------------

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

    def _keep(self, job: Job, ticket: Ticket, rows: Ids) -> None:
        """Decide what of the rows that have to be prepared is kept, and grant memory for it."""
        forms = ticket.dress.forms[rows]
        rows = rows[forms < Form.AUGMENTED]
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
        undecoded = ticket.dress.forms[rows] < Form.DECODED
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
                most = max(0, self.pool.spare // decoded.estimate)
                parts = rows[spare][:most], ids[spare][:most], needs[spare][:most]
                self._grant(ticket, decoded, *parts, len(decoded.jobs), displace=False)
            self._grant(ticket, decoded, rows[fresh], ids[fresh], needs[fresh], len(decoded.jobs))
        if encoded is not None:
            inside = decoded.jobs if decoded is not None else {job.number}
            others = encoded.jobs - inside
            asked = self.pool.limited and self.pool.allows(Form.ENCODED)
            if (others and self.pool.allows(Form.ENCODED)) or asked:
                fresh = ~(test(encoded.cached.words, ids) | test(encoded.pending.words, ids)) & (
                    ticket.dress.forms[rows] == 0
                )
                needs = self._needs_of(encoded, ids, others)
                if not asked:
                    fresh &= needs > 0
                self._grant(ticket, encoded, rows[fresh], ids[fresh], needs[fresh], len(encoded.jobs))

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
        for row, sample, need in zip(rows.tolist(), ids.tolist(), needs.tolist(), strict=True):
            place = self.pool.admit(shelf, need, jobs, displace=displace)
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

    # -- what came of it ---------------------------------------------------------------------------------------

    def finished(self, session: int, event: Finished) -> None:
        """Rows of a ticket are prepared, or given up."""
        ticket = self.tickets.get(event.ticket)
        if ticket is None or ticket.session != session:
            return
        stop = event.first + event.count
        if stop > len(ticket.ids):
            raise ProtocolError(f"rows up to {stop} of a draw of {len(ticket.ids)}")
        job = self.jobs[ticket.job]
        closing = event.first + np.flatnonzero(ticket.open[event.first : stop])
        kept: dict[tuple[int, Form], tuple[int, int]] = {}
        fresh: dict[Form, list[int]] = {}
        shelves: dict[int, Shelf] = {int(form): shelf for form, shelf in job.shelves.items()}
        mine = {offset for offset, (row, _, _) in ticket.blocks.items() if event.first <= row < stop}
        if event.published and len(closing):
            if len(event.published) % 32:
                raise ProtocolError("published extents are cut off")
            offsets: set[int] = set()
            for row, form_, offset, nbytes in (
                np.frombuffer(event.published, np.int64).reshape(-1, 4).tolist()
            ):
                block = ticket.blocks.get(offset) if offset in mine and offset not in offsets else None
                shelf = shelves.get(form_)
                if (
                    block is None
                    or shelf is None
                    or block[1] != shelf.form
                    or not event.first <= row < stop
                    or not ticket.open[row]
                    or not 0 < nbytes <= block[2]
                    or not ticket.dress.keep[row] & (1 << shelf.form)
                    or (row, shelf.form) in kept
                ):
                    raise ProtocolError(f"row {row} of ticket {ticket.id}: {nbytes} bytes at {offset}")
                kept[row, shelf.form] = offset, nbytes
                offsets.add(offset)
        # All of it is true; from here on things change.
        self.decodes += event.decoded
        self.fetches += event.fetched
        for form, wanted in zip(CACHEABLE, event.wanted, strict=True):
            if wanted and form in job.shelves:
                job.shelves[form].learn(min(wanted, 1 << 32))
        left = self._left_to_take(job, ticket, event.first, stop) if kept else []
        for (row, form), (offset, nbytes) in kept.items():
            del ticket.blocks[offset]
            sample = int(ticket.ids[row])
            self.pool.store(job.shelves[form], sample, offset, nbytes, left[row - event.first])
            fresh.setdefault(form, []).append(sample)
        for form, samples in fresh.items():
            put(job.shelves[form].cached.words, np.array(samples, np.int64))
        unused = [offset for offset in mine if offset in ticket.blocks]
        for offset in unused:
            del ticket.blocks[offset]
        self.pool.give_back(unused)
        self._drop_used_up(job, self._close_rows(ticket, closing) + fresh.get(Form.AUGMENTED, []))
        self.pool.fit()
        self._go_on()

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

    def _go_on(self) -> None:
        """Try again those whose draws had to wait."""
        if self._stalled:
            self._stalled = False
            for job in list(self.jobs.values()):
                self._serve_all(job)

    def _close_rows(self, ticket: Ticket, rows: Ids) -> list[int]:
        """Rows are over: their extents are read, and what was pending of them stands or does not.

        Returns the augmented samples that were read.
        """
        if not len(rows):
            return []
        job = self.jobs[ticket.job]
        reads: dict[int, list[int]] = {}
        for row, sample in zip(rows.tolist(), ticket.ids[rows].tolist(), strict=True):
            read = ticket.reads.pop(row, None)
            if read is not None:
                reads.setdefault(read, []).append(sample)
        for read, samples in reads.items():
            job.shelves[Form(read)].release(samples)
        ticket.open[rows] = False
        ticket.left -= len(rows)
        for sample in [
            sample for sample, waiting in ticket.waiting.items() if not ticket.open[waiting].any()
        ]:
            del ticket.waiting[sample]
            self._forget_waiter(sample, ticket)
        if ticket.left == 0:
            del self.tickets[ticket.id]
            if ticket.session in self.ranks and not ticket.fill:
                self.ranks[ticket.session][1].open -= 1
            self._late.discard(ticket.id)
            if ticket.waits == len(ticket.ids):  # one that waited says nothing: patience would feed on itself
                self._span_of_tickets += 0.1 * (self.now - ticket.given - self._span_of_tickets)
        keep = ticket.dress.keep[rows]
        settled: dict[int, None] = {}
        for form in CACHEABLE:
            marked = rows[(keep & (1 << form)) != 0]
            if not len(marked):
                continue
            shelf = job.shelves[form]
            drop(shelf.pending.words, ticket.ids[marked])
            for sample in ticket.ids[marked].tolist():
                if shelf.owner.get(sample) == ticket.id:
                    del shelf.owner[sample]
                settled[sample] = None
        for sample in settled:
            if sample in self._waiting:
                self._settle(sample)
        return reads.get(Form.AUGMENTED, [])

    def _drop_used_up(self, job: Job, samples: list[int]) -> None:
        """Augmented samples that nobody needs any more make room at once."""
        shelf = job.shelves.get(Form.AUGMENTED)
        name = self.pool.eviction.name
        if shelf is None or not samples or name not in ("auto", "uses"):
            return
        gone = shelf.used_up(list(dict.fromkeys(samples)))
        if gone:
            self.pool.evict(shelf, gone)

    # -- waiting -----------------------------------------------------------------------------------------------

    @staticmethod
    def _owners(job: Job, sample: int) -> set[int]:
        """The tickets that prepare a sample for a shelf of this job."""
        shelves = (job.shelves.get(form) for form in (Form.DECODED, Form.AUGMENTED))
        return {shelf.owner[sample] for shelf in shelves if shelf is not None and sample in shelf.owner}

    def _in_time(self, job: Job, sample: int) -> bool:
        """Whether a sample in preparation is worth waiting for."""
        return not self._owners(job, sample) & self._late

    @staticmethod
    def _hopes(job: Job, ids: Ids) -> set[int]:
        """Those of ``ids`` that somebody is augmenting now, and that this job cannot have had before."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None or job.stale is None:
            return set()
        coming = test(shelf.pending.words, ids) & ~test(job.stale.words, ids)
        return set(ids[coming].tolist())

    def _forget_waiter(self, sample: int, ticket: Ticket) -> None:
        waiting = self._waiting.get(sample)
        if waiting is not None and ticket in waiting:
            waiting.remove(ticket)
            if not waiting:
                del self._waiting[sample]

    def _settle(self, sample: int) -> None:
        """A sample that some wait for is cached now, or will not be."""
        for ticket in self._waiting.pop(sample):
            rows = [row for row in ticket.waiting.pop(sample, []) if ticket.open[row]]
            job = self.jobs[ticket.job]
            for form in (Form.AUGMENTED, Form.DECODED):
                shelf = job.shelves.get(form)
                if form == Form.AUGMENTED and sample not in ticket.hopes:
                    continue  # the decoded one was waited for: this one the job may have had
                if shelf is not None and sample in shelf:
                    # The augmented one is the one that was waited for, whatever has become stale meanwhile.
                    offsets, lengths = shelf.find([sample])
                    for row in rows:
                        ticket.dress.forms[row] = form
                        ticket.dress.offsets[row], ticket.dress.lengths[row] = offsets[0], lengths[0]
                    self._read(ticket, rows)
                    break
            if not ticket.waiting:
                self._resolve(ticket)

    def _resolve(self, ticket: Ticket) -> None:
        """Nothing of a ticket waits any more: say how the rest of its rows enters."""
        if ticket.session not in self.ranks:
            return  # it waited for another ticket of a session that is gone, and goes with it
        job, rank = self.ranks[ticket.session]
        rows = np.arange(ticket.waits, len(ticket.ids))
        missed = rows[(ticket.dress.forms[rows] == 0) & ticket.open[rows]]
        if len(missed):
            again, _ = self._enter_rows(job, ticket.ids[missed], may_wait=False)
            # (an augmented one that came meanwhile may be one that this job had in an epoch before)
            plain = again.forms < Form.AUGMENTED
            for name in ("forms", "offsets", "lengths"):
                getattr(ticket.dress, name)[missed[plain]] = getattr(again, name)[plain]
            self._read(ticket, missed[plain].tolist())
            self._keep(job, ticket, missed)
        dress, first = ticket.dress, ticket.waits
        rank.count(dress.forms[first:], self.now)
        self.out.append(
            (
                ticket.session,
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

    @property
    def patience(self) -> float:
        """Seconds for which a sample that somebody else prepares is waited for."""
        return min(_LONGEST_PATIENCE, max(_SHORTEST_PATIENCE, 4 * self._span_of_tickets))

    def tick(self) -> None:
        """Now and then: whoever has waited too long prepares for itself."""
        late = self.now - self.patience
        for ticket in [t for t in self.tickets.values() if t.waiting and t.given < late]:
            job = self.jobs[ticket.job]
            for sample in list(ticket.waiting):
                self._forget_waiter(sample, ticket)
                self._late |= self._owners(job, sample)
            ticket.waiting.clear()
            self._resolve(ticket)
        self._go_on()

    # -- idle hands --------------------------------------------------------------------------------------------

    def fill(self, session: int) -> Order | None:
        """Something for an idle worker of a job to prepare into the cache: what most jobs still need."""
        if session not in self.ranks:
            return None
        job, _ = self.ranks[session]
        shelf = self._shelf_to_fill(job)
        if shelf is None or self.pool.eviction.name == "none" or not job.fills:
            return None
        room = self.pool.space.available if shelf.form == Form.AUGMENTED else self.pool.spare
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
        self._read(ticket, range(len(ids)))
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
