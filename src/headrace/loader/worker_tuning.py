"""How many processes run a dataset, where nobody said it: as many as keep up with the loop, and the machine can
carry."""

from __future__ import annotations

import time

from headrace.core.memory import available_memory
from headrace.host.embedded import ProcessHost
from headrace.loader.place import cpus_per_rank
from headrace.planning.threads import wanted

_WINDOW = 8
"""Batches between two looks, at least; and one of each worker."""
_WAITED = 0.05
"""A loop that waits for less than this share of its time is well fed."""
_LEAST_CPU = 0.1
"""Share of its time for which a worker is taken to use a CPU, at least."""
_MOST = 64
"""Processes, at most, whatever they wait for."""


class WorkerTuning:
    """Adds processes while they are too few: a dataset that waits for storage can use more than there are CPUs."""

    def __init__(self, host: ProcessHost, workers: int) -> None:
        self._host, self.workers = host, workers
        self._cpus = cpus_per_rank()
        self._count = -workers  # the first ones say more about starting up
        self._before = (0.0, 0.0, 0.0, 0.0, 0)

    def taken(self) -> int:
        """A batch was taken; how many processes there are from now on."""
        self._count += 1
        totals = self._host.totals
        if self._count == 0:
            self._mark()
        elif self._count >= max(_WINDOW, self.workers):
            now = time.perf_counter()
            elapsed, waited = now - self._before[0], totals.waited - self._before[1]
            busy, cpu = totals.spent.fetch - self._before[2], totals.spent.fetch_cpu - self._before[3]
            orders, batches = totals.orders - self._before[4], self._count
            if orders and waited > _WAITED * elapsed:
                self._add(
                    busy / orders, max(1e-6, elapsed - waited) / batches, cpu / busy if busy > 0 else 1.0
                )
            self._count = 0
            self._mark()
        return self.workers

    def _mark(self) -> None:
        totals = self._host.totals
        spent = totals.spent
        self._before = (time.perf_counter(), totals.waited, spent.fetch, spent.fetch_cpu, totals.orders)

    def _add(self, fetch: float, request: float, cpu: float) -> None:
        """A batch takes a worker ``fetch`` seconds, of which it uses a CPU for the share ``cpu``, and the loop could
        take one every ``request`` seconds."""
        cores = min(_MOST, int(self._cpus / max(_LEAST_CPU, min(1.0, cpu))))
        memory = sum(map(_own_memory, (worker.pid for worker in self._host.workers))) / self.workers
        limit = available_memory() / 2 + memory * self.workers
        count = min(wanted(fetch, request, cores, memory, limit), 2 * self.workers)
        for _ in range(count - self.workers):
            self._host.add_worker()
        self.workers = max(self.workers, count)


def _own_memory(pid: int) -> int:
    """Bytes that a process has for itself, about."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * 4096
