"""What idle workers prepare for the cache: the help of jobs for each other, and the refill of what was used up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.admission import Admission
from headrace.coordinate.entering import Entering
from headrace.coordinate.finishing import Finishing
from headrace.coordinate.futures import Futures
from headrace.coordinate.members import Job
from headrace.coordinate.messages import Order
from headrace.coordinate.nearby import Nearby
from headrace.coordinate.passing_on import PassingOn
from headrace.coordinate.rank_future import RankFuture
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.coordinate.tickets import Ticket
from headrace.core import random as rnd
from headrace.core.bits import choose, count, test
from headrace.core.forms import Form
from headrace.planning import most_ahead_of_need
from headrace.planning.idling import IDLE

Ids = NDArray[np.int64]

_FILL = 8
"""Samples of a fill: little enough that a worker's own job hardly waits for it."""
_AHEAD = 16
"""One in so many samples of a full cache may be there because it was fetched ahead, at most. (Of a cache for many
batches, ``most_ahead_of_need`` says less.)"""


class Filling:
    """Finds something for idle hands to do."""

    def __init__(
        self,
        state: State,
        entering: Entering,
        admission: Admission,
        finishing: Finishing,
        passing_on: PassingOn,
        futures: Futures,
        nearby: Nearby,
    ) -> None:
        self._state = state
        self._nearby = nearby
        self._passing_on = passing_on
        self._entering = entering
        self._admission = admission
        self._finishing = finishing
        self._futures = futures

    def fill(self, member: int) -> Order | None:
        """Something for an idle worker of a job to prepare into the cache: what most jobs still need, or where it is
        known what the job needs soonest, that."""
        if member not in self._state.ranks:
            return None
        job, _ = self._state.ranks[member]
        shelf = self._shelf_to_fill(job)
        if shelf is None or self._state.pool.worths.eviction.name == "none" or not job.fills:
            return None
        future = self._futures.of(job)
        if self._others_work(parked=future is not None):
            return None
        if future is not None:
            return self._fill_ahead(job, member, shelf, future)
        room = (
            self._state.pool.room(Form.AUGMENTED) if shelf.form == Form.AUGMENTED else self._state.pool.spare
        )
        if room < _FILL * self._state.pool.size_for(shelf):
            return None
        decoded = job.shelves.get(Form.DECODED)
        cached = shelf.cached.words | shelf.pending.words
        if decoded is not None:
            cached = cached | decoded.cached.words | decoded.pending.words
        wanted = job.dataset.bits(self._state.universe.size).words & ~cached
        near = self._nearby.words(job)
        if near is not None:  # (what is not would keep storage from what all wait for)
            wanted = wanted & near
        ids = self._most_needed(shelf, wanted)
        if not len(ids):
            return None
        dress, _ = self._entering.enter(job, ids, may_wait=False)
        ticket = self._state.make_ticket(job, member, -1, ids, dress, fill=True)
        self._entering.read(ticket, np.arange(len(ids)))
        if shelf.form == Form.AUGMENTED:
            self._admission.grant(
                ticket, shelf, np.arange(len(ids)), ids, self._state.fresh_needs(shelf, ids), len(shelf.jobs)
            )
        else:
            self._admission.keep(job, ticket, np.arange(len(ids)))
        if not ticket.blocks:
            self._finishing.close_rows(ticket, np.arange(len(ids)))
            return None
        return self._order(job, ticket, len(ids))

    def _others_work(self, *, parked: bool) -> bool:
        """Whether workers have something to do: then there is no time to spare, only this worker's turn.

        A rank that was given much ahead and has paused since does nothing with it. ``parked``: nor does one with its
        last draw, for as long as it has no memory for the batch. Once it has, it asks for the next one at once.
        """
        early = self._state.now - self._state.patience
        last: dict[int, Ticket] = {}
        for ticket in self._state.tickets.values():
            if ticket.fill or ticket.id in self._state.late or (ticket.stretch and ticket.given < early):
                continue
            if not parked or ticket.member in last:
                return True
            last[ticket.member] = ticket
        # (one that was given just now may be on its way to a worker)
        now, ranks = self._state.now, self._state.ranks
        return any(ticket.given > now - IDLE or ranks[member][1].asks for member, ticket in last.items())

    def _fill_ahead(self, job: Job, member: int, shelf: Shelf, future: RankFuture) -> Order | None:
        """What a rank needs soonest and is not there. What is needed as soon or sooner does not go for it."""
        pool, decoded = self._state.pool, shelf
        size, ranks = pool.size_for(shelf), self._futures.ranks
        # Where there is room, as much as there is; else as much as may be there ahead of need.
        each = pool.budget // size // ranks
        most = min(most_ahead_of_need(each, future.told.batch_size), each // _AHEAD)
        most += max(0, pool.spare) // size // ranks

        def there(indices: Ids) -> NDArray[np.bool_]:
            ids = job.dataset.to_universe(indices)
            return test(decoded.cached.words, ids) | test(decoded.pending.words, ids)

        chosen = future.choose(_FILL, most, there)
        chosen = chosen[~there(chosen)]  # (some were chosen before, and refused, and may have come since)
        if not len(chosen):
            return None
        ids = job.dataset.to_universe(chosen)
        ids = ids[np.argsort(self._futures.due(shelf)[ids], kind="stable")]
        dress, _ = self._entering.enter(job, ids, may_wait=False)
        ticket = self._state.make_ticket(job, member, -1, ids, dress, fill=True)
        rows = np.arange(len(ids))
        self._entering.read(ticket, rows)
        self._admission.keep(job, ticket, rows)
        kept = dress.keep != 0
        future.ahead.refused(job.dataset.to_local(ids[~kept]).tolist())
        count = int(rows[kept][-1]) + 1 if kept.any() else 0
        self._finishing.close_rows(ticket, rows[count:])
        return self._order(job, ticket, count) if count else None

    def _order(self, job: Job, ticket: Ticket, count: int) -> Order:
        """The first rows of a ticket as an order."""
        self._state.refills += count
        seed, key = self._state.randomness(ticket)
        dress = ticket.dress
        grants = [(int(form), offset, size) for offset, (_, form, size) in ticket.blocks.items()]
        return Order(
            id=ticket.id,
            slot_offset=0,
            slot_bytes=0,
            rows=count,
            start=0,
            seed=seed,
            epoch=key,
            step=0,
            indices=job.dataset.to_local(ticket.ids[:count]).tobytes(),
            forms=dress.forms[:count].tobytes(),
            offsets=dress.offsets[:count].tobytes(),
            lengths=dress.lengths[:count].tobytes(),
            keep=dress.keep[:count].tobytes(),
            grants=np.array(grants, np.int64).tobytes(),
            instance=self._state.instance,
            ticket=ticket.id,
            fill=True,
        )

    def _shelf_to_fill(self, job: Job) -> Shelf | None:
        """What others can use augmented is prepared for them. For a job alone, what lasts is worth more."""
        augmented = job.shelves.get(Form.AUGMENTED)
        if augmented is not None and self._passing_on.pays(job):
            return augmented
        return job.shelves.get(Form.DECODED) if self._state.pool.allows(Form.DECODED) else None

    def _most_needed(self, shelf: Shelf, wanted: NDArray[np.uint64]) -> Ids:
        """A few samples that as many jobs as possible still need."""
        best: NDArray[np.uint64] | None = None
        left = sorted(shelf.jobs, key=lambda number: -self._state.remaining.left(number))
        for number in left[:16]:
            words = (wanted if best is None else best) & self._state.remaining.bits(number).words
            if count(words) >= (_FILL if best is not None else 1):
                best = words
        if best is None:
            return np.zeros(0, np.int64)
        return choose(best, _FILL, rnd.key(self._state.nonce, 1, self._state.next_ticket))
