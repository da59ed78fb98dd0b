"""A loader's part in dividing its machine: it says what it needs. (Workers decide, one for all.)"""

from __future__ import annotations

import hashlib
import itertools
import os
import time

from headrace.coordinate.coordinator import Batch
from headrace.core import environment
from headrace.engine.said import Said
from headrace.engine.seat import Seat
from headrace.host.base import Host
from headrace.loader.recipe_depth import RecipeDepth
from headrace.planning import Spent, Staff

_EVERY = 0.25
"""Seconds between two looks."""
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

    def staffed(self, staff: Staff) -> None:
        """There are other hands than before."""
        if self.seat is not None:
            self.seat.staffed(*staff)

    def slowest(self) -> float:
        """Seconds that slow batches take to be fetched by other ranks of the job, as far as they are known."""
        return 0.0 if self.seat is None else self.seat.slowest(self._job)

    def taken(self, batch: Batch, host: Host, depth: RecipeDepth) -> None:
        """The loop was given a batch."""
        if self.seat is None:
            return
        self.seat.taken(batch.sequence + 1)
        self._rows += len(batch.draw.indices)
        self._batches += 1
        if time.perf_counter() - self._looked > _EVERY:
            self._say(self.seat, host, depth)

    def _say(self, seat: Seat, host: Host, depth: RecipeDepth) -> None:
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
            Said(
                loop_cpus=self._loop,
                waiting=waiting * min(1.0, fetched / prepared),
                sample_bytes=(spent.fetched_bytes - before.fetched_bytes) / fetched if fetched else 0.0,
                read_seconds=read,
                read_cpu=min(1.0, (spent.fetch_cpu - before.fetch_cpu) / reading) if reading > 0 else 0.0,
                prepare_cpu=(spent.cpu - before.cpu) / prepared,
                batch=rows / batches,
                train_seconds=max(0.0, seconds - waited) / batches,
                waited=waited / batches,
                own=max(0.0, prepared - fetched),
                storage=fetched,
                job=self._job,
                slow=depth.slow,
            )
        )

    def leave(self) -> None:
        """The session is over."""
        if self.seat is not None:
            self.seat.leave()


def _job_number(world_size: int) -> int:
    """What the ranks of one job have in common, and, most likely, nobody else has. They keep step with each other."""
    known = (
        [*environment.launch(), str(os.getppid())]
        if world_size > 1
        else [str(os.getpid()), str(next(_loaders))]
    )
    return int.from_bytes(hashlib.sha256("|".join(known).encode()).digest()[:5], "big")
