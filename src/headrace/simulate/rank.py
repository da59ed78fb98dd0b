"""A simulated rank: a training process with its loader, its workers, and its line to the shared host.

The draws, orders and their delivery are the product's own (``Coordinator``, ``Commons``); here is only what takes
time. As in the product, a training process attends to its loader only while it waits for a batch.
"""

from __future__ import annotations

import math
import random
from typing import Any, Protocol

import numpy as np

from headrace.coordinate.coordinator import Batch, Coordinator, Draws, Slot
from headrace.coordinate.draw_client import DrawClient
from headrace.coordinate.messages import Order, OrderDone, Spent
from headrace.coordinate.protocol import Ask, Begin, Finished, Join, Reply, Request
from headrace.coordinate.shared_draws import SharedDraws
from headrace.coordinate.splitter import Splitter
from headrace.core.forms import Form
from headrace.planning import Depth, Means, Measured, ahead_at_first, rows_per_order, split_budget, staff
from headrace.sampling import Geometry
from headrace.simulate.catalogues import HostCatalogue, OwnCatalogue
from headrace.simulate.draws import Orders, OwnDraws
from headrace.simulate.node import Node
from headrace.simulate.scenario import Job
from headrace.simulate.tally import Tally
from headrace.simulate.work import Ids, Sizes, fill_of, work_of
from headrace.simulate.workers import Crew, Task, Worker

