"""Threads that read: as many as are allowed, those of the oldest order first; one that hangs is done without.

They are daemons: a read that never ends must not keep its process from ending.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from headrace.core import environment
from headrace.core.memory import thread_room
from headrace.planning.window import WIDEST

_LINGER = 10.0
"""Seconds for which a thread waits for something to read."""


class Job:
    """Rows that a thread reads. ``lost``: it hangs, and another thread was allowed in its thread's place."""

    __slots__ = ("lost", "over", "read", "rows")

    def __init__(self, read: Callable[[Job], None], rows: list[int]) -> None:
        self.read, self.rows = read, rows
        self.lost = self.over = False


class ReadThreads:
    """A pool of threads, started when they are needed."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._jobs: list[tuple[int, int, Job]] = []
        self._numbers = itertools.count()
        self._running = self._idle = self._lost = 0
        self._most: int | None = None
        """How many threads may run; None: none was needed yet."""
        self._allowed = WIDEST
        self._closed = False

    def allow(self, reads: int) -> None:
        """So many reads may run at once from now on; those beyond it that run come to their end."""
        self._allowed = reads

    def submit(self, turn: int, job: Job) -> bool:
        """Have a job done, those of lower turns first; False: there is no thread, and none can be started."""
        with self._ready:
            if len(self._jobs) >= self._idle:
                self._start()
            if not self._running:
                return False
            heapq.heappush(self._jobs, (turn, next(self._numbers), job))
            self._ready.notify()
        return True

    def _start(self) -> None:
        if self._most is None:
            self._most = thread_room(max(WIDEST, environment.reads()))
        most = min(self._most, self._allowed)
        if self._running >= most + self._lost or (self._lost and not thread_room(1)):
            return
        try:
            threading.Thread(target=self._run, name="headrace-fetch", daemon=True).start()
        except RuntimeError:  # no more may be started; from now on with those that are there
            self._most = self._running
        else:
            self._running += 1

    def _run(self) -> None:
        while True:
            with self._ready:
                heard = True
                if self._running > self._allowed + self._lost:
                    self._running -= 1
                    return
                while not self._jobs:
                    if self._closed or not heard or self._running > (self._most or 0) + self._lost:
                        self._running -= 1
                        return
                    self._idle += 1
                    heard = self._ready.wait(_LINGER)
                    self._idle -= 1
                _, _, job = heapq.heappop(self._jobs)
            job.read(job)
            del job  # nothing of it is held while there is nothing to do

    def finish(self, job: Job) -> bool:
        """To be called by each job as it ends; whether it was still counted on."""
        with self._ready:
            job.over = True
            self._lost -= job.lost
        return not job.lost

    def lose(self, job: Job) -> bool:
        """A job hangs: allow another thread in the place of its own, unless there are many such; whether it does."""
        with self._ready:
            if job.over or job.lost or self._lost >= WIDEST:
                return False
            job.lost = True
            self._lost += 1
        return True

    def close(self) -> None:
        """Threads end when they have nothing to read."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
