"""Who is there: ranks that come, and what is left of them when they go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.budgets import Budgets
from headrace.coordinate.finishing import Finishing
from headrace.coordinate.futures import Futures
from headrace.coordinate.instances import Instances
from headrace.coordinate.members import Job, Rank
from headrace.coordinate.nearby import Nearby
from headrace.coordinate.protocol import (
    MOST_ROWS,
    Join,
    Joined,
    Refused,
)
from headrace.coordinate.state import State
from headrace.coordinate.universe import Dataset
from headrace.core.bits import Bits
from headrace.core.errors import ProtocolError
from headrace.core.forms import CACHEABLE, Form
from headrace.eviction import EVICTIONS
from headrace.sampling import SAMPLERS

Ids = NDArray[np.int64]

MOST_JOBS = 255


class Joining:
    """Lets ranks in, and takes back what they held when they are gone."""

    def __init__(
        self,
        state: State,
        instances: Instances,
        finishing: Finishing,
        budgets: Budgets,
        futures: Futures,
        nearby: Nearby,
    ) -> None:
        self._state = state
        self._futures = futures
        self._nearby = nearby
        self._instances = instances
        self._finishing = finishing
        self._budgets = budgets

    def join(self, member: int, token: str, pid: int, join: Join) -> Joined | Refused:
        """A rank wants to share. It may say so once."""
        if member in self._state.ranks or member in self._state.joining:
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
        dataset = self._state.universe.datasets.get(join.dataset)
        if dataset is None:
            self._state.joining[member] = (token, join, pid)
            return Joined(identities=True)
        if dataset.size != join.samples:
            return Refused(f"the dataset has {dataset.size} samples here and {join.samples} there")
        return self._enter(member, token, pid, join, dataset)

    def identity_bytes(self, member: int) -> int:
        """Bytes of the identities that a rank has to send."""
        if member not in self._state.joining:
            raise ProtocolError("identities that nobody asked for")
        return 16 * self._state.joining[member][1].samples

    def progress_limit(self, member: int) -> int:
        """Bytes of what a rank can know of an epoch, at most."""
        return self._state.joined(member)[0].progress_limit

    def identities(self, member: int, data: bytes) -> Joined | Refused:
        """The identities of the samples of a dataset that was not known when the rank joined."""
        if len(data) != self.identity_bytes(member):
            raise ProtocolError(f"{len(data)} bytes of identities, and not {self.identity_bytes(member)}")
        table = np.frombuffer(data, np.uint8).reshape(-1, 16)
        token, join, pid = self._state.joining.pop(member)
        dataset = self._state.universe.datasets.get(join.dataset)
        if dataset is None:
            dataset = self._state.universe.add(join.dataset, join.label, table)
            self._state.remaining.grow(self._state.universe.size)
            for shelf in self._state.pool.shelves.values():
                shelf.grow(self._state.universe.size)
            for job in self._state.jobs.values():
                if job.stale is not None:
                    job.stale.grow(self._state.universe.size)
            self._futures.come()
        return self._enter(member, token, pid, join, dataset)

    def _enter(self, member: int, token: str, pid: int, join: Join, dataset: Dataset) -> Joined | Refused:
        group = token if join.sampling == "uniform" else join.group
        keys = dict(zip(CACHEABLE, (join.encoded, join.decoded, join.augmented), strict=True))
        if join.sampling == "uniform":
            keys[Form.AUGMENTED] = ""
        bodies = {form: join.body if form == Form.AUGMENTED else 0 for form in keys}
        for form, key in keys.items():
            there = self._state.pool.shelves.get((form, key))
            if there is not None and there.body != bodies[form]:
                return Refused(f"{form.name.lower()} samples of one key have different sizes")
        found = [job for job in self._state.jobs.values() if job.group == group]
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
            if len(self._state.jobs) >= MOST_JOBS:
                return Refused(f"{MOST_JOBS} jobs share already, which is the most that one host serves")
            if not self._state.jobs:
                self._state.pool.worths.eviction = EVICTIONS[join.eviction]
            job = self._state.jobs[self._state.next_job] = Job(self._state.next_job, join, dataset)
            self._state.next_job += 1
            self._state.absent.come(job)
            for form, key in keys.items():
                if key:
                    found_shelf = self._state.pool.shelf(form, key, self._state.universe.size, bodies[form])
                    found_shelf.jobs.add(job.number)
                    job.shelves[form] = found_shelf
            self._state.remaining.join(job.number, dataset.bits(self._state.universe.size))
            shelf = job.shelves.get(Form.AUGMENTED)
            if shelf is not None:
                job.stale = Bits.empty(self._state.universe.size)
                self._instances.change_left(job, shelf, shelf.cached.ids(), 1)
            self._budgets.set()
        rank = Rank(member, token, join.rank if join.sampling != "uniform" else 0, pid, heard=self._state.now)
        job.ranks[rank.rank] = rank
        self._state.ranks[member] = (job, rank)
        if join.near:
            self._nearby.expect(dataset)
        return Joined(identities=False)

    def gone(self, member: int) -> None:
        """A job's process is gone, or has left. Its workers may go on for a moment: see ``buried``."""
        self._state.joining.pop(member, None)
        if member not in self._state.ranks:
            return
        job, rank = self._state.ranks.pop(member)
        orphans = self._state.orphans.setdefault(member, [])
        reads = self._state.reads.setdefault(member, [])
        for ticket in [ticket for ticket in self._state.tickets.values() if ticket.member == member]:
            orphans += ticket.blocks
            ticket.blocks.clear()
            rows = np.flatnonzero(ticket.open)
            # The job may live, and go on with another host.
            reads += [(job.shelves[form], ids) for form, ids in ticket.by_form(rows[ticket.reads[rows]])]
            ticket.reads[rows] = False
            self._finishing.close_rows(ticket, rows)
        del job.ranks[rank.rank]
        if rank.epoch is not None and job.world_size > 1:
            job.held[rank.rank] = (rank.token, rank.epoch)
        if not job.ranks:
            self._end(job)
        self._state.pool.fit()

    def _end(self, job: Job) -> None:
        self._state.absent.leave(job, self._state.now)
        self._instances.take_no_more(job)
        del self._state.jobs[job.number]
        self._state.remaining.leave(job.number)
        for sampler in self._state.samplers.values():
            sampler.forget(job.number)
        for shelf in job.shelves.values():
            shelf.jobs.discard(job.number)
        self._futures.leave(job.number)
        self._state.pool.changed()
        self._budgets.set()

    def buried(self, member: int) -> None:
        """Nothing of a lost member runs any more."""
        self._state.pool.give_back(self._state.orphans.pop(member, []))
        for shelf, samples in self._state.reads.pop(member, []):
            shelf.release(samples)
            self._state.pool.may_go(shelf, samples)
            self._finishing.drop_used_up(shelf, samples)
        self._state.pool.fit()