_SLOT = Slot(0, 0)
"""Batches lie nowhere here."""
_NOTHING: Ids = np.zeros(0, np.int64)


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
        orders: Orders,
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
        self._depth = Depth(max(4, 2 * people.processes), hands=self.hands, cpus=node.cpus)
        node.workers += people.processes
        self.crew = Crew(self, node, people.processes, threads, pipelined=not plain)
        self._catalogue: HostCatalogue | OwnCatalogue
        self._splitter: Splitter | None = None
        self._sums = Spent()
        if self._shared:
            self._catalogue = HostCatalogue(self.tally)
        else:
            budgets = split_budget(0 if plain else cache, job.split)
            budgets[Form.AUGMENTED] = 0
            self._catalogue = OwnCatalogue(self._samples, budgets, self.tally, sizes, self._low)
            if job.split is None and any(budgets.values()):
                self._means = Means(node.cpus, self.hands, people.processes)
                self._splitter = Splitter(self._catalogue, Measured())
        self.coordinator = Coordinator(self._catalogue, rows_per_order=rows)
        self.client = DrawClient(self._send)
        self.session = -1
        self._fed = 0
        self._here = self.ended = False
        """Whether the process is in its loader, and whether it has ended."""
        self._heard: list[OrderDone] = []
        self._began = self.stood = 0.0
        """When it began to wait for a batch, and when its batch stood."""
        self._idle = 0.0

    # -- the training loop -------------------------------------------------------------------------------------

    def start(self, join: Join) -> None:
        """Begin training."""
        if self._shared:
            self.client.join = join
            self.session = self.node.join(self, join)
        self._feed()
        self._feed()
        self.enter()

    def _feed(self) -> None:
        """Let the next epoch's batches follow those of the epochs before."""
        own = OwnDraws(self._orders, self.geometry, self._fed) if self._explicit else None
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
                    self.crew.post(order)
        batch = self.coordinator.take()
        # The loop still holds the batch before while it is given one, so one fewer can be in the making then.
        most = self.ahead - (1 if batch is not None and self._tunes else 0)
        while self.coordinator.outstanding < most:
            orders = self.coordinator.credit(_SLOT)
            if orders is None:
                break
            for order in orders:
                self.crew.post(order)
        if batch is not None:
            self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        now = self.node.clock.now
        self._here, self.stood = False, now
        self.tally.waited += now - self._began
        if self._tunes:
            company = self.client.company if self._shared else 0
            waited, idle = self.tally.waited, self._idle
            self.ahead = self._depth.taken(self.ahead, now=now, waited=waited, idle=idle, company=company)
        if self._splitter is not None and self._splitter.is_due(now):
            self._split(self._splitter, now)
        if batch.drawn.last:
            self._feed()
        self.node.processors.add_urgent(self.node.costs.batch, self._train, batch)

    def _split(self, splitter: Splitter, now: float) -> None:
        """Look at what was measured, as a loader does."""
        drawn = self._catalogue.drawn if isinstance(self._catalogue, OwnCatalogue) else 0
        sums = self._sums.measured(seconds=now, delivered=drawn, waited=self.tally.waited)
        splitter.look(sums, self._means, self._sizes.mean(Form.AUGMENTED))

    def _train(self, batch: Batch) -> None:
        self.tally.images += len(batch.drawn.indices)
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
        if self._shared:
            self.node.leave(self.session)

    # -- the shared host ---------------------------------------------------------------------------------------

    def _send(self, request: Request, beside: bytes | None) -> None:
        assert isinstance(request, Begin | Ask) and beside is None
        self.node.ask(self.session, request, self.job.batch)

    def hear(self, reply: Reply) -> None:
        """See ``Session``."""
        self.client.hear(reply)
        if self._here:
            self._advance()

    def offer(self) -> None:
        """See ``Session``."""
        for worker in self.crew.idle():
            order = self.node.fill(self.session)
            if order is None:
                return
            self._fill(worker, order)

    def _fill(self, worker: Worker, order: Order) -> None:
        keep = np.frombuffer(order.keep, np.uint8)
        # Grants come without their rows: they are in the order of the rows that keep each form.
        kept = {form: iter(np.flatnonzero(keep & (1 << form)).tolist()) for form in (1, 2, 3)}
        grants = np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()
        rows = [(next(kept[form]), form, offset, size) for form, offset, size in grants]
        order.grants = np.array(rows, np.int64).tobytes()
        self.tally.filled += order.rows
        self.crew.take(worker, self.task(order))

    # -- orders ------------------------------------------------------------------------------------------------

    def task(self, order: Order) -> Task:
        """See ``Employer``."""
        forms = np.frombuffer(order.forms, np.uint8)
        keep = np.frombuffer(order.keep, np.uint8) if order.keep else None
        if order.fill:
            assert keep is not None
            work = fill_of(forms, keep, self.node.costs)
        else:
            work = work_of(forms, keep, self.node.costs)
        missing, nbytes = _NOTHING, 0.0
        if work.fetched:
            missing = self._low + order.index_array()[forms == int(Form.NONE)]
            nbytes = self._sizes.encoded(missing)
        return Task(order, work, missing, nbytes, self._luck())

    def _luck(self) -> float:
        """By how much the work of an order differs from the mean."""
        noise = self.node.costs.noise
        return math.exp(self._dice.gauss(-noise * noise / 2, noise)) if noise else 1.0

    def done(self, task: Task, idle: float) -> None:
        """See ``Employer``."""
        if self.ended:
            return
        order, work = task.order, task.work
        self._idle += idle
        self.tally.decodes += work.decoded
        self.tally.fetched += work.fetched
        published, wanted = b"", (0, 0, 0)
        if isinstance(self._catalogue, OwnCatalogue):
            published, wanted = self._catalogue.publish_all(order)
            self._sums.add(self._spent(task, idle))
        else:
            self._report(order, self._spent(task, idle))
        if not order.fill:
            self._heard.append(OrderDone(order.id, [], published, wanted=wanted))
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
            fetched=work.fetched,
            fetched_bytes=int(task.nbytes),
            decoded=work.decoded,
            prepared=work.prepared,
            cpu=task.luck * (work.decoding + work.augmenting) / speed,
            fetch_cpu=task.luck * work.fetched * self.node.costs.fetch / speed,
        )

    def _report(self, order: Order, spent: Spent) -> None:
        """Tell the host what became of an order, and what it published."""
        published, wanted = b"", [0, 0, 0]
        if order.grants:
            grants = np.frombuffer(order.grants, np.int64).reshape(-1, 4)
            samples = self._low + order.index_array()[grants[:, 0] - order.first]
            made = grants.copy()
            made[:, 3] = self._sizes.of(grants[:, 1], samples)
            fits = made[:, 3] <= grants[:, 3]
            if not fits.all():
                for form, size in made[~fits][:, [1, 3]].tolist():
                    wanted[form - 1] = max(wanted[form - 1], size)
                made = made[fits]
            published = made.tobytes()
        rows = len(order.indices) // 8
        report = Finished(
            order.ticket, order.first, rows, published, (wanted[0], wanted[1], wanted[2]), spent
        )
        self.node.report(self.session, report)


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
