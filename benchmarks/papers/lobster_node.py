"""One node of Lobster's on paper: eight GPUs in lockstep, threads that read and threads that prepare, and a memory.

Each GPU has a queue of rows to be read. With a fixed division, as DALI has it, three threads read for all of them,
the oldest row first. With headrace's controller (``StaffController``), each GPU has as many readers as it says,
looked at every few steps. What was read is prepared by as many threads as there are left, or as the controller says.
The memory is a page cache that drops what was used least recently, or one that keeps what is needed soonest
(``Memory``, the simulator's, which goes by the product's rules) and has idle readers fetch ahead.

Reading a sample takes a time with a heavy tail; what is in memory takes none. A step begins when every GPU has its
batch, and takes the same time always.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headrace.planning.threads import Decision, Node, PerLevel, RankNeeds, StaffController
from headrace.sampling import Geometry, KnownOrder, OrderedEpoch, epoch_order
from headrace.simulate.memory import Memory, Reads
from headrace.simulate.pages import RecentPages

Call = Callable[[], None]
LATE = 0.1


@dataclass(frozen=True)
class Setup:
    """What there is. Seconds; those of reading and preparing are of one sample."""

    samples: int
    room: int
    """Samples that the memory holds."""
    train: float = 0.045
    read: float = 1e-3
    prepare: float = 8e-3
    tail: float = 1.2
    """Of reading: the standard deviation of the logarithm."""
    ranks: int = 8
    batch: int = 32
    cpus: int = 128
    readers: int = 3
    most_reads: int = 32
    ahead: int = 2
    """Batches that each GPU has under way."""
    look: int = 8
    """Steps between looks of the controller."""
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """What came of it, over the epochs that count."""

    step: float
    """Seconds of a step."""
    hits: float
    """Samples that lay in memory when they were asked for."""
    reads: float
    """Samples read from storage, of those that were used."""
    readers: float
    """Threads that might read, on average."""
    imbalanced: float
    """Steps in which the data of some GPU came later than that of another by more than a tenth of the step."""


class PaperNode:
    """The node, on a clock of its own."""

    def __init__(self, setup: Setup, *, threads: bool, eviction: bool) -> None:
        """``threads``: the controller divides them. ``eviction``: what is needed last goes."""
        self.setup = setup
        self.reads = Reads()
        self._dice = random.Random(setup.seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Call]] = []
        self._serial = 0
        self._orders: dict[int, np.ndarray] = {}
        self._known = KnownOrder(
            setup.samples, Geometry(setup.batch, 0, setup.ranks, True), setup.seed, self._order
        )
        self._recent = RecentPages(setup.room)
        ranks = range(setup.ranks)
        self._memory = Memory(self._known, [(self, ranks)], setup.room, ahead=True) if eviction else None
        self._controller = StaffController() if threads else None
        self._budgets = [0] * setup.ranks
        self._preparers = setup.cpus - setup.readers
        self._asking = self._step_asked = 0
        self._queues: list[deque[tuple[int, Call]]] = [deque() for _ in ranks]
        """Rows to be read for each GPU: the step that they are for, and whom to tell."""
        self._early: deque[Call] = deque()
        """Samples to be fetched ahead, by readers that have nothing else to do."""
        self._reading = [0] * setup.ranks
        self._reading_early = 0
        self._to_prepare: deque[Call] = deque()
        self._preparing = 0
        self._left: list[dict[int, int]] = [{} for _ in ranks]
        self._stood = [0.0] * setup.ranks
        """When the batch of the present step stood, or it was asked for, where that was later."""
        self._late: list[bool] = []
        """For each step: whether it was imbalanced."""
        self._step = 0
        self._ended = 0.0
        self._last = 0
        self._read_time = self._read_count = 0.0
        self._waited = [0.0] * setup.ranks
        self._rows = [[0, 0] for _ in ranks]
        self._reader_steps = 0.0

    # -- the clock ------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, call: Call) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self._now + seconds, self._serial, call))

    def run(self, warmup: int, epochs: int) -> Found:
        """Go through the epochs; those after the first ``warmup`` count."""
        steps = self._known.steps
        self._draws = [self._all_draws(rank) for rank in range(self.setup.ranks)]
        self._last = steps * (warmup + epochs)
        begun: tuple[float, Reads, float] | None = None
        for rank in range(self.setup.ranks):
            for step in range(self.setup.ahead):
                self._ask(rank, step)
        while self._events and self._step < self._last:
            self._now, _, call = heapq.heappop(self._events)
            call()
            if begun is None and self._step >= steps * warmup:
                begun = self._now, Reads(**vars(self.reads)), self._reader_steps
        assert begun is not None
        began, before, readers = begun
        asked = self.reads.asked - before.asked
        return Found(
            step=(self._now - began) / (steps * epochs),
            hits=(self.reads.found - before.found) / asked,
            reads=(self.reads.stored - before.stored) / asked,
            readers=(self._reader_steps - readers) / (steps * epochs),
            imbalanced=sum(self._late[-steps * epochs :]) / (steps * epochs),
        )

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders[epoch] = epoch_order(self.setup.samples, self.setup.seed, epoch)
        return self._orders[epoch]

    def _all_draws(self, rank: int) -> Any:
        setup, epoch = self.setup, 0
        while True:
            geometry = Geometry(setup.batch, rank, setup.ranks, True)
            draws = OrderedEpoch(self._order(epoch), geometry, epoch=epoch)
            while (drawn := draws.draw()) is not None:
                yield drawn
            epoch += 1

    # -- rows -----------------------------------------------------------------------------------------------------

    def _ask(self, rank: int, step: int) -> None:
        """A GPU's next batch is drawn: what is not in memory has to be read."""
        drawn = next(self._draws[rank])
        self._left[rank][step] = len(drawn.indices)
        for first in range(0, len(drawn.indices), 4):
            some = drawn.indices[first : first + 4]
            self._asking = rank
            self._step_asked = step
            there = self.reads.stored
            came = partial(self._came, rank, step, len(some))
            if self._memory is not None:
                self._memory.fetch(0, drawn.epoch, drawn.step, some, 1, came)
            else:
                missing = self._recent.read(some)
                self.reads.asked += len(some)
                self.reads.found += len(some) - missing
                self.reads.stored += missing
                self.bring(missing, 0, 1, True, came) if missing else came()
            missed = int(self.reads.stored - there)
            self._rows[rank][0] += len(some) - min(missed, len(some))
            self._rows[rank][1] += min(missed, len(some))

    def bring(self, stored: int, peers: int, at_once: int, urgent: bool, call: Call) -> Call | None:
        """See ``Machine``: each sample is a row in a queue."""
        left, rank, step = stored, self._asking, self._step_asked

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                call()

        def hurry() -> None:
            mine = [one for one in self._early if one is done]
            if mine:
                self._early = deque(one for one in self._early if one is not done)
                self._queues[self._asking].extendleft((self._step_asked, one) for one in mine)
                self._read()

        if urgent:
            self._queues[rank].extend([(step, done)] * stored)
        else:
            self._early.extend([done] * stored)
        self._read()
        return None if urgent else hurry

    def _read(self) -> None:
        """Readers that are free take what is due."""
        while True:
            rank = self._next_to_read()
            if rank is None:
                break
            self._reading[rank] += 1
            self._begin_read(partial(self._was_read, rank, self._queues[rank].popleft()[1]))
        while self._early and sum(self._reading) + self._reading_early < self._most_readers:
            self._reading_early += 1
            self._begin_read(partial(self._was_read_early, self._early.popleft()))

    @property
    def _most_readers(self) -> int:
        return self.setup.readers if self._controller is None else sum(self._budgets) or self.setup.readers

    def _next_to_read(self) -> int | None:
        waiting = [rank for rank, queue in enumerate(self._queues) if queue]
        if self._controller is not None and any(self._budgets):
            waiting = [rank for rank in waiting if self._reading[rank] < self._budgets[rank]]
        elif sum(self._reading) + self._reading_early >= self._most_readers:
            return None
        return min(waiting, key=lambda rank: (self._queues[rank][0][0], rank), default=None)

    def _begin_read(self, call: Call) -> None:
        tail = self.setup.tail
        seconds = self.setup.read * math.exp(self._dice.gauss(-tail * tail / 2, tail))
        self._read_time += seconds
        self._read_count += 1
        self._after(seconds, call)

    def _was_read(self, rank: int, done: Call) -> None:
        self._reading[rank] -= 1
        done()
        self._read()

    def _was_read_early(self, done: Call) -> None:
        self._reading_early -= 1
        done()
        self._read()

    def _came(self, rank: int, step: int, rows: int) -> None:
        for _ in range(rows):
            self._to_prepare.append(partial(self._prepared, rank, step))
        self._prepare()

    def _prepare(self) -> None:
        while self._to_prepare and self._preparing < self._preparers:
            self._preparing += 1
            self._after(
                self.setup.prepare * math.exp(self._dice.gauss(-0.02, 0.2)), self._to_prepare.popleft()
            )

    def _prepared(self, rank: int, step: int) -> None:
        self._preparing -= 1
        left = self._left[rank]
        left[step] -= 1
        if not left[step]:
            if step == self._step:
                self._stood[rank] = max(self._now, self._ended)
            self._try_step()
        self._prepare()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _try_step(self) -> None:
        """The next step begins when the one before is over and every GPU has its batch."""
        if self._now < self._ended or any(left.get(self._step, 1) for left in self._left):
            return
        for rank in range(self.setup.ranks):
            del self._left[rank][self._step]
            self._waited[rank] += max(0.0, self._stood[rank] - self._ended)
        stood = [max(one, self._ended) for one in self._stood]
        self._late.append(max(stood) - min(stood) > LATE * self.setup.train)
        self._step += 1
        self._reader_steps += self._most_readers
        self._ended = self._now + self.setup.train
        self._after(self.setup.train, self._try_step)
        if self._controller is not None and self._step % self.setup.look == 0:
            self._look(self._controller)
        for rank in range(self.setup.ranks):
            self._ask(rank, self._step + self.setup.ahead - 1)

    def _look(self, controller: StaffController) -> None:
        """Divide the threads anew."""
        setup = self.setup
        read = self._read_time / self._read_count if self._read_count else setup.read
        needs = {
            rank: RankNeeds(
                waiting=len(self._queues[rank]),
                sample_bytes=105_000,
                read_seconds=read,
                read_cpu=0.05,
                prepare_cpu=setup.prepare,
                batch=setup.batch,
                train_seconds=setup.train,
                waited=self._waited[rank] / setup.look,
                rows=PerLevel(own=self._rows[rank][0], storage=self._rows[rank][1]),
            )
            for rank in range(setup.ranks)
        }
        decision: Decision = controller.decide(needs, Node(setup.cpus, setup.ranks, setup.most_reads))
        self._budgets = [decision.budgets[rank].reads for rank in range(setup.ranks)]
        self._preparers = decision.prepare_limit
        self._read_time = self._read_count = 0.0
        self._waited = [0.0] * setup.ranks
        self._rows = [[0, 0] for _ in range(setup.ranks)]
