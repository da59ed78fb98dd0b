"""A scenario on a virtual clock: its machines, its jobs, and the stretch of time that counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headrace.coordinate.coordinator import Batch
from headrace.coordinate.universe import Dataset, Universe
from headrace.core import random as rnd
from headrace.core.forms import Form
from headrace.core.sizes import parse_size
from headrace.sampling import Geometry
from headrace.simulate.clock import Clock
from headrace.simulate.draws import EpochOrders
from headrace.simulate.helping import Agent, Helper
from headrace.simulate.memory import Memory
from headrace.simulate.node import Node
from headrace.simulate.order_cost import Ids, Sizes
from headrace.simulate.pool import Pool
from headrace.simulate.rank import Rank, joining
from headrace.simulate.resources import Shared
from headrace.simulate.results import Moment, Point
from headrace.simulate.scenario import Job, Nodes, Scenario
from headrace.simulate.tally import total

_POINTS = 256
"""Of the course of a run that are remembered."""


class TrainingRun:
    """One job: its ranks keep step."""

    def __init__(self, simulation: Simulation, job: Job, name: str, number: int) -> None:
        self.simulation, self.job, self.name = simulation, job, name
        scenario = simulation.scenario
        low, high = scenario.stretch(job)
        self.low, self.samples = low, high - low
        self.key = f"{low}:{high}"
        machines = scenario.span(job)
        world_size = len(machines) * job.ranks
        orders = EpochOrders(self.samples, rnd.key(scenario.seed, number))
        self.known = orders.known(Geometry(job.batch, 0, world_size, job.drop_last))
        self.ranks = [
            Rank(
                self,
                job,
                simulation.nodes[machine],
                orders,
                simulation.sizes,
                stretch=(low, high),
                cache=scenario.cache_of(job),
                rank=place * job.ranks + local,
                world_size=world_size,
                seed=rnd.key(scenario.seed, number, machine, local),
            )
            for place, machine in enumerate(machines)
            for local in range(job.ranks)
        ]
        self.images = self.epochs = 0
        """Delivered, and epochs that are over."""
        self.started = self.paused = self.ended = False
        self._worked: list[tuple[Rank, Batch, float]] = []

    def start(self) -> None:
        """All ranks begin."""
        self.started = True
        self._tell_pool()
        body = self.simulation.sizes.mean(Form.AUGMENTED)
        for rank in self.ranks:
            place = {"rank": rank.geometry.rank, "world_size": rank.geometry.world_size}
            budget = rank.node.budget
            rank.start(joining(self.job, self.name, self.key, self.samples, body, budget, **place))

    def _tell_pool(self) -> None:
        """Machines of a cluster are told of an order that is known."""
        pool, epoch = self.simulation.pool, self.epochs
        if pool is None or (self.job.loader == "shared" and self.job.sampling != "uniform"):
            return

        def used(machine: int) -> Ids:
            ranks = [one.geometry.rank for one in self.ranks if machine < 0 or one.node.number == machine]
            return self.low + self.known.uses(epoch, ranks)[0].astype(np.int64)

        pool.begin(used)

    def worked(self, rank: Rank, batch: Batch) -> None:
        """See ``Run``. A step is over when all ranks have worked."""
        now = self.simulation.clock.now
        self._worked.append((rank, batch, now))
        if len(self._worked) < len(self.ranks):
            return
        step, self._worked = self._worked, []
        if len(step) > 1:
            for one, _, moment in step:
                one.tally.straggled += now - moment
            max((one for one, _, _ in step), key=lambda one: one.stood).tally.late += 1
        images = sum(len(one.draw.indices) for _, one, _ in step)
        self.images += images
        if self.simulation.watch is not None:
            for one, given, _ in step:
                self.simulation.watch(self.name, one.geometry.rank, given.draw.epoch, given.draw.indices)
        self.simulation.delivered(self, images)
        if batch.draw.last:
            self.epochs += 1
            self.simulation.epoch_over(self)
            if not self.ended:
                self._tell_pool()
        if not self.paused and not self.ended:
            self.go_on()

    def go_on(self) -> None:
        """All ranks ask for their next batch."""
        self.paused = False
        for rank in self.ranks:
            rank.enter()

    def end(self) -> None:
        """All ranks leave."""
        self.ended = True
        for rank in self.ranks:
            rank.end()


class Simulation:
    """Everything that a scenario has, and its course."""

    def __init__(self, scenario: Scenario) -> None:
        """Raises OptionError if the scenario cannot be run."""
        scenario.check()
        self.scenario = scenario
        self.clock = Clock()
        self.sizes = Sizes(scenario)
        self.watch: Callable[[str, int, int, Ids], None] | None = None
        """Told of every delivered batch: job, rank, epoch, samples."""
        self.storage = self._link(scenario.rate(scenario.storage.rate, "storage.rate"))
        universe = self._universe()
        self.nodes: list[Node] = []
        self._helpers: list[Helper] = []
        for group in scenario.nodes:
            for _ in range(group.count):
                storage = self.storage
                if not scenario.storage.shared:
                    storage = self._link(scenario.rate(scenario.storage.rate, "storage.rate"))
                self.nodes.append(
                    Node(
                        len(self.nodes),
                        self.clock,
                        scenario.costs,
                        cpus=group.cpus,
                        speed=group.speed,
                        budget=scenario.cache_of(group),
                        pages=parse_size(group.page_cache, total=0) // scenario.bytes_of("encoded"),
                        network=self._link(scenario.rate(group.network, "nodes.network")),
                        out=self._link(scenario.rate(group.network, "nodes.network")),
                        delay=group.delay,
                        megabyte=scenario.cluster.megabyte,
                        storage=storage,
                        latency=scenario.storage.latency,
                        universe=universe,
                        seed=scenario.seed,
                        sample_bytes=scenario.bytes_of("encoded"),
                    )
                )
                self._helpers += [Helper(self.nodes[-1]) for _ in range(group.helpers)]
        self.runs: list[TrainingRun] = []
        for job in scenario.jobs:
            for place in range(job.count):
                name = job.name if job.count == 1 else f"{job.name} {place}"
                self.runs.append(TrainingRun(self, job, name, len(self.runs)))
        if scenario.nodes[0].keeps != "recent":
            self._share_memory(scenario.nodes[0])
        self.pool = self._make_pool() if scenario.pools else None
        for node in self.nodes:
            node.join_cluster(self.nodes, self.pool)
        if self._helpers:
            self._make_agents()
        self._expected = sum(run.samples * run.job.epochs for run in self.runs)
        self._seen = 0
        self.course: list[Point] = []
        self.begun: Moment | None = None
        self.ended: Moment | None = None
        self._starting = True

    def _link(self, rate: float) -> Shared | None:
        return None if math.isinf(rate) else Shared(self.clock, rate)

    def _universe(self) -> Universe:
        """All samples are known from the start, by their numbers, and to all hosts: so nothing is kept twice."""
        universe = Universe()
        universe.size = self.scenario.data.samples
        for low, high in {self.scenario.stretch(job) for job in self.scenario.jobs}:
            key = f"{low}:{high}"
            universe.datasets[key] = Dataset(key, key, np.arange(low, high))
        return universe

    def _share_memory(self, group: Nodes) -> None:
        """Machines keep what the one job needs soonest: all together, or each for its own ranks."""
        run = self.runs[0]
        room = parse_size(group.page_cache, total=0) // self.scenario.bytes_of("encoded")
        every = [
            (node, [rank.geometry.rank for rank in run.ranks if rank.node is node]) for node in self.nodes
        ]
        for some in [every] if group.peers else [[one] for one in every]:
            memory = Memory(run.known, some, room, ahead=group.keeps == "soonest")
            for place, (node, _) in enumerate(some):
                node.share_memory(memory, place)

    def _make_pool(self) -> Pool:
        scenario = self.scenario
        budgets = [scenario.pool_of(group) for group in scenario.nodes for _ in range(group.count)]
        return Pool(
            self.clock,
            scenario.cluster,
            self.nodes,
            budgets,
            scenario.data.samples,
            scenario.bytes_of("encoded"),
        )

    def _make_agents(self) -> None:
        for run in self.runs:
            for rank in run.ranks:
                rank.agent = Agent(
                    rank,
                    rank.crew,
                    rank.node,
                    [helper for helper in self._helpers if helper.node is not rank.node],
                    workers=rank.processes,
                    row=self.sizes.mean(Form.AUGMENTED),
                    paced=self.scenario.cluster.pacing,
                )

    # -- the course --------------------------------------------------------------------------------------------

    @property
    def progress(self) -> float:
        """The share of all that is to be delivered that was."""
        return min(1.0, self._seen / max(1, self._expected))

    def run(self, look: Callable[[], None] | None = None) -> None:
        """Go through the scenario, or on with it; ``look`` is called now and then."""
        if self._starting:
            self._starting = False
            if not self.scenario.measure.warmup:
                self.begun = self.moment()
            for run, before in zip(self.runs, [None, *self.runs], strict=False):
                if run.job.after and before is not None:
                    continue
                self.clock.at(run.job.start, run.start)
        self.clock.run(look)

    def moment(self) -> Moment:
        """How things stand."""
        return Moment(
            self.clock.now,
            [[replace(rank.tally) for rank in run.ranks] for run in self.runs],
            [node.use() for node in self.nodes],
        )

    def _point(self) -> Point:
        sums = [total([rank.tally for rank in run.ranks]) for run in self.runs]
        found = total(sums)
        images = [run.images for run in self.runs]
        return Point(self.clock.now, images, found.rows, found.rows - found.none, found.decodes)

    def delivered(self, run: TrainingRun, images: int) -> None:
        """A job has done a step."""
        if run.job.epochs:
            self._seen += images
        if len(self.course) < self.progress * _POINTS:
            self.course.append(self._point())
        following = self.runs.index(run) + 1
        if following < len(self.runs):
            other = self.runs[following]
            if other.job.after and not other.started and run.images >= other.job.after * run.samples:
                other.started = True
                self.clock.after(other.job.start, other.start)

    def epoch_over(self, run: TrainingRun) -> None:
        """A job is through an epoch."""
        measure = self.scenario.measure
        ending = [one for one in self.runs if one.job.epochs]
        if run.job.epochs and run.epochs == run.job.epochs:
            run.end()
            if measure.until == "first" or all(one.ended for one in ending):
                self.ended = self.moment()
                self.clock.stop()
            return
        if run not in ending or self.begun is not None or run.epochs < measure.warmup:
            return
        run.paused = measure.barrier
        if all(one.epochs >= measure.warmup for one in ending):
            self.begun = self.moment()
            for one in ending:
                if one.paused and one is not run:
                    one.go_on()
            run.paused = False
