"""The commons: what a shared host knows and decides. Which job gets which samples, from where, and what is kept.

Events in (a rank joins, asks, has finished; a process is gone), replies out, through ``out``. There is no I/O
here, no thread, and no clock but ``now``, which whoever carries the events sets. Each sample of a draw enters
at the most prepared form there is for its job. What has to be prepared is prepared by the job that drew it, and
kept as far as that pays for the others; a sample that somebody is preparing is waited for rather than prepared
twice, but never for longer than ``patience``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.budgets import Budgets
from headrace.coordinate.members import Epoch, Job, Rank, read_progress
from headrace.coordinate.protocol import (
    MOST_ASKS,
    MOST_OPEN,
    MOST_ROWS,
    Begin,
    Drawn,
    Join,
    Joined,
    Over,
    Refused,
)
from headrace.coordinate.tickets import Dress
from headrace.coordinate.universe import Dataset
from headrace.core import random as rnd
from headrace.core.bits import Bits, put, test
from headrace.core.errors import ProtocolError
from headrace.core.forms import CACHEABLE, Form
from headrace.eviction import EVICTIONS
from headrace.sampling import SAMPLERS, View

Ids = NDArray[np.int64]

MOST_JOBS = 255
_LOST = "the samples of a step were lost with their host"


class Commons(Budgets):
    """All jobs of a shared host, its cache, and their draws."""

    def join(self, session: int, token: str, pid: int, join: Join) -> Joined | Refused:
        """A rank wants to share. It may say so once."""
        if session in self.ranks or session in self._joining:
            raise ProtocolError("a second join on one connection")
        if join.rank >= join.world_size:
            raise ProtocolError(f"rank {join.rank} of {join.world_size}")
        if join.batch_size * join.world_size > MOST_ROWS:
            return Refused(
                f"steps of {join.batch_size * join.world_size} samples are too large to share; "
                f"{MOST_ROWS} are the most"
            )
        if join.sampling not in (*SAMPLERS, "uniform") or join.eviction not in EVICTIONS:
            return Refused(f"this host knows no sampling {join.sampling!r} with eviction {join.eviction!r}")
        dataset = self.universe.datasets.get(join.dataset)
        if dataset is None:
            self._joining[session] = (token, join, pid)
            return Joined(identities=True)
        if dataset.size != join.samples:
            return Refused(f"the dataset has {dataset.size} samples here and {join.samples} there")
        return self._enter(session, token, pid, join, dataset)

    def identity_bytes(self, session: int) -> int:
        """Bytes of the identities that a rank has to send."""
        if session not in self._joining:
            raise ProtocolError("identities that nobody asked for")
        return 16 * self._joining[session][1].samples

    def progress_limit(self, session: int) -> int:
        """Bytes of what a rank can know of an epoch, at most."""
        return self._member(session)[0].progress_limit

    def _member(self, session: int) -> tuple[Job, Rank]:
        if session not in self.ranks:
            raise ProtocolError("a request before a join")
        return self.ranks[session]

    def identities(self, session: int, table: NDArray[np.uint8]) -> Joined | Refused:
        """The identities of the samples of a dataset that was not known when the rank joined."""
        if table.nbytes != self.identity_bytes(session):
            raise ProtocolError(f"{table.nbytes} bytes of identities, and not {self.identity_bytes(session)}")
        table = table.reshape(-1, 16)
        token, join, pid = self._joining.pop(session)
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
        keys = dict(zip(CACHEABLE, (join.encoded, join.decoded, join.augmented), strict=True))
        if join.sampling == "uniform":
            keys[Form.AUGMENTED] = ""
        bodies = {form: join.body if form == Form.AUGMENTED else 0 for form in keys}
        for form, key in keys.items():
            there = self.pool.shelves.get((form, key))
            if there is not None and there.body != bodies[form]:
                return Refused(f"{form.name.lower()} samples of one key have different sizes")
        found = [job for job in self.jobs.values() if job.group == group]
        if found:
            job = found[0]
            same = (job.dataset is dataset, job.world_size == join.world_size, job.sampling == join.sampling)
            if not all(same) or job.geometry.batch_size != join.batch_size:
                return Refused(
                    "ranks of one job must have the same dataset, sampling, batch size and world size "
                    "(files that change while the ranks start make it another dataset)"
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
            self.absent.come(job)
            for form, key in keys.items():
                if key:
                    found_shelf = self.pool.shelf(form, key, self.universe.size, bodies[form])
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

    def gone(self, session: int) -> None:
        """A job's process is gone, or has left. Its workers may go on for a moment: see ``buried``."""
        self._joining.pop(session, None)
        if session not in self.ranks:
            return
        job, rank = self.ranks.pop(session)
        orphans = self._orphans.setdefault(session, [])
        reads = self._reads.setdefault(session, [])
        for ticket in [ticket for ticket in self.tickets.values() if ticket.session == session]:
            orphans += ticket.blocks
            ticket.blocks.clear()
            rows = np.flatnonzero(ticket.open)
            # The job may live, and go on with another host.
            reads += [(job.shelves[form], ids) for form, ids in ticket.by_form(rows[ticket.reads[rows]])]
            ticket.reads[rows] = False
            self._close_rows(ticket, rows)
        del job.ranks[rank.rank]
        if rank.epoch is not None and job.world_size > 1:
            job.held[rank.rank] = (rank.token, rank.epoch)
        if not job.ranks:
            self._end(job)
        self.pool.fit()
        self._go_on()

    def _end(self, job: Job) -> None:
        self.absent.leave(job, self.now)
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
        for shelf, samples in self._reads.pop(session, []):
            shelf.release(samples)
            self._drop_used_up(shelf, samples)
        self.pool.fit()
        self._go_on()

    def begin(self, session: int, begin: Begin, progress: bytes | None) -> None:
        """A rank begins an epoch, or goes on with one that another host began."""
        job, rank = self._member(session)
        explicit = job.sampling == "uniform"
        if begin.explicit != explicit:
            raise ProtocolError(f"a job with sampling {job.sampling!r} begins an epoch as if it had another")
        seen = Bits.empty(job.dataset.size)
        steps: dict[int, Ids] = {}
        if progress is not None:
            seen, steps = read_progress(progress, job.dataset.size)
            steps = {number: job.dataset.to_universe(indices) for number, indices in steps.items()}
        number, first = rank.rank, begin.step if progress is not None else 0
        rank.asks.clear()
        if progress is not None and job.comes_back(number, begin.epoch, first):
            return
        job.held.pop(number, None)
        if progress is not None and job.is_under_way(number, begin.epoch):
            # The others went on without what this rank knows: samples would be missed, or come twice.
            self.out.append((session, Refused(_LOST)))
            return
        given = seen.count() if not explicit else 0
        taken_over = progress is not None and job.world_size > 1 and not explicit
        new = job.begin(
            number, begin.epoch, explicit=explicit, given=given, step=first, taken_over=taken_over
        )
        epoch = rank.epoch
        assert epoch is not None
        if new:
            self._begin_epoch(job)
            for ids in epoch.steps.values():
                self.remaining.take(job.number, ids)
        if progress is not None and not explicit:
            epoch.steps.update(steps)
            if epoch is job.epoch:  # else all of it was drawn before, and another rank knows the rest
                self._merge_progress(job, epoch, seen, first)
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

    def ask(self, session: int, indices: bytes) -> None:
        """A rank asks for a batch."""
        job, rank = self._member(session)
        if rank.epoch is None:
            raise ProtocolError("a draw was asked for before an epoch began")
        if len(rank.asks) >= MOST_ASKS or rank.open >= MOST_OPEN:
            raise ProtocolError(f"{len(rank.asks)} draws asked for and {rank.open} not finished")
        # All of it is looked at now: it may have to wait, and then nobody is there to be told what is wrong.
        if rank.epoch.explicit:
            if len(indices) % 8 or not 0 < len(indices) // 8 <= MOST_ROWS:
                raise ProtocolError(f"{len(indices)} bytes of indices; {MOST_ROWS} samples are the most")
            job.dataset.to_universe(np.frombuffer(indices, np.int64))
        elif indices:
            raise ProtocolError("indices from a job that does not draw for itself")
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
                if step != epoch.base + epoch.drawn:
                    rank.asks.clear()
                    self.out.append((rank.session, Refused(_LOST)))
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
        ids = job.dataset.to_universe(np.frombuffer(indices, np.int64))
        self.remaining.take(job.number, ids)
        step = epoch.cursors[rank.rank]
        epoch.cursors[rank.rank] = step + 1
        self._give(job, rank, epoch, step, ids, 0, False, None)

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
        self.division.give(len(ids))
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
        self._take(job, epoch, ids[: ticket.waits][dress.forms[: ticket.waits] == int(Form.AUGMENTED)])
        self._read(ticket, np.arange(ticket.waits))
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
                    company=0 if epoch.explicit else len(self._peers(job)),
                ),
            )
        )

    def _take(self, job: Job, epoch: Epoch, taken: Ids) -> None:
        """A job is given instances, and never again: a rank that lags may take what its job's next epoch draws."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None or job.stale is None or not len(taken):
            return
        counted = taken
        if epoch is not job.epoch:  # what was counted is the need of the newest epoch, which now goes without
            counted = taken[test(self.remaining.words(job.number), taken)]
        shelf.count_down(counted.tolist())
        put(job.stale.words, taken)

    def _go_on(self) -> None:
        """Try again those whose draws had to wait."""
        if self._stalled:
            self._stalled = False
            for job in list(self.jobs.values()):
                self._serve_all(job)
