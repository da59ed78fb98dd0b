"""One staff for the ranks of a node: how many threads prepare, and how many samples are read at once, for each.

What a rank needs follows from what it measured: a batch takes so many seconds of reading and so many CPU seconds, and
its loop takes so long for it. Where the node cannot give that to all, they get what lets the slowest be fastest. Then
the numbers are moved there, carefully: whatever follows from noise must not make them swing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.planning.threads.common_time import common_time
from headrace.planning.threads.divide import proportional, straggler_aware
from headrace.planning.threads.evenly import evenly, whole, worst
from headrace.planning.threads.loading_time import Level, LoadingTime, PerLevel
from headrace.planning.threads.preparing_model import PreparingModel
from headrace.planning.threads.steady import Mover, Steady

_SPARE = 1.5
"""Reads at once for each that would just keep up: they do not all take the same time."""
_PROMISE = 1.1
"""A division that is not so many times as good is not worth a change."""
_WASTE = 2.0
"""Reads at once, for each that would just keep up, that are too many."""
_APART = 1.25
"""Where one rank is so many times as late as another, it is a straggler."""
_TAU = 0.05
"""A rank that is late by less than this share of its step is not late."""
_ROOM, _LACK = 0.6, 0.75
"""The limit of preparing threads is raised when there is room for so much more, and lowered when there is so much
less: whole threads do not follow every rounding."""
_STEP = 8
"""Preparing threads are given to fetching, and back, one at a time; where there are many CPUs, this part of them."""

_ALL_STORED = PerLevel(storage=1.0)


@dataclass(frozen=True, slots=True)
class Node:
    """What there is to divide."""

    cpus: int
    kept: int = 0
    """CPUs that are left to the training processes."""
    most_reads: int = 32
    """Samples that may be read at once, by all ranks together. (Each rank has one, also where it is fewer.)"""


@dataclass(frozen=True, slots=True)
class RankNeeds:
    """What one rank measured lately. Seconds and bytes are means."""

    waiting: float
    """Rows that wait to be fetched: the length of its queue."""
    sample_bytes: float
    read_seconds: float
    """Of one read."""
    read_cpu: float
    """The share of a read's time for which it takes a CPU, 0 to 1."""
    prepare_cpu: float
    """CPU seconds of preparing one sample."""
    batch: int
    train_seconds: float
    """Of the loop, for one step, but for waiting for its batch; 0: it takes whatever it gets."""
    waited: float
    """Seconds for which the loop waited for its batch, per step."""
    rows: PerLevel = _ALL_STORED
    """Rows by the level that they came from: numbers, or shares."""
    job: int = 0
    """Ranks of one job go in step: what one of them waits for, the others do, inside of their own steps."""


class Budget(NamedTuple):
    """What one rank may do at once."""

    prepare: int
    """Threads that prepare."""
    reads: int
    """Samples that are being read."""


class Decision(NamedTuple):
    """What holds until the next one."""

    budgets: dict[int, Budget]
    prepare_limit: int
    """Preparing threads that may run at once on the node. Where there are more ranks than that, each has one in its
    budget, and who runs is decided by deadlines."""


@dataclass(slots=True)
class _Rank:
    """What is remembered of one rank."""

    waiting: Steady = field(default_factory=Steady)
    read_seconds: Steady = field(default_factory=Steady)
    read_cpu: Steady = field(default_factory=Steady)
    prepare_cpu: Steady = field(default_factory=Steady)
    train_seconds: Steady = field(default_factory=Steady)
    fetched: Steady = field(default_factory=Steady)
    """The share of its rows that have to be read."""
    prepare: Mover = field(default_factory=Mover)
    reads: Mover = field(default_factory=Mover)


class _Load(NamedTuple):
    """What a batch of one rank takes."""

    preparing: float
    """CPU seconds of preparing."""
    reading: float
    """Seconds of reading, with as many at once as now."""
    burning: float
    """CPU seconds of reading."""
    train: float
    queue: float
    job: int


