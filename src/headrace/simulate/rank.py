"""A simulated rank: a training process with its loader, its workers, and its line to the shared host.

The draws, orders and their delivery are the product's own (``Coordinator``, ``Commons``); here is only what takes
time. As in the product, a training process attends to its loader only while it waits for a batch.
"""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any, Protocol

import numpy as np

from headrace.coordinate.coordinator import Batch, Coordinator, Draws, Slot
from headrace.coordinate.directory import Directory
from headrace.coordinate.draw_client import DrawClient
from headrace.coordinate.grants import reports
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.own_split import OwnSplit
from headrace.coordinate.protocol import Ask, Begin, Finished, Join, Reply, Request
from headrace.coordinate.shared_directory import SharedDirectory
from headrace.coordinate.shared_draws import SharedDraws
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import (
    Depth,
    Means,
    Measured,
    Spent,
    ahead_at_first,
    most_ahead,
    rows_per_order,
    split_budget,
    staff,
)
from headrace.sampling import Geometry
from headrace.simulate.draws import EpochOrders
from headrace.simulate.helping import Agent, Grant
from headrace.simulate.node import Node
from headrace.simulate.order_cost import Ids, Sizes, pay, publish, work_of
from headrace.simulate.scenario import Job
from headrace.simulate.tally import Tally
from headrace.simulate.workers import Crew, Task, Worker

_SLOT = Slot(0, 0)
"""Batches lie nowhere here."""
_NOTHING: Ids = np.zeros(0, np.int64)
_SPAN = 1 << 50
"""Addresses of a job's own cache: they cost nothing."""


class Run(Protocol):
    """The training run that a rank belongs to."""

    def worked(self, rank: Rank, batch: Batch) -> None:
        """A rank's GPU is done with a batch."""
        ...


