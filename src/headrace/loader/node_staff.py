"""A loader's part in dividing its machine: it says what it needs, and at times it is the one that decides for all."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import time

from headrace.coordinate.coordinator import Batch
from headrace.core import environment
from headrace.core.memory import usable_cpus
from headrace.engine.seat import Seat
from headrace.host.base import Host
from headrace.planning import Spent, Staff
from headrace.planning.threads import Node, PerLevel, RankNeeds, StaffController

_EVERY = 0.25
"""Seconds between two looks, and between two decisions."""
_READS, _READS_PER_CPU = 256, 32
"""Reads at once on a machine, at most."""
_NEW = 0.3
"""How much the last look counts in what the loop usually takes of CPUs."""
_FEW = 4
"""Samples that have to be seen before anything is said of them."""

_loaders = itertools.count()


class NodeStaff:
    """The seat of a session, if it has one."""

    def __init__(self, seat: Seat | None, world_size: int = 1) -> None:
        self.seat = seat
        self._job = _job_number(world_size)
        self._looked = time.perf_counter()
        self._sums = Spent()
        self._waited = self._loop = 0.0
        self._cpu = time.process_time()
        self._rows = self._batches = 0
        self._controller: StaffController | None = None
        self._cpus = usable_cpus()

    def staffed(self, staff: Staff) -> None:
        """There are other hands than before."""
        if self.seat is not None:
            self.seat.staffed(*staff)

    def taken(self, batch: Batch, host: Host) -> None:
        """The loop was given a batch."""
        if self.seat is None:
            return
        self.seat.taken(batch.sequence + 1)
        self._rows += len(batch.draw.indices)
        self._batches += 1
        if time.perf_counter() - self._looked > _EVERY:
            self._say(self.seat, host)
            if self.seat.decides(_EVERY):
                self._decide(self.seat)

    def _say(self, seat: Seat, host: Host) -> None:
        """What was measured since the last look, for whoever decides."""
        now, cpu, totals = time.perf_counter(), time.process_time(), host.totals
        seconds, spent = now - self._looked, totals.spent
        before, self._sums = self._sums, Spent()
        self._sums.add(spent)
        fetched, prepared = spent.fetched - before.fetched, spent.prepared - before.prepared
        waited, rows, batches = totals.waited - self._waited, self._rows, self._batches
        # (what the process did before its loop, or does between epochs, is soon over)
        self._loop += _NEW * (max(0.0, cpu - self._cpu) / seconds - self._loop)
        self._looked, self._waited, self._cpu, self._rows, self._batches = now, totals.waited, cpu, 0, 0
        if prepared < _FEW:
            return
        reading = spent.reading - before.reading
        read = reading / fetched if fetched else 0.0
        waiting = len(host.coordinator.open_orders) * (host.coordinator.rows_per_order or rows / batches)
        seat.say(
            [
                self._loop,
                waiting * min(1.0, fetched / prepared),
                (spent.fetched_bytes - before.fetched_bytes) / fetched if fetched else 0.0,
                read,
                min(1.0, (spent.fetch_cpu - before.fetch_cpu) / reading) if reading > 0 else 0.0,
                (spent.cpu - before.cpu) / prepared,
                rows / batches,
                max(0.0, seconds - waited) / batches,
                waited / batches,
                max(0.0, prepared - fetched),
                fetched,
                self._job,
            ]
        )

    def _decide(self, seat: Seat) -> None:
        """For all ranks of the machine."""
        if self._controller is None:
            self._controller = StaffController()
        seat.roster.bury()
        said = seat.said()
        needs = {row: _needs(one) for row, one in said.items()}
        if not needs:
            return
        most = max(_READS, _READS_PER_CPU * self._cpus)
        kept = min(self._cpus - 1, math.floor(sum(one[0] for one in said.values())))
        decision = self._controller.decide(needs, Node(self._cpus, kept, most))
        wanted = sum(budget.reads for budget in decision.budgets.values())
        # What nobody needs is no use to anybody either: reads that wait take no processor.
        spare = max(1.0, most / wanted)
        seat.set_reads({row: int(budget.reads * spare) for row, budget in decision.budgets.items()})
        seat.set_limit(decision.prepare_limit)

    def leave(self) -> None:
        """The session is over."""
        if self.seat is not None:
            self.seat.leave()


def _needs(said: list[float]) -> RankNeeds:
    """What a rank has said; see ``NodeStaff._say``."""
    _, waiting, size, read, read_cpu, prepare, batch, train, waited, own, storage, job = said[:12]
    return RankNeeds(
        waiting=waiting,
        sample_bytes=size,
        read_seconds=read,
        read_cpu=read_cpu,
        prepare_cpu=prepare,
        batch=max(1, round(batch)),
        train_seconds=train,
        waited=waited,
        rows=PerLevel(own=own, storage=storage),
        job=int(job),
    )


def _job_number(world_size: int) -> int:
    """What the ranks of one job have in common, and, most likely, nobody else has. They keep step with each other."""
    known = (
        [*environment.launch(), str(os.getppid())]
        if world_size > 1
        else [str(os.getpid()), str(next(_loaders))]
    )
    return int.from_bytes(hashlib.sha256("|".join(known).encode()).digest()[:5], "big")