class StaffController:
    """Divides a node between its ranks, every few batches."""

    def __init__(self, preparing: PreparingModel | None = None, loading: LoadingTime | None = None) -> None:
        self.preparing = preparing if preparing is not None else PreparingModel()
        self.loading = loading if loading is not None else LoadingTime()
        self._ranks: dict[int, _Rank] = {}
        self._limit = Mover()
        self._peak = 0
        self._reading = 1.0
        """Reads at once, as far as they were needed."""
        self._level = Level.STORAGE

    def decide(self, needs: Mapping[int, RankNeeds], node: Node) -> Decision:
        """Budgets for all ranks of the node, by whatever number they are known."""
        self._ranks = {rank: self._ranks.get(rank) or _Rank() for rank in needs}
        if not needs:
            return Decision({}, max(1, node.cpus - node.kept))
        cpus = max(1, node.cpus - node.kept)
        most_reads = max(1, node.most_reads)
        loads = _in_step([self._take(self._ranks[rank], one) for rank, one in needs.items()])
        self._learn(list(needs.values()))
        size = sum(one.sample_bytes for one in needs.values()) / len(needs)
        peak = self._hold_peak(size, cpus)
        floors = [load.train for load in loads]
        computing = max(
            common_time([load.preparing for load in loads], floors, peak),
            common_time([load.preparing + load.burning for load in loads], floors, cpus),
        )
        reading = common_time([load.reading for load in loads], floors, self._most_at_once(most_reads))
        step = max(computing, reading)
        targets = [max(step, load.train, 1e-9) for load in loads]
        burnt = sum(load.burning / target for load, target in zip(loads, targets, strict=True))
        works = [load.preparing / target for load, target in zip(loads, targets, strict=True)]
        limit = self._move_limit(works, cpus - burnt, peak, cpus)
        prepare = self._divide_preparing(works, limit)
        reads = self._divide_reads(loads, targets, most_reads, bound=reading > computing)
        budgets = {
            rank: Budget(*both) for rank, both in zip(needs, zip(prepare, reads, strict=True), strict=True)
        }
        return Decision(budgets, limit)

    # -- what is known ---------------------------------------------------------------------------------------------

    def _take(self, rank: _Rank, one: RankNeeds) -> _Load:
        """What a rank measured, with what it measured before, so that one look does not count for too much."""
        rows = sum(one.rows)
        fetched = rank.fetched.feed((rows - one.rows.own) / rows if rows > 0 else 1.0)
        reading = one.batch * fetched * rank.read_seconds.feed(one.read_seconds)
        return _Load(
            preparing=one.batch * rank.prepare_cpu.feed(one.prepare_cpu),
            reading=reading,
            burning=reading * min(1.0, rank.read_cpu.feed(one.read_cpu)),
            train=rank.train_seconds.feed(one.train_seconds),
            queue=rank.waiting.feed(one.waiting),
            job=one.job,
        )

    def _learn(self, needs: Sequence[RankNeeds]) -> None:
        """The models are told what was measured, and with how many threads at work."""
        preparing = reading = fetched = samples = 0.0
        disk = peer = storage = 0.0
        for one in needs:
            step = one.train_seconds + one.waited
            total = sum(one.rows)
            if step <= 0 or total <= 0:
                continue
            share = one.batch / step
            samples += share
            preparing += share * one.prepare_cpu
            misses = share * (total - one.rows.own) / total
            reading += misses * one.read_seconds
            fetched += misses * one.sample_bytes
            share /= total
            disk, peer, storage = (
                disk + share * one.rows[1],
                peer + share * one.rows[2],
                storage + share * one.rows[3],
            )
        if samples <= 0:
            return
        size = sum(one.sample_bytes for one in needs) / len(needs)
        if preparing > 0:
            self.preparing.observe(size, max(1.0, preparing), preparing / samples)
        self._level = max((storage, Level.STORAGE), (peer, Level.PEER), (disk, Level.DISK))[1]
        self._reading = max(1.0, reading)
        if reading > 0:
            self.loading.observe(self._level, self._reading, fetched * self._reading / reading)

    def _slowdown(self, reads: float) -> float:
        """How many times as long as now a read takes with so many at once."""
        return self.loading.slowdown(self._level, self._reading, max(1.0, reads))

    def _gets(self, reads: float) -> float:
        """What so many at once get done, in reads at once that take as long as they do now."""
        return reads / self._slowdown(reads)

    def _most_at_once(self, most: int) -> float:
        """The best that up to ``most`` reads at once can get done."""
        best, count = 0.0, float(most)
        while count >= 1:
            best = max(best, self._gets(count))
            count /= 1.5
        return max(1.0, best)

    def _hold_peak(self, size: float, cpus: int) -> int:
        """The peak of preparing; it stays where it was unless that makes a difference."""
        peak, before = self.preparing.peak(size, cpus), min(self._peak, cpus)
        if peak > before > 0:
            gain = self.preparing.throughput(size, peak) / max(1e-12, self.preparing.throughput(size, before))
            self._peak = peak if gain >= _PROMISE else before
        elif peak * _PROMISE <= before or not before:
            self._peak = peak
        return self._peak

    # -- decisions -------------------------------------------------------------------------------------------------

    def _move_limit(self, works: Sequence[float], room: float, peak: int, cpus: int) -> int:
        """Lobster's step 2: what fetching needs of the CPUs, preparing gives up, and takes back when it is short."""
        now, wanted = self._limit.now, min(peak, room)
        goal = max(1, min(cpus, math.floor(wanted + 0.5)))
        if now and now - _LACK <= wanted <= now + _ROOM:
            goal = now
        goal = whole(works, goal, peak)
        if not now:
            return self._limit.put(goal)
        step = max(1, cpus // _STEP)
        return min(cpus, self._limit.move(max(now - step, min(now + step, goal))))

    def _divide_preparing(self, works: Sequence[float], limit: int) -> list[int]:
        """Preparing threads of each rank, so that the rank with the most work for each thread has the least of it."""
        movers = [rank.prepare for rank in self._ranks.values()]
        if len(works) >= limit:
            return [mover.put(1) for mover in movers]
        now = [mover.now for mover in movers]
        settled = all(now) and sum(now) == limit
        if settled and worst(works, now) <= _PROMISE * max(1.0, sum(works) / limit):
            return _moved(movers, now, limit)
        goals = evenly(works, limit)
        if all(now):
            if settled and worst(works, now) <= _PROMISE * worst(works, goals):
                goals = now
            elif not _straggles(works, now):
                goals = [mover.bounded(goal) for goal, mover in zip(goals, movers, strict=True)]
        return _moved(movers, goals, limit)

    def _divide_reads(
        self, loads: Sequence[_Load], targets: Sequence[float], most: int, bound: bool
    ) -> list[int]:
        """Reads at once of each rank. ``bound``: nothing but reading keeps the ranks from being faster. Then there
        are not fewer of them, unless fewer get more done: what storage can give may have become more."""
        movers = [rank.reads for rank in self._ranks.values()]
        if len(loads) >= most:
            return [mover.put(1) for mover in movers]
        needed = [load.reading / target for load, target in zip(loads, targets, strict=True)]
        now = [mover.now for mover in movers]
        total = self._total_reads(sum(needed), len(loads), most)
        if bound and total < sum(now) <= most and self._gets(sum(now)) * _PROMISE >= sum(needed):
            total = sum(now)
        slowdown = self._slowdown(total / _SPARE)
        queues = [max(1.0, load.queue) for load in loads]

        def ratio(rank: int, count: int) -> float:
            return needed[rank] * slowdown / count

        frugal = sum(now) <= max(most if total == most else _WASTE * total / _SPARE, len(loads))
        late = _lateness(ratio, now) if all(now) else []
        if late and frugal and max(late) <= _PROMISE:
            return _moved(movers, now, most)
        goals = proportional(total, queues)
        if max(_lateness(ratio, goals)) > 1 + _TAU:
            goals = straggler_aware(total, queues, ratio, [1 / _SPARE] * len(loads))
        if late:
            enough = max(late) <= _PROMISE * max(max(_lateness(ratio, goals)), 1.0)
            if enough and frugal:
                goals = now
            elif enough or not (len(now) > 1 and max(late) > 1 + _TAU and max(late) > _APART * min(late)):
                goals = [mover.bounded(goal) for goal, mover in zip(goals, movers, strict=True)]
        return _moved(movers, goals, most)

    def _total_reads(self, needed: float, ranks: int, most: int) -> int:
        """Reads at once of all ranks: as few as keep up, and some to spare."""
        count = max(float(ranks), 0.98 * needed * self._slowdown(ranks))
        while count < most and self._gets(count) < 0.98 * needed:
            count *= 1.1
        return max(ranks, min(most, math.ceil(_SPARE * count)))


def _in_step(loads: Sequence[_Load]) -> list[_Load]:
    """All ranks of a job train as fast as the fastest: what the others wait for it is inside of their steps."""
    fastest: dict[int, float] = {}
    for load in loads:
        fastest[load.job] = min(load.train, fastest.get(load.job, math.inf))
    return [load._replace(train=fastest[load.job]) for load in loads]


def _straggles(works: Sequence[float], counts: Sequence[int]) -> bool:
    shares = [work / count for work, count in zip(works, counts, strict=True)]
    return len(shares) > 1 and max(shares) > 1 + _TAU and max(shares) > _APART * min(shares)


def _lateness(ratio: Callable[[int, int], float], counts: Sequence[int]) -> list[float]:
    return [ratio(rank, max(1, count)) for rank, count in enumerate(counts)]


def _moved(movers: Sequence[Mover], goals: Sequence[int], most: int) -> list[int]:
    """Moves there as far as each may at this look, those that give first, and never beyond ``most`` in all."""
    if not all(mover.now for mover in movers):
        return [mover.put(max(1, goal)) for mover, goal in zip(movers, goals, strict=True)]
    wanted = [mover.allowed(max(1, goal)) for mover, goal in zip(movers, goals, strict=True)]
    excess = sum(wanted) - most
    for surplus in (
        [max(0, want - mover.now) for want, mover in zip(wanted, movers, strict=True)],
        [want - 1 for want in wanted],
    ):
        while excess > 0 and any(surplus):
            at = max(range(len(surplus)), key=lambda at: (surplus[at], at))
            surplus[at] -= 1
            wanted[at] -= 1
            excess -= 1
        if excess <= 0:
            break
    return [mover.put(want) for mover, want in zip(movers, wanted, strict=True)]
