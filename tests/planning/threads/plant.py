"""A toy of a node: what budgets lead to, in plain arithmetic, so that a controller can be let loose on it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.planning.threads import Budget, Decision, Node, PerLevel, RankNeeds, StaffController


@dataclass(frozen=True)
class ToyRank:
    latency: float = 0.02
    """Seconds of a read, with nobody else about."""
    read_cpu_seconds: float = 0.0005
    prepare_cpu_seconds: float = 0.005
    train_seconds: float = 0.1
    batch: int = 64
    cached: float = 0.0
    """The share of rows that need no read."""
    sample_bytes: float = 100e3


@dataclass(frozen=True)
class Plant:
    node: Node
    ranks: tuple[ToyRank, ...]
    lockstep: bool = True
    reads_per_second: float = 1e9
    """What storage gives, to all together."""
    crowded: int = 10_000
    """Preparing threads from which on more of them get no more done: memory is busy."""

    def seconds(self, decision: Decision) -> tuple[list[float], list[float], list[float], list[float]]:
        """Of each rank: its step, how long its batch took, one read, and one sample's preparing, in CPU seconds."""
        cpus = max(1, self.node.cpus - self.node.kept)
        budgets = list(decision.budgets.values())
        asked = sum(one.prepare for one in budgets)
        share = min(1.0, decision.prepare_limit / asked)
        squeezed = 1.0
        """How many times as long things take because CPUs are shared."""
        slow = 1.0
        """How many times as long reads take because storage is."""
        running = float(min(asked, decision.prepare_limit))
        for _ in range(60):
            prepares = [one.prepare_cpu_seconds * max(1.0, running / self.crowded) for one in self.ranks]
            reads = [one.latency * slow + one.read_cpu_seconds * squeezed for one in self.ranks]
            ready = [
                one.batch
                * max(
                    prepare * squeezed / max(budget.prepare * share, 1e-9),
                    (1 - one.cached) * read / max(budget.reads, 1e-9),
                )
                for one, budget, prepare, read in zip(self.ranks, budgets, prepares, reads, strict=True)
            ]
            steps = [max(one.train_seconds, took) for one, took in zip(self.ranks, ready, strict=True)]
            if self.lockstep:
                steps = [max(steps)] * len(steps)
            rates = [one.batch / step for one, step in zip(self.ranks, steps, strict=True)]
            running = sum(rate * prepare for rate, prepare in zip(rates, prepares, strict=True))
            burning = sum(
                rate * (1 - one.cached) * one.read_cpu_seconds
                for rate, one in zip(rates, self.ranks, strict=True)
            )
            gets = sum(rate * (1 - one.cached) for rate, one in zip(rates, self.ranks, strict=True))
            squeezed = max(1.0, squeezed * ((running + burning) / cpus) ** 0.5)
            slow = max(1.0, slow * (gets / self.reads_per_second) ** 0.5)
        return steps, ready, reads, prepares

    def throughput(self, decision: Decision) -> float:
        """Samples per second of all ranks."""
        steps = self.seconds(decision)[0]
        return sum(one.batch / step for one, step in zip(self.ranks, steps, strict=True))

    def measured(
        self, decision: Decision, noise: float = 0.0, luck: random.Random | None = None
    ) -> dict[int, RankNeeds]:
        """What the ranks would measure."""
        luck = luck or random.Random(0)

        def off(value: float) -> float:
            return value * (1 + luck.uniform(-noise, noise))

        needs = {}
        steps, ready, reads, prepares = self.seconds(decision)
        for at, (rank, one) in enumerate(zip(decision.budgets, self.ranks, strict=True)):
            waited = min(max(0.0, ready[at] - one.train_seconds), steps[at] - one.train_seconds)
            fetching = one.batch * (1 - one.cached) * reads[at] / decision.budgets[rank].reads
            needs[rank] = RankNeeds(
                waiting=round(off(3 * one.batch * (1 - one.cached) * min(1.0, fetching / steps[at]))),
                sample_bytes=off(one.sample_bytes),
                read_seconds=off(reads[at]),
                read_cpu=min(1.0, off(one.read_cpu_seconds / reads[at])),
                prepare_cpu=off(prepares[at]),
                batch=one.batch,
                train_seconds=off(steps[at] - waited),
                waited=off(waited),
                rows=PerLevel(own=one.cached * one.batch, storage=(1 - one.cached) * one.batch),
            )
        return needs

    def changed(self, **changes: float) -> Plant:
        """The same with all ranks changed."""
        return replace(self, ranks=tuple(replace(one, **changes) for one in self.ranks))  # type: ignore[arg-type]


@dataclass
class Loop:
    """A controller that runs a plant."""

    controller: StaffController = field(default_factory=StaffController)
    noise: float = 0.0
    luck: random.Random = field(default_factory=lambda: random.Random(1))
    last: Decision | None = None

    def run(self, plant: Plant, decisions: int) -> Iterator[tuple[dict[int, RankNeeds], Decision]]:
        """So many decisions, each from what was measured under the one before."""
        for _ in range(decisions):
            before = self.last or Decision(
                {rank: Budget(1, 4) for rank in range(len(plant.ranks))}, plant.node.cpus
            )
            needs = plant.measured(before, self.noise, self.luck)
            self.last = self.controller.decide(needs, plant.node)
            yield needs, self.last


def best_fixed(plant: Plant, groups: Sequence[int]) -> float:
    """The throughput of the best fixed division, by trying them. Ranks of one group get the same."""
    kinds = sorted(set(groups))
    cpus = max(1, plant.node.cpus - plant.node.kept)
    sizes = [groups.count(kind) for kind in kinds]
    best = 0.0
    for limit in range(1, cpus + 1):
        for prepare in _divisions(sizes, limit, 1):
            for reads in _divisions(sizes, plant.node.most_reads, 1.3):
                budgets = {
                    rank: Budget(prepare[kinds.index(kind)], reads[kinds.index(kind)])
                    for rank, kind in enumerate(groups)
                }
                best = max(best, plant.throughput(Decision(budgets, limit)))
    return best


def _divisions(sizes: Sequence[int], total: int, finer: float) -> list[list[int]]:
    """Ways to give each group of ranks a number for each of its ranks, all within the total, or one for each."""
    ways: list[list[int]] = [[]]
    for at, size in enumerate(sizes):
        longer = []
        for way in ways:
            left = (
                total
                - sum(have * other for have, other in zip(way, sizes, strict=False))
                - sum(sizes[at + 1 :])
            )
            if at == len(sizes) - 1:
                longer += [[*way, left // size]] if left >= size else []
                continue
            count = 1
            while count * size <= left:
                longer.append([*way, count])
                count = max(count + 1, int(count * finer))
        ways = longer
    return ways or [[1] * len(sizes)]


def turns(values: Sequence[int]) -> int:
    """How often a number goes the other way than it went before."""
    ways = [(after > before) - (after < before) for before, after in itertools.pairwise(values)]
    ways = [way for way in ways if way]
    return sum(one != other for one, other in itertools.pairwise(ways))


def series(decisions: Sequence[Decision]) -> Mapping[str, list[int]]:
    """Every number of the decisions over time."""
    found: dict[str, list[int]] = {"limit": [one.prepare_limit for one in decisions]}
    for rank in decisions[0].budgets:
        found[f"prepare {rank}"] = [one.budgets[rank].prepare for one in decisions]
        found[f"reads {rank}"] = [one.budgets[rank].reads for one in decisions]
    return found
