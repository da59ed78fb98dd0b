"""The workers of a simulated rank: they claim orders, fetch, prepare, and report, as the real ones do.

What is to be done with an order, how many are fetched ahead, and when an idle worker asks for something to do are
the product's own rules (``RowWork``, ``fetched_ahead``, ``IdlePause``). What is written anew here is what threads and
queues do by their nature in ``engine/pipeline.py`` and ``engine/link.py``: the oldest order goes to the worker that
has waited longest, a thread that has fetched waits for room in the queue, and fills are fetched beside orders.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from headrace.coordinate.messages import Order
from headrace.planning import IdlePause, fetched_ahead
from headrace.simulate.clock import Call
from headrace.simulate.node import Node
from headrace.simulate.order_cost import Ids, OrderCost

READS = 32
"""Samples that a worker reads at a time. (A real one reads fewer where storage is faster than preparing.)"""


class Task:
    """An order on its way through a worker."""

    __slots__ = ("begun", "fetch_seconds", "luck", "missing", "nbytes", "order", "took", "waited", "work")

    def __init__(self, order: Order, work: OrderCost, missing: Ids, nbytes: float, luck: float) -> None:
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

    def is_idle(self, worker: Worker) -> None:
        """A worker has had nothing to do for a while."""
        ...


class Worker:
    """A process: one thread claims and fetches, others (hands) prepare.

    Without a pipeline, one thread does both, as in a plain loader's worker.
    """

    __slots__ = ("_blocked", "_crew", "_hands", "_looks", "_ready", "_until", "_waits", "pause", "under_way")

    def __init__(self, crew: Crew, threads: int) -> None:
        self._crew = crew
        self._hands = [0.0] * threads
        """Of each hand that has nothing to do: since when."""
        self._ready: deque[Task] = deque()
        self._blocked: deque[Task] = deque()
        """Fetched, and no room to put it."""
        self.under_way = 0
        """Orders that are fetched and not done."""
        self.pause = IdlePause()
        self._waits = self._looks = False
        """Whether there was no order to claim, and whether it will look up when it has waited for long enough."""
        self._until = 0.0

    def wait(self) -> None:
        """There is no order to claim."""
        self._waits = True
        if self._crew.shares:
            self._until = self._crew.node.clock.now + self.pause.seconds
            self._look_later()

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            self._crew.node.clock.at(self._until, self._look)

    def _look(self) -> None:
        """See whether it has waited for long enough. (It may have had an order since it began to.)"""
        self._looks = False
        if not self._waits or self._crew.closed:
            return
        now = self._crew.node.clock.now
        if now >= self._until:
            self.pause.asked()
            self._until = now + self.pause.seconds
            if not self.under_way:
                self._crew.employer.is_idle(self)
        self._look_later()

    def claim(self, task: Task) -> None:
        """Take an order."""
        self._waits = False
        self._fetch(task, self._claimed)

    def fill(self, task: Task) -> None:
        """Take something that is no order of its rank, beside those that are."""
        self.pause.given()
        self._fetch(task, self._queue)

    def _fetch(self, task: Task, call: Call) -> None:
        node = self._crew.node
        task.begun = node.clock.now
        if len(task.missing):
            node.fetch(task.order, task.missing, task.nbytes, self._crew.at_once, call, task)
        else:
            call(task)

    def _claimed(self, task: Task) -> None:
        self._queue(task)
        if not self._blocked and self._crew.pipelined:
            self._crew.claim(self)

    def _queue(self, task: Task) -> None:
        self.under_way += 1
        task.fetch_seconds = self._crew.node.clock.now - task.begun
        if self._hands:
            self._prepare(task)
        elif len(self._ready) < self._crew.fetched_ahead:
            self._ready.append(task)
        else:
            self._blocked.append(task)

    def _prepare(self, task: Task) -> None:
        node = self._crew.node
        waited = node.clock.now - self._hands.pop()
        task.waited = min(waited, task.fetch_seconds)
        idle = waited - task.waited
        task.took = -node.clock.now
        node.processors.add(task.work.seconds * task.luck, self._prepared, task, idle)

    def _prepared(self, task: Task, idle: float) -> None:
        self.under_way -= 1
        task.took += self._crew.node.clock.now
        self._hands.append(self._crew.node.clock.now)
        if self._ready:
            self._prepare(self._ready.popleft())
        if self._blocked:
            unblocked = self._blocked.popleft()
            self._ready.append(unblocked)
            if not unblocked.order.fill:
                self._crew.claim(self)
        elif not self._crew.pipelined:
            self._crew.claim(self)
        # Last, for this may bring new orders: first come those that were here before.
        self._crew.employer.done(task, idle)


class Crew:
    """All workers of a rank, and the orders that wait for them."""

    def __init__(
        self,
        employer: Employer,
        node: Node,
        processes: int,
        threads: int,
        *,
        pipelined: bool = True,
        shares: bool = False,
    ) -> None:
        """``shares``: there is a host that may have something to do for idle workers."""
        self.employer, self.node, self.pipelined, self.shares = employer, node, pipelined, shares
        self.at_once = READS if pipelined else 1
        self.fetched_ahead = fetched_ahead(threads)
        self._posted: deque[Any] = deque()
        self._free: deque[Worker] = deque(Worker(self, threads) for _ in range(processes))
        self.closed = False
        self.watch: Call | None = None
        """Called when an order is posted that nobody takes at once."""

    @property
    def backlog(self) -> int:
        """Orders that nobody has claimed."""
        return len(self._posted)

    def give_up(self) -> Order:
        """The oldest order that nobody has claimed, for somebody else."""
        order: Order = self._posted.popleft()
        return order

    def start(self) -> None:
        """The workers wait for orders."""
        for worker in self._free:
            worker.wait()

    def post(self, order: Order) -> None:
        """An order for whoever comes first."""
        self._posted.append(order)
        if self._free:
            self._free.popleft().claim(self.employer.task(self._posted.popleft()))
        elif self.watch is not None:
            self.watch()

    def claim(self, worker: Worker) -> None:
        """A worker could take an order."""
        if self._posted and not self.closed:
            worker.claim(self.employer.task(self._posted.popleft()))
        else:
            self._free.append(worker)
            worker.wait()

    def close(self) -> None:
        """Nothing is begun any more."""
        self.closed = True
        self._posted.clear()
