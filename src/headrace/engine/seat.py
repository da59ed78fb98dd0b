"""A rank's seat: its row of the roster, as the rank and its workers see it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from headrace.core.memory import usable_cpus
from headrace.engine.permits import Permits
from headrace.engine.roster import (
    DECIDED_AT,
    DECIDER,
    INTERVAL,
    LIMIT,
    MOST,
    PREPARE,
    PROCESSES,
    READS,
    TAKEN,
    TAKEN_AT,
    THREADS,
    THREADS_HERE,
    Roster,
)
from headrace.engine.said import Said

_JOB, _SLOW = Said._fields.index("job"), Said._fields.index("slow")
_NEW = 0.2
"""How much the last step counts in the usual time from one to the next."""
_LATELY = 5.0
"""Seconds after which a rank that takes no batch is taken to rest."""
_STEADY = 2.0
"""Seconds after which another rank decides, if the one that did so before does not."""


class Seat:
    """What a rank says of itself, and what it is given."""

    def __init__(self, roster: Roster, *, shares_turns: bool, cpus: int | None = None) -> None:
        """Take a row. ``shares_turns``: its threads prepare with a permit each. (What users' code does may be
        anything: threads that sleep with a permit would keep processors idle.) ``cpus``: those that are shared; else
        those of this process."""
        self.roster = roster
        self.cpus = usable_cpus() if cpus is None else cpus
        self.row = roster.take_row()
        self.shares_turns = shares_turns and self.row >= 0
        self._owner = os.getpid()

    def attach(self) -> None:
        """Call first thing in a worker."""
        self.roster.attach()

    # -- a worker's side -------------------------------------------------------------------------------------

    def turn(self, stopped: Callable[[], bool]) -> Turn | None:
        """The permits of one thread; None: it needs none."""
        return Turn(self, Permits(self.roster), stopped) if self.shares_turns else None

    def deadline(self, sequence: int) -> tuple[int, int]:
        """When the rank will ask for a batch, as far as can be known, and its usual time from one to the next: in
        nanoseconds of the monotonic clock."""
        if self.row < 0:
            return 0, 0
        taken, at, interval = self.roster.rows[self.row, TAKEN : INTERVAL + 1].tolist()
        return at + max(0, sequence - taken) * interval, interval

    def reads(self) -> int:
        """Reads that each of its workers may have under way; 0: nothing is said."""
        if self.row < 0:
            return 0
        reads, processes = self.roster.rows[self.row, READS : PROCESSES + 1].tolist()
        return -(-int(reads) // max(1, int(processes)))

    def may_prepare(self, thread: int) -> bool:
        """Whether a worker's thread of this number, from 0 on, is one of those that the rank may have."""
        if thread == 0 or self.row < 0:
            return True
        processes, threads = self.roster.rows[self.row, PROCESSES : PREPARE + 1].tolist()
        return not threads or thread < -(-threads // max(1, processes))

    def processes(self) -> int:
        """Workers of the rank."""
        return max(1, int(self.roster.rows[self.row, PROCESSES])) if self.row >= 0 else 1

    # -- the rank's side -------------------------------------------------------------------------------------

    def staffed(self, processes: int, threads: int) -> None:
        """So many workers prepare with so many threads each."""
        if self.row >= 0:
            row = self.roster.rows[self.row]
            row[PROCESSES] = processes
            row[THREADS] = processes * threads if self.shares_turns else 0
            with self.roster.locked():
                self._count_threads()

    def _count_threads(self, lately: float = _LATELY) -> None:
        """Of ranks that took a batch lately, or have yet to take their first."""
        roster = self.roster
        at = roster.rows[:, TAKEN_AT]
        active = (at == 0) | (at > time.monotonic_ns() - int(lately * 1e9))
        roster.header[THREADS_HERE] = int(roster.rows[active, THREADS].sum())

    @property
    def crowded(self) -> bool:
        """Whether there are more preparing threads on this machine than may prepare at once."""
        header = self.roster.header
        return int(header[THREADS_HERE]) > int(header[LIMIT])

    def taken(self, sequence: int) -> None:
        """The loop has taken the batch before ``sequence``."""
        if self.row < 0:
            return
        row, now = self.roster.rows[self.row], time.monotonic_ns()
        before, interval = int(row[TAKEN_AT]), int(row[INTERVAL])
        if before:
            # (a pause between epochs, or for a validation, is no step)
            step = min(now - before, 4 * interval) if interval else now - before
            row[INTERVAL] = step if not interval else interval + int(_NEW * (step - interval))
        row[TAKEN_AT] = now
        row[TAKEN] = sequence

    def say(self, needs: Sequence[float]) -> None:
        """What the rank needs, for whoever decides."""
        if self.row >= 0:
            self.roster.needs[self.row, : len(needs)] = needs

    def slowest(self, job: int) -> float:
        """Seconds that slow batches took for those ranks of a job that see the most of it. See ``Said.slow``."""
        needs = self.roster.needs
        mine = needs[:, _JOB] == job
        return float(needs[mine, _SLOW].max()) if mine.any() else 0.0

    def decides(self, every: float) -> bool:
        """Whether it is this process that decides for all, and now: at most once in so many seconds."""
        header, now = self.roster.header, time.monotonic_ns()
        quiet = now - int(header[DECIDED_AT])
        if self.row < 0 or quiet < every * 1e9:
            return False
        with self.roster.locked():
            mine = int(header[DECIDER]) == self._key
            if int(header[DECIDED_AT]) + int(every * 1e9) > now or not (mine or quiet > _STEADY * 1e9):
                return False
            header[DECIDED_AT], header[DECIDER] = now, self._key
        return True

    @property
    def _key(self) -> int:
        return (os.getpid() << 16) + self.row

    def said(self, lately: float = _LATELY) -> dict[int, list[float]]:
        """By row, what those ranks need that took a batch lately; and count their threads."""
        roster, since = self.roster, time.monotonic_ns() - int(lately * 1e9)
        with roster.locked():
            self._count_threads(lately)
        return {
            row: roster.needs[row].tolist()
            for row in roster.present()
            if int(roster.rows[row, TAKEN_AT]) > since and roster.needs[row].any()
        }

    def set_reads(self, reads: dict[int, int]) -> None:
        """So many reads may be under way for each rank."""
        for row, count in reads.items():
            self.roster.rows[row, READS] = count

    def set_prepare(self, threads: dict[int, int]) -> None:
        """So many threads prepare for each rank; 0: as many as it has."""
        for row, count in threads.items():
            self.roster.rows[row, PREPARE] = count

    def set_limit(self, limit: int) -> None:
        """So many threads may prepare at once on this machine."""
        header = self.roster.header
        if int(header[LIMIT]) != limit:
            header[LIMIT] = limit
            Permits(self.roster).serve()

    @property
    def limit(self) -> int:
        """Threads that may prepare at once on this machine."""
        return int(self.roster.header[LIMIT])

    @property
    def most(self) -> int:
        """The most that did, since the roster was made."""
        return int(self.roster.header[MOST])

    def leave(self) -> None:
        """The rank is gone."""
        if self.row >= 0 and os.getpid() == self._owner:
            self.roster.give_row(self.row)
            self.row = -1


class Turn:
    """One preparing thread's permit: taken when there is work, kept while nobody needs it more, given back to
    rest."""

    def __init__(self, seat: Seat, permits: Permits, stopped: Callable[[], bool]) -> None:
        self._seat, self._permits, self._stopped = seat, permits, stopped
        self._permit: tuple[int, int] | None = None

    def begin(self, sequence: int) -> float:
        """Wait until a batch of this number may be prepared; the seconds that took."""
        if self._permit is None and not self._seat.crowded:
            return 0.0  # no others are there to wait for
        if self._permit is not None and not self._permits.contended:
            return 0.0
        begun = time.perf_counter()
        deadline, step = self._seat.deadline(sequence)
        if self._permit is None:
            self._permit = self._permits.take(deadline, step, self._stopped)
        else:
            permit, self._permit = self._permit, None
            self._permit = self._permits.renew(permit, deadline, step, self._stopped)
        return time.perf_counter() - begun

    def pass_on(self, sequence: int | None) -> None:
        """Something is prepared; a batch of this number is next, or nothing. Whoever needs the permit more gets it
        now, and is awake by the time that this thread has told of its work."""
        if self._permit is None or not self._permits.contended:
            return
        if sequence is None:
            self.rest()
        elif not self._permits.keep(self._permit, *self._seat.deadline(sequence)):
            self._permit = None

    def rest(self) -> None:
        """There is nothing to prepare."""
        if self._permit is not None:
            permit, self._permit = self._permit, None
            self._permits.give(permit)