class Rank:
    """One process of a job."""

    def __init__(
        self,
        run: Run,
        job: Job,
        node: Node,
        orders: EpochOrders,
        sizes: Sizes,
        *,
        stretch: tuple[int, int],
        cache: int,
        rank: int,
        world_size: int,
        seed: int,
    ) -> None:
        """``stretch``: the job's samples. ``cache``: bytes of its own cache, if it is alone."""
        self.run, self.job, self.node = run, job, node
        self.tally = Tally()
        self._orders, self._sizes = orders, sizes
        self._low, self._samples = stretch[0], stretch[1] - stretch[0]
        self.geometry = Geometry(job.batch, rank, world_size, job.drop_last)
        self._shared = job.loader == "shared"
        self._explicit = not self._shared or job.sampling == "uniform"
        self._dice = random.Random(seed)
        people = staff(node.cpus, job.workers or None)
        plain = job.loader == "plain"
        threads = 1 if plain else people.threads
        self.hands = people.processes * threads
        shared: dict[str, Any] = {"shared": self._shared, "ranks": world_size}
        rows = None if plain else rows_per_order(job.batch, self.hands, **shared)
        self._tunes = not job.ahead and rows is not None
        self.ahead = job.ahead or (
            2 * people.processes if rows is None else ahead_at_first(job.batch, self.hands, rows, **shared)
        )
        self._depth = Depth(most_ahead(people.processes, self.ahead), hands=self.hands, cpus=node.cpus)
        node.workers += people.processes
        self.crew = Crew(self, node, people.processes, threads, pipelined=not plain, shares=self._shared)
        self.client = DrawClient(self._send)
        self._cache: Directory | None = None
        self._own_split: OwnSplit | None = None
        self._sums = Spent()
        if not self._shared:
            budgets = split_budget(0 if plain else cache, job.split)
            budgets[Form.AUGMENTED] = 0
            self._cache = Directory(self._samples, budgets, _SPAN)
            if job.split is None and any(budgets.values()):
                self._means = Means(node.cpus, self.hands, people.processes)
                self._own_split = OwnSplit(self._cache, Measured())
        directory = self._cache or SharedDirectory(self.client, dict.fromkeys(CACHEABLE, 0))
        self.coordinator = Coordinator(directory, rows_per_order=rows)
        self.member = -1
        self._fed = 0
        self._here = self.ended = False
        """Whether the process is in its loader, and whether it has ended."""
        self._heard: list[OrderDone] = []
        self._began = self.stood = 0.0
        """When it began to wait for a batch, and when its batch stood."""
        self._idle = 0.0
        self.agent: Agent | None = None
        """Who has orders made on other machines."""
        self.processes = people.processes
        self.waits: list[tuple[float, float]] = []
        """Of each batch: when it was handed out, and for how long it was waited for."""

    # -- the training loop -------------------------------------------------------------------------------------

    def start(self, join: Join) -> None:
        """Begin training."""
        if self._shared:
            self.client.join = join
            self.member = self.node.join(self, join)
        self.crew.start()
        self._feed()
        self._feed()
        self.enter()

    def _feed(self) -> None:
        """Let the next epoch's batches follow those of the epochs before."""
        own = self._orders.draws(self.geometry, self._fed) if self._explicit else None
        draws: Draws
        if self._shared:
            draws = SharedDraws(self.client, seed=0, epoch=self._fed, own=own)
        else:
            assert own is not None
            draws = own
        self.coordinator.feed(draws)
        self._fed += 1

    def enter(self) -> None:
        """The loop asks for a batch."""
        self._here, self._began = True, self.node.clock.now
        self._advance()

    def _advance(self) -> None:
        """What a loader does while its loop waits: see to what came, and hand out the next batch if it stands."""
        for event in self._heard:
            self.coordinator.done(event)
        self._heard.clear()
        if self.client.updates:
            updates, self.client.updates = self.client.updates, []
            for draw in updates:
                for order in self.coordinator.release(draw):
                    self._post(order)
        batch = self.coordinator.take()
        # The loop still holds the batch before while it is given one, so one fewer can be in the making then.
        most = self.ahead - (1 if batch is not None and self._tunes else 0)
        while self.coordinator.outstanding < most:
            orders = self.coordinator.credit(_SLOT)
            if orders is None:
                break
            for order in orders:
                self._post(order)
        if batch is not None:
            self._deliver(batch)

    def _post(self, order: Order) -> None:
        self.tally.count_rows(np.frombuffer(order.forms or bytes(len(order.indices) // 8), np.uint8))
        self.crew.post(order)

    def _deliver(self, batch: Batch) -> None:
        now = self.node.clock.now
        self._here, self.stood = False, now
        self.tally.waited += now - self._began
        self.waits.append((now, now - self._began))
        if self._tunes:
            company = self.client.company if self._shared else 0
            self.ahead = self._depth.taken(
                self.ahead,
                outstanding=self.coordinator.outstanding,
                now=now,
                waited=self.tally.waited,
                idle=self._idle,
                company=company,
            )
        if self._own_split is not None and self._own_split.is_due(now):
            self._split(self._own_split, now)
        if batch.draw.last:
            self._feed()
        self.node.paid.batch += 1
        self.node.processors.add_urgent(self.node.costs.batch, self._train, batch)

    def _split(self, own_split: OwnSplit, now: float) -> None:
        """Look at what was measured, as a loader does."""
        drawn = self._cache.drawn if self._cache is not None else 0
        sums = self._sums.measured(seconds=now, delivered=drawn, waited=self.tally.waited)
        own_split.look(sums, self._means, self._sizes.mean(Form.AUGMENTED))

    def _train(self, batch: Batch) -> None:
        self.tally.images += len(batch.draw.indices)
        seconds = self.job.step
        if self.job.jitter:
            seconds *= math.exp(self._dice.gauss(0.0, self.job.jitter))
        if seconds:
            self.node.clock.after(seconds, self.run.worked, self, batch)
        else:
            self.run.worked(self, batch)

    def end(self) -> None:
        """The training run is over."""
        self.ended, self._here = True, False
        self.crew.close()
        if self.agent is not None:
            self.agent.closed = True
        if self._shared:
            self.node.leave(self.member)

    # -- the shared host ---------------------------------------------------------------------------------------

    def _send(self, request: Request, beside: bytes | None) -> None:
        assert isinstance(request, Begin | Ask | Finished) and beside is None
        if isinstance(request, Finished):
            self.node.report(self.member, request)
        else:
            self.node.ask(self.member, request, self.job.batch)

    def hear(self, reply: Reply) -> None:
        """See ``Member``."""
        self.client.hear(reply)
        if self._here:
            self._advance()

    def is_idle(self, worker: Worker) -> None:
        """See ``Employer``."""
        self.node.idle(self.member, partial(self._fill, worker))

    def _fill(self, worker: Worker, order: Order) -> None:
        self.tally.filled += order.rows
        worker.fill(self.task(order))

    # -- orders ------------------------------------------------------------------------------------------------

    def task(self, order: Order) -> Task:
        """See ``Employer``."""
        work = work_of(order, self.node.costs)
        missing, nbytes = _NOTHING, 0.0
        if len(work.missing):
            missing = self._low + order.index_array()[work.missing]
            nbytes = self._sizes.encoded(missing)
        return Task(order, work, missing, nbytes, self._luck())

    def _luck(self) -> float:
        """By how much the work of an order differs from the mean."""
        noise = self.node.costs.noise
        return math.exp(self._dice.gauss(-noise * noise / 2, noise)) if noise else 1.0

    def done(self, task: Task, idle: float) -> None:
        """See ``Employer``."""
        order, work = task.order, task.work
        pay(work, self.node.paid)
        if self.ended:
            return
        self._idle += idle
        self.tally.decodes += work.decoded
        self.tally.fetched += len(work.missing)
        made = OrderDone(order.id, [], spent=self._spent(task, idle))
        if work.kept:
            made.published, made.wanted = publish(order, work.kept, self._sizes, self._low)
        if order.ticket >= 0:
            for report in reports(order, made):
                self.node.report(self.member, report)
        elif not self._shared:
            self._sums.add(made.spent)
        if not order.fill:
            self._heard.append(made)
            if self._here:
                self._advance()

    def helped(self, grant: Grant) -> None:
        """See ``Client``."""
        task = grant.task
        self.tally.decodes += task.work.decoded
        self.tally.fetched += len(task.missing)
        rows = len(task.order.indices) // 8
        self.tally.helped += 0 if grant.void else rows
        self._heard.append(OrderDone(task.order.id, [], spent=Spent(helped=rows)))
        if self._here:
            self._advance()

    def _spent(self, task: Task, idle: float) -> Spent:
        """What a real worker would have measured."""
        work, speed = task.work, self.node.speed
        part = task.took / work.seconds if work.seconds else 0.0
        return Spent(
            fetch=task.fetch_seconds,
            decode=part * work.decoding,
            augment=part * work.augmenting,
            wait_order=idle,
            wait_fetch=task.waited,
            fetched=len(work.missing),
            fetched_bytes=int(task.nbytes),
            decoded=work.decoded,
            prepared=work.prepared,
            cpu=task.luck * (work.decoding + work.augmenting) / speed,
            fetch_cpu=task.luck * len(work.missing) * self.node.costs.fetch / speed,
        )


def joining(job: Job, name: str, key: str, samples: int, body: int, budget: int, **ranks: Any) -> Join:
    """What a rank tells its host of itself. ``key``: names its stretch of the dataset. ``ranks``: where it
    stands among those of its job."""
    explicit = job.sampling == "uniform"
    return Join(
        name=name,
        group=name,
        rank=0 if explicit else ranks["rank"],
        world_size=1 if explicit else ranks["world_size"],
        dataset=key,
        label="samples",
        samples=samples,
        encoded="encoded",
        decoded="decoded",
        augmented="" if explicit else f"augmented {job.augmentation}",
        body=0 if explicit else body,
        budget=budget,
        split=job.split,
        sampling=job.sampling,
        eviction=job.eviction,
        batch_size=job.batch,
        drop_last=job.drop_last,
    )
