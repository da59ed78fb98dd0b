"""What a shared host knows: who is there, what is cached, what is given out, and who waits for what.

Nothing is decided here. The deciders beside it (``joining``, ``drawing``, ``entering``, ``admission``, ``waiting``,
``finishing``, ``filling``, ``budgets``) read it and change it, each its part; ``commons`` puts them together.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.absent import Absent
from headrace.coordinate.events import Answer
from headrace.coordinate.members import Job, Rank
from headrace.coordinate.pool import Pool
from headrace.coordinate.protocol import (
    Join,
)
from headrace.coordinate.shared_split import SharedSplit
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.tickets import Dress, Ticket
from headrace.coordinate.universe import Universe
from headrace.core.addresses import Tier
from headrace.core.bits import test
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.sampling import SAMPLERS, Remaining, Sampler

Ids = NDArray[np.int64]

_SHORTEST_PATIENCE, _LONGEST_PATIENCE = 1.0, 10.0


class State:
    """The books of a shared host."""

    def __init__(self, *, instance: int, nonce: int, span: int, universe: Universe | None = None) -> None:
        """``universe``: samples that are known from the start; several hosts on paper may have one in common."""
        self.instance, self.nonce = instance, nonce
        self.now = 0.0
        self.out: list[Answer] = []
        """Replies to send: the member, and what to tell it."""
        self.universe = Universe() if universe is None else universe
        self.remaining = Remaining(self.universe.size)
        self.jobs: dict[int, Job] = {}
        self.ranks: dict[int, tuple[Job, Rank]] = {}
        """By member."""
        self.absent = Absent()
        self.tickets: dict[int, Ticket] = {}
        self.pool = Pool({Tier.ARENA: span}, self.needs)
        self.shared_split = SharedSplit()
        self.decodes = self.fetches = self.refills = 0
        self.samplers: dict[str, Sampler] = {name: make() for name, make in SAMPLERS.items()}
        self.joining: dict[int, tuple[str, Join, int]] = {}
        self.next_ticket = 1
        self.next_job = 0
        self.waiting: dict[int, list[Ticket]] = defaultdict(list)
        """By sample: the tickets that wait for it."""
        self.orphans: dict[int, list[int]] = {}
        """Blocks that a lost member's workers may still be writing to."""
        self.reads: dict[int, list[tuple[Shelf, Ids]]] = {}
        """Samples that they may still be reading."""
        self.late: set[int] = set()
        """Tickets that somebody has waited for in vain: their job may be paused. Nobody waits for them again."""
        self.stalled = False
        self.span_of_tickets = 0.1
        """Seconds from giving a ticket out to its end, a moving average."""

    def needs(self, shelf: Shelf, ids: Ids) -> NDArray[np.int64]:
        """How many jobs still need each sample in their present epochs and could take it from this shelf."""
        return self.needs_of(shelf, ids, shelf.jobs)

    def needs_of(self, shelf: Shelf, ids: Ids, jobs: set[int]) -> NDArray[np.int64]:
        """The same for some of the jobs."""
        if not jobs or not len(ids):
            return np.zeros(len(ids), np.int64)
        if shelf.form != Form.AUGMENTED:
            return self.remaining.needs(ids, tuple(jobs)).astype(np.int64)
        total = np.zeros(len(ids), np.int64)
        for number in jobs:
            stale = self.jobs[number].stale
            wanted = test(self.remaining.words(number), ids)
            total += wanted if stale is None else wanted & ~test(stale.words, ids)
        return total

    def fresh_needs(self, shelf: Shelf, ids: Ids) -> NDArray[np.int64]:
        """How many jobs could take an augmented sample that is about to be made: nobody has had that one."""
        return self.remaining.needs(ids, tuple(shelf.jobs)).astype(np.int64)

    @staticmethod
    def content(job: Job) -> set[int]:
        """The jobs that have no use for an encoded sample which this job has decoded."""
        decoded = job.shelves.get(Form.DECODED)
        return decoded.jobs if decoded is not None else {job.number}

    def make_ticket(
        self,
        job: Job,
        member: int,
        epoch: int,
        ids: Ids,
        dress: Dress,
        *,
        fill: bool = False,
        stretch: bool = False,
    ) -> Ticket:
        """A new ticket."""
        ticket = Ticket(self.next_ticket, job.number, member, epoch, ids, dress, self.now, fill, stretch)
        self.next_ticket += 1
        self.tickets[ticket.id] = ticket
        return ticket

    def randomness(self, ticket: Ticket) -> tuple[int, int]:
        """Takes the place of seed and epoch: no two tickets ever make the same augmented sample."""
        return self.nonce & ((1 << 63) - 1), ticket.id

    def joined(self, member: int) -> tuple[Job, Rank]:
        """Who speaks; it must have joined."""
        if member not in self.ranks:
            raise ProtocolError("a request before a join")
        return self.ranks[member]

    @property
    def patience(self) -> float:
        """Seconds for which a sample that somebody else prepares is waited for."""
        return min(_LONGEST_PATIENCE, max(_SHORTEST_PATIENCE, 4 * self.span_of_tickets))

    @staticmethod
    def owners(job: Job, sample: int) -> set[int]:
        """The tickets that prepare a sample for a shelf of this job."""
        shelves = (job.shelves.get(form) for form in (Form.DECODED, Form.AUGMENTED))
        return {shelf.owner[sample] for shelf in shelves if shelf is not None and sample in shelf.owner}

    def in_time(self, job: Job, sample: int) -> bool:
        """Whether a sample in preparation is worth waiting for."""
        return not self.owners(job, sample) & self.late
