"""The workers of a simulated rank: they claim orders, fetch, prepare, and report, as the real ones do."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from headrace.coordinate.messages import Order
from headrace.simulate.node import Node
from headrace.simulate.work import Ids, Work

READS = 32
"""Samples that a worker reads at a time."""
PATIENCE = 0.03
"""Seconds without an order after which a worker offers its idle time."""


class Task:
    """An order on its way through a worker."""

    __slots__ = ("begun", "fetch_seconds", "luck", "missing", "nbytes", "order", "took", "waited", "work")

    def __init__(self, order: Order, work: Work, missing: Ids, nbytes: float, luck: float) -> None:
        """``missing``: samples to read, of so many bytes in all. ``luck``: how much longer the work takes than it
        should."""
        self.order, self.work, self.missing, self.nbytes, self.luck = order, work, missing, nbytes, luck
        self.fetch_seconds = self.begun = self.waited = self.took = 0.0


class Employer(Protocol):
    """Who posts orders."""

    def task(self, order: Order) -> Task:
        """What an order asks for."""
        ...

    def done(self, task: Task, idle: float) -> None:
        """An order is done. ``idle``: seconds for which the hand that did it had had no order."""
        ...


class Worker:
    """A process: one thread claims and fetches, others (hands) prepare.

    Without a pipeline, one thread does both, as in a plain loader's worker.
    """

    __slots__ = ("_blocked", "_crew", "_hands", "_ready", "_threads", "busy", "since")

    def __init__(self, crew: Crew, threads: int) -> None:
        self._crew, self._threads = crew, threads
        self._hands = [0.0] * threads
        """Of each hand that has nothing to do: since when."""
        self._ready: deque[Task] = deque()
        self._blocked: Task | None = None
        """Fetched, and no room to put it."""
        self.since = 0.0
        """Since when there was no order to claim."""
        self.busy = 0
        """Orders that it has."""

    def claim(self, task: Task) -> None:
        """Take an order."""
        node = self._crew.node
        self.busy += 1
        task.begun = node.clock.now
        if len(task.missing):
            node.fetch(task.missing, task.nbytes, self._crew.at_once, self._fetched, task)
        else:
            self._fetched(task)

    def _fetched(self, task: Task) -> None:
        task.fetch_seconds = self._crew.node.clock.now - task.begun
        if self._hands:
            self._prepare(task)
        elif len(self._ready) < self._threads:
            self._ready.append(task)
        else:
            self._blocked = task
            return
        if self._crew.pipelined:
            self._crew.claim(self)

    def _prepare(self, task: Task) -> None:
        node = self._crew.node
        waited = node.clock.now - self._hands.pop()
        task.waited = min(waited, task.fetch_seconds)
        idle = waited - task.waited
        task.took = -node.clock.now
        node.processors.add(task.work.seconds * task.luck, self._prepared, task, idle)

    def _prepared(self, task: Task, idle: float) -> None:
        self.busy -= 1
        task.took += self._crew.node.clock.now
        self._hands.append(self._crew.node.clock.now)
        if self._ready:
            self._prepare(self._ready.popleft())
        if self._blocked is not None:
            self._ready.append(self._blocked)
            self._blocked = None
            self._crew.claim(self)
        elif not self._crew.pipelined:
            self._crew.claim(self)
        # Last, for this may bring new orders: first come those that were here before.
        self._crew.employer.done(task, idle)


class Crew:
    """All workers of a rank, and the orders that wait for them."""

    def __init__(
        self, employer: Employer, node: Node, processes: int, threads: int, *, pipelined: bool = True
    ) -> None:
        self.employer, self.node, self.pipelined = employer, node, pipelined
        self.at_once = READS if pipelined else 1
        self._posted: deque[Any] = deque()
        self._free: deque[Worker] = deque(Worker(self, threads) for _ in range(processes))
        self.closed = False

    def post(self, order: Order) -> None:
        """An order for whoever comes first."""
        self._posted.append(order)
        if self._free:
            self._free.popleft().claim(self.employer.task(self._posted.popleft()))

    def claim(self, worker: Worker) -> None:
        """A worker could take an order."""
        if self._posted and not self.closed:
            worker.claim(self.employer.task(self._posted.popleft()))
        else:
            worker.since = self.node.clock.now
            self._free.append(worker)

    def idle(self) -> list[Worker]:
        """Workers that have had nothing to do for a while."""
        late = self.node.clock.now - PATIENCE
        return [worker for worker in self._free if not worker.busy and worker.since <= late]

    def take(self, worker: Worker, task: Task) -> None:
        """Give an idle worker something that is no order of its rank."""
        self._free.remove(worker)
        worker.claim(task)

    def close(self) -> None:
        """Nothing is begun any more."""
        self.closed = True
        self._posted.clear()
