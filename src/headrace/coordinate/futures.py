"""What the jobs of a shared host will use, where they know it: so what goes, and what is fetched ahead.

A rank that draws for itself tells with each epoch what its order follows from, and the host works the order out. What
always holds:

- The next use of a sample, on a shelf, is the first over all ranks that use the shelf, of this epoch and those after.
- It is gone by only while it is known of every job that has begun an epoch, and the policy is the automatic one. Else
  the pool goes by its usual policy.
- What a rank draws is compared with what was foreseen. Where it is another batch, the rank's order is not known until
  it begins another epoch. Where it is a later one, what lies between was used elsewhere.
- A rank that begins any other epoch than the next one, or at a position, or in another order, is foreseen anew. One
  that is gone is not counted from then on.
- It says what is kept and fetched ahead. Who gets which samples does not depend on it.

Of jobs for which the host draws, what was drawn and not delivered is known, too. It is being read or made, and cannot
go in any case; so nothing is foreseen for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.foreseen import Foreseen
from headrace.coordinate.members import Job
from headrace.coordinate.protocol import Known
from headrace.coordinate.rank_future import Dues, RankFuture
from headrace.coordinate.runs import Line, Run, soonest
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.core.dues import FAR
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.sampling import Geometry, epoch_order, epochs_worth_knowing

Ids = NDArray[np.int64]

_MOST_RANKS = 64
"""Ranks that are followed: for each sample that is drawn, the next use by each of them is looked up."""
_MOST_SAMPLES = 1 << 22
"""Of a dataset: others wait while an order is worked out, about a second for that many."""
_MOST_BYTES = 2 << 30
"""Memory for what is foreseen."""
_ORDERS = 3
"""Orders of epochs that are kept: other ranks of a job are about to need the same."""


class Futures:
    """Follows all ranks whose order is known, and tells the pool."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._futures: dict[int, RankFuture] = {}
        """By the number of the job. (To a host, each rank that draws for itself is a job.)"""
        self._run_of: dict[int, Run] = {}
        self._runs: dict[tuple[object, ...], Run] = {}
        self._line: Line | None = None
        self._foreseen: Foreseen | None = None
        self._dues: dict[frozenset[int], Dues] = {}
        """By those who use a shelf: when each sample of the universe is needed next."""
        self._wanted = self._mixed = False
        """Whether all is known that has to be, and whether encoded samples compete with decoded ones for room unless
        they have parts of their own."""
        self._orders: dict[tuple[int, int, bool, int], NDArray[np.uint32]] = {}

    @property
    def on(self) -> bool:
        """Whether the pool goes by what is foreseen."""
        return self._foreseen is not None

    def newcomers(self, shelf: Shelf, ids: Ids, *, ahead: bool) -> Ids | None:
        """How soon samples are needed that are about to be cached; None: nobody knows. See ``Foreseen``."""
        return None if self._foreseen is None else self._foreseen.newcomers(shelf, ids, ahead=ahead)

    def of(self, job: Job) -> RankFuture | None:
        """What a job will use, if the pool goes by it."""
        return self._futures.get(job.number) if self.on else None

    @property
    def ranks(self) -> int:
        """Ranks that are followed."""
        return len(self._futures)

    # -- what happens ------------------------------------------------------------------------------------------

    @staticmethod
    def check(job: Job, known: Known) -> None:
        """Whether a rank can have such an order."""
        if job.sampling != "uniform" or known.rank >= known.world_size or known.position > job.dataset.size:
            raise ProtocolError(f"an order for rank {known.rank} of {known.world_size} at {known.position}")

    def begin(self, job: Job, epoch: int, known: Known | None) -> None:
        """A job begins an epoch. ``known``: what its order follows from."""
        future = self._futures.get(job.number)
        if future is not None and known is not None and future.goes_on(known, epoch):
            self._changed(job.number, future.begin(self._epochs(job, known)))
            return
        self._forget(job.number)
        if known is not None and self._can_be_known(job, epoch, known):
            order_of = partial(self._order, job.dataset.size, known.seed, known.shuffle)
            future = RankFuture(known, job.dataset, epoch, self._epochs(job, known), order_of)
            self._futures[job.number] = future
            self._join_run(job.number, future)
        self._lay_out()

    def use(self, job: Job, indices: Ids) -> None:
        """A batch of a job is drawn, in the numbers of its dataset."""
        future = self._futures.get(job.number)
        if future is None:
            return
        changed = future.use(indices)
        if changed is None:
            self._forget(job.number)
            self._lay_out()
            return
        if self._line is not None:
            self._line.draw(self._run_of[job.number], len(indices))
        if (self._line is not None and self._line.is_off) or (self._wanted and self._apart != self.on):
            self._lay_out()
        else:
            self._changed(job.number, changed)

    def come(self) -> None:
        """There may be samples that were not known."""
        if self.on and any(len(due) < self._state.universe.size for due in self._dues.values()):
            self._lay_out()

    def leave(self, number: int) -> None:
        """A job is gone."""
        self._forget(number)
        self._lay_out()

    # -- runs --------------------------------------------------------------------------------------------------

    def _join_run(self, number: int, future: RankFuture) -> None:
        told, again = future.told, 0
        terms = (told.seed, told.shuffle, told.batch_size, told.world_size, told.drop_last)
        while True:
            run = self._runs.setdefault((future.dataset.key, *terms, again), Run())
            if not run.has(told.rank):
                break
            again += 1  # another job with the same order
        run.ranks[number] = future
        self._run_of[number] = run

    def _forget(self, number: int) -> None:
        if self._futures.pop(number, None) is not None:
            run = self._run_of.pop(number)
            del run.ranks[number]
            self._runs = {key: other for key, other in self._runs.items() if other.ranks}

    def _can_be_known(self, job: Job, epoch: int, known: Known) -> bool:
        size = job.dataset.size
        steps = Geometry(known.batch_size, known.rank, known.world_size, known.drop_last).steps(size)
        if (
            not steps
            or size > _MOST_SAMPLES
            or len(self._futures) >= _MOST_RANKS
            or not self._state.pool.budget
        ):
            return False
        if epoch * steps >= 1 << 52:  # (times are counted in floats)
            return False
        nbytes = sum(_bytes(future.dataset.size, future.told) for future in self._futures.values())
        return nbytes + _bytes(size, known) + 4 * self._state.universe.size <= _MOST_BYTES

    def _epochs(self, job: Job, known: Known) -> int:
        """How many epochs are worth knowing: more where the ranks here use few of the samples in each."""
        others = (
            future.told.world_size
            for number, future in self._futures.items()
            if future.dataset is job.dataset and number != job.number
        )
        share = 1 / known.world_size + sum(1 / world_size for world_size in others)
        decoded = job.shelves.get(Form.DECODED)
        part = 0.0
        if decoded is not None and decoded.known:
            part = self._state.pool.budget / decoded.expected / job.dataset.size
        return epochs_worth_knowing(min(1.0, share), min(1.0, part))

    def _order(self, size: int, seed: int, shuffle: bool, epoch: int) -> NDArray[np.uint32]:
        key = size, seed, shuffle, epoch
        order = self._orders.pop(key, None)
        if order is None:
            order = epoch_order(size, seed, epoch, shuffle).astype(np.uint32)
        self._orders[key] = order
        while len(self._orders) > _ORDERS:
            del self._orders[next(iter(self._orders))]
        return order

    # -- what the pool is told ---------------------------------------------------------------------------------

    @property
    def _apart(self) -> bool:
        """Whether all that competes for room is of one form."""
        return not self._mixed or self._state.pool.limited

    def _lay_out(self) -> None:
        """Who uses what has changed at large: look at all of it."""
        state = self._state
        begun = [job for job in state.jobs.values() if job.epoch is not None]
        self._wanted = (
            bool(begun)
            and all(job.number in self._futures for job in begun)
            and state.pool.worths.usual.name == "auto"
        )
        self._mixed = any(
            Form.ENCODED in job.shelves and job.shelves[Form.ENCODED].jobs - state.content(job)
            for job in begun
        )
        self._dues.clear()
        if not self._wanted or not self._apart:
            self._line = None
            if self._foreseen is not None:
                self._foreseen = None
                state.pool.foresee(None)
            return
        sizes = {id(future.dataset): future.dataset.size for future in self._futures.values()}
        self._line = Line(self._runs.values(), sum(sizes.values()))
        self._foreseen = Foreseen(self.due, self._line.grain, sized=True)
        state.pool.foresee(self._foreseen)

    def due(self, shelf: Shelf) -> Dues:
        """When each sample is needed next by those who use a shelf."""
        users = self._users(shelf)
        due = self._dues.get(users)
        if due is None:
            due = self._dues[users] = self._soonest(users, np.arange(self._state.universe.size))
        return due

    def _users(self, shelf: Shelf) -> frozenset[int]:
        return frozenset(shelf.jobs & self._futures.keys())

    def _soonest(self, users: Iterable[int], ids: Ids) -> Dues:
        # Where all of them are of one run, a sample is needed once an epoch at most, and in which step of it makes no
        # difference to how much is read. By epochs, what is read is spread evenly, and little is exchanged.
        runs: dict[Run, list[RankFuture]] = {}
        for number in users:
            runs.setdefault(self._run_of[number], []).append(self._futures[number])
        local: dict[str, tuple[Ids, Ids | None]] = {}
        times = []
        for run, futures in runs.items():
            dataset = futures[0].dataset
            if dataset.key not in local:
                indices = dataset.to_local(ids)
                there = np.flatnonzero(indices >= 0)
                local[dataset.key] = (indices, None) if len(there) == len(ids) else (indices[there], there)
            indices, places = local[dataset.key]
            found = run.times(futures, indices, by_epochs=len(runs) == 1)
            if places is not None:
                whole = np.full(len(ids), FAR, np.int32)
                whole[places] = found
                found = whole
            times.append(found)
        return soonest(times, len(ids))

    def _changed(self, number: int, indices: Ids) -> None:
        """Samples of a rank's dataset are needed at another time than was known."""
        if not self.on or not len(indices):
            return
        ids = self._futures[number].dataset.to_universe(indices)
        for users, due in self._dues.items():
            if number in users:
                due[ids] = self._soonest(users, ids)
        pool = self._state.pool
        for shelf in pool.shelves.values():
            if number in shelf.jobs:
                pool.may_go(shelf, ids)


def _bytes(size: int, known: Known) -> int:
    """Memory for a rank: a time of each sample, and two epochs of what it uses."""
    return 4 * size + 2 * 12 * size // known.world_size
