"""Epochs and draws: which rank gets which samples next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.admission import Admission
from headrace.coordinate.entering import Entering
from headrace.coordinate.futures import Futures
from headrace.coordinate.instances import Instances
from headrace.coordinate.members import Epoch, Job, Rank, read_progress
from headrace.coordinate.outlook import Outlook
from headrace.coordinate.protocol import (
    MOST_ASKS,
    MOST_OPEN,
    MOST_ROWS,
    Begin,
    Drawn,
    Over,
    Refused,
)
from headrace.coordinate.state import State
from headrace.coordinate.stretches import Stretches
from headrace.coordinate.tickets import Dress, Ticket
from headrace.coordinate.waiting import Waiting
from headrace.core import random as rnd
from headrace.core.bits import Bits
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.sampling import CacheView

Ids = NDArray[np.int64]

_AUGMENTED = int(Form.AUGMENTED)  # numpy takes long over enumerations
_LOST = "the samples of a step were lost with their host"
_APART = (
    "the ranks of this job go on from states of different steps, so samples would be missed or come twice; let one "
    "rank save its state, and all of them load that one (docs/distributed.md)"
)


class Drawing:
    """Draws for those who ask, as soon as it makes sense."""

    def __init__(
        self,
        state: State,
        outlook: Outlook,
        entering: Entering,
        admission: Admission,
        waiting: Waiting,
        instances: Instances,
        stretches: Stretches,
        futures: Futures,
    ) -> None:
        self._state = state
        self._futures = futures
        self._outlook = outlook
        self._entering = entering
        self._admission = admission
        self._waiting = waiting
        self._instances = instances
        self._stretches = stretches

    def begin(self, member: int, begin: Begin, progress: bytes | None) -> None:
        """A rank begins an epoch, or goes on with one that another host began."""
        job, rank = self._state.joined(member)
        explicit = job.sampling == "uniform"
        if begin.explicit != explicit:
            raise ProtocolError(f"a job with sampling {job.sampling!r} begins an epoch as if it had another")
        if begin.known is not None:
            self._futures.check(job, begin.known)
        seen = Bits.empty(job.dataset.size)
        steps: dict[int, Ids] = {}
        if progress is not None:
            seen, steps = read_progress(progress, job.dataset.size)
            steps = {number: job.dataset.to_universe(indices) for number, indices in steps.items()}
        number, first = rank.rank, begin.step if progress is not None else 0
        rank.asks.clear()
        if progress is not None and job.comes_back(number, begin.epoch, first):
            return
        job.held.pop(number, None)
        if progress is not None and job.is_under_way(number, begin.epoch):
            # The others went on without what this rank knows: samples would be missed, or come twice.
            self._state.out.append((member, Refused(_LOST)))
            return
        # (a rank that has had no step, and yet knows of samples that were given out, has loaded a state)
        resumed = progress if progress is not None and not steps and not first and not explicit else None
        before = job.epoch_of(begin.epoch)
        if (
            before is not None
            and number not in before.cursors
            and resumed
            and before.resumed not in (None, resumed)
        ):
            self._state.out.append((member, Refused(_APART)))
            return
        given = seen.count() if not explicit else 0
        taken_over = progress is not None and job.world_size > 1 and not explicit
        new = job.begin(
            number, begin.epoch, explicit=explicit, given=given, step=first, taken_over=taken_over
        )
        epoch = rank.epoch
        assert epoch is not None
        epoch.resumed = epoch.resumed or resumed
        if new:
            self._begin_epoch(job)
            for ids in epoch.steps.values():
                self._state.remaining.take(job.number, ids)
        if progress is not None and not explicit:
            epoch.steps.update(steps)
            if epoch is job.epoch:  # else all of it was drawn before, and another rank knows the rest
                self._merge_progress(job, epoch, seen, first)
        self._futures.begin(job, begin.epoch, begin.known)
        self.serve_all(job)

    def _begin_epoch(self, job: Job) -> None:
        self._instances.take_no_more(job)
        for sampler in self._state.samplers.values():
            sampler.forget(job.number)
        self._state.remaining.begin(job.number, job.dataset.bits(self._state.universe.size))
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is not None and job.stale is not None:
            job.stale = shelf.cached | shelf.pending
        self._state.pool.epoch()

    def _merge_progress(self, job: Job, epoch: Epoch, seen: Bits, step: int) -> None:
        """What one rank knows of an epoch that another host began. The rank that is farthest knows all of it."""
        self._state.remaining.take(job.number, job.dataset.to_universe(seen.ids()))
        epoch.base = max(epoch.base, step)
        epoch.left = self._state.remaining.left(job.number)
        epoch.given = job.dataset.size - epoch.left

    def check(self, member: int, indices: bytes, most: int) -> None:
        """Whether a rank may ask for this."""
        job, rank = self._state.joined(member)
        if rank.epoch is None:
            raise ProtocolError("a draw was asked for before an epoch began")
        if len(rank.asks) >= MOST_ASKS or rank.open >= MOST_OPEN:
            raise ProtocolError(f"{len(rank.asks)} draws asked for and {rank.open} not finished")
        # All of it is looked at now: it may have to wait, and then nobody is there to be told what is wrong.
        if rank.epoch.explicit:
            if len(indices) % 8 or not 0 < len(indices) // 8 <= MOST_ROWS:
                raise ProtocolError(f"{len(indices)} bytes of indices; {MOST_ROWS} samples are the most")
            job.dataset.to_universe(np.frombuffer(indices, np.int64))
        elif indices:
            raise ProtocolError("indices from a job that does not draw for itself")

    def ask(self, member: int, indices: bytes, most: int) -> None:
        """A rank asks for a batch, or for some at once."""
        job, rank = self._state.joined(member)
        rank.heard = self._state.now
        rank.asks_again(self._state.now)
        rank.asks.append((indices, most))
        self._serve(job, rank)

    def serve_all(self, job: Job) -> None:
        for rank in job.ranks.values():
            self._serve(job, rank)

    def _serve(self, job: Job, rank: Rank) -> None:
        epoch = rank.epoch
        while rank.asks and epoch is not None and not epoch.awaited:
            if self._unsure(job):
                self._state.stalled = True  # for a moment: memory set aside for guessed sizes is memory lost
                return
            if epoch.explicit:
                self._serve_explicit(job, rank, epoch, *rank.asks.popleft())
                rank.dealt += 1
                continue
            step = epoch.cursors[rank.rank]
            if step not in epoch.steps:
                if step != epoch.base + epoch.drawn:
                    rank.asks.clear()
                    self._state.out.append((rank.member, Refused(_LOST)))
                    return
                count = job.next_count(epoch) if epoch is job.epoch else 0
                if not count:
                    rank.asks.popleft()
                    self._state.out.append((rank.member, Over(epoch.number)))
                    continue
                if self._outlook.still_waits(job):
                    self._state.stalled = True
                    return
                view = self._outlook.view(job)
                batches = self._stretches.batches(job, rank, epoch, view, rank.asks[0][1])
                if batches:
                    rank.asks.popleft()
                    rank.dealt += batches
                    self._give_stretch(job, rank, epoch, view, batches)
                    continue
                if self._outlook.should_wait(job, rank, view, count):
                    self._state.stalled = True
                    return
                self._draw(job, epoch, view, count)
            _, most = rank.asks.popleft()
            rank.dealt += 1
            ids = job.share(epoch, rank.rank, step)
            of_all_ranks = epoch.steps[step] if job.world_size > 1 else None
            epoch.cursors[rank.rank] = step + 1
            epoch.taken_by_all(job.world_size)
            given = epoch.given + self._cut(job, epoch, step)
            self._give(job, rank, epoch, step, ids, given, job.is_last(epoch, step), of_all_ranks, most)

    def _unsure(self, job: Job) -> bool:
        """Whether sizes are about to be known. Of a job that is paused they are not."""
        late = self._state.now - self._state.patience
        return any(
            shelf.unsure and all(self._state.tickets[ticket].given >= late for ticket in shelf.owner.values())
            for shelf in job.shelves.values()
        )

    @staticmethod
    def _cut(job: Job, epoch: Epoch, step: int) -> int:
        """Samples given out by the end of a step, since the epoch's base."""
        return job.geometry.cut(epoch.left, step - epoch.base)[1] if step >= epoch.base else 0

    def _serve_explicit(self, job: Job, rank: Rank, epoch: Epoch, indices: bytes, most: int) -> None:
        named = np.frombuffer(indices, np.int64)
        ids = job.dataset.to_universe(named)
        self._state.remaining.take(job.number, ids)
        self._futures.use(job, named)
        step = epoch.cursors[rank.rank]
        epoch.cursors[rank.rank] = step + 1
        self._give(job, rank, epoch, step, ids, 0, False, None, most)

    def _give_stretch(self, job: Job, rank: Rank, epoch: Epoch, view: CacheView, batches: int) -> None:
        """Draw several batches at once, of which all rows are only read, and tell the rank."""
        first, step = epoch.drawn, epoch.cursors[rank.rank]
        start = job.geometry.cut(epoch.left, first)[0]
        stop = job.geometry.cut(epoch.left, first + batches - 1)[1]
        ids = self._choose(job, epoch, view, stop - start)
        epoch.drawn += batches
        epoch.cursors[rank.rank] = step + batches
        dress, _ = self._entering.enter(job, ids, may_wait=False)
        ticket = self._state.make_ticket(job, rank.member, epoch.number, ids, dress, stretch=True)
        self._state.shared_split.give(len(ids))
        self._state.pool.tick(len(ids))
        rank.open += 1
        self._instances.take(job, epoch, ids[dress.forms == _AUGMENTED])
        self._entering.read(ticket, np.arange(len(ids)))
        rank.count(dress.forms, self._state.now)
        size = job.geometry.batch_size
        self._tell(
            job,
            rank,
            ticket,
            step,
            given=epoch.given + stop,
            last=job.is_last(epoch, step + batches - 1),
            stretch=[size] * (batches - 1) + [len(ids) - size * (batches - 1)],
            early=self._stretches.early(job, batches),
        )

    def _draw(self, job: Job, epoch: Epoch, view: CacheView, count: int) -> None:
        """Draw the next step of a job."""
        epoch.steps[epoch.base + epoch.drawn] = self._choose(job, epoch, view, count)
        epoch.drawn += 1

    def _choose(self, job: Job, epoch: Epoch, view: CacheView, count: int) -> Ids:
        job.draws += 1
        key = rnd.key(self._state.nonce, job.number, epoch.number, job.draws)
        sampler = self._state.samplers[job.sampling]
        ids = sampler.draw(self._state.remaining, job.number, count, view, key)
        if len(ids) != count:
            raise ProtocolError(f"{count} samples were to be drawn and {len(ids)} were left")
        return ids

    def _give(
        self,
        job: Job,
        rank: Rank,
        epoch: Epoch,
        step: int,
        ids: Ids,
        given: int,
        last: bool,
        of_all_ranks: Ids | None,
        most: int,
    ) -> None:
        """Make a ticket of a rank's samples, and tell it."""
        dress, waits = self._entering.enter(job, ids, may_wait=not (epoch.explicit or job.collates))
        alike = not waits.any() and int(dress.forms.min()) == int(dress.forms.max())
        if not epoch.explicit and not alike:
            # Rows that enter alike lie together, those that wait at the end: they make orders of their own.
            rank_of = np.where(waits, 4, 3 - dress.forms.astype(np.int64))
            order = np.argsort(rank_of, kind="stable")
            ids, waits = ids[order], waits[order]
            dress = Dress(dress.forms[order], dress.offsets[order], dress.lengths[order], dress.keep)
        ticket = self._state.make_ticket(job, rank.member, epoch.number, ids, dress)
        self._state.shared_split.give(len(ids))
        self._state.pool.tick(len(ids))
        rank.open += 1
        if waits.any():
            ticket.waits = int(np.argmax(waits))
            # What is cached of them in a lesser form is not held, so it may go before they are told.
            dress.forms[waits], dress.offsets[waits], dress.lengths[waits] = 0, -1, 0
            for row in np.flatnonzero(waits).tolist():
                sample = int(ids[row])
                ticket.waiting.setdefault(sample, []).append(row)
            ticket.hopes = self._waiting.hopes(job, ids[waits])
            for sample in ticket.waiting:
                self._state.waiting[sample].append(ticket)
        self._instances.take(
            job, epoch, ids[: ticket.waits][dress.forms[: ticket.waits] == int(Form.AUGMENTED)]
        )
        self._entering.read(ticket, np.arange(ticket.waits))
        self._admission.keep(job, ticket, np.flatnonzero(~waits))
        rank.count(dress.forms[: ticket.waits], self._state.now)
        ticket.stretch = self._stretches.is_one(rank, ticket, most)
        stretch = [len(ids)] if ticket.stretch else None
        self._tell(
            job, rank, ticket, step, given=given, last=last, of_all_ranks=of_all_ranks, stretch=stretch
        )

    def _tell(
        self,
        job: Job,
        rank: Rank,
        ticket: Ticket,
        step: int,
        *,
        given: int,
        last: bool,
        of_all_ranks: Ids | None = None,
        stretch: list[int] | None = None,
        early: int = 0,
    ) -> None:
        """Tell a rank what it is given."""
        seed, key = self._state.randomness(ticket)
        dress = ticket.dress
        # (What is read of a job that is cached whole takes no room from others, however long it is held.)
        alone = job.sampling == "uniform" or (stretch is not None and self._stretches.is_whole(job))
        self._state.out.append(
            (
                rank.member,
                Drawn(
                    ticket=ticket.id,
                    epoch=ticket.epoch,
                    step=step,
                    seed=seed,
                    key=key,
                    indices=job.dataset.to_local(ticket.ids).tobytes(),
                    forms=dress.forms.tobytes(),
                    offsets=dress.offsets.tobytes(),
                    lengths=dress.lengths.tobytes(),
                    keep=dress.keep.tobytes(),
                    grants=ticket.grants(),
                    waits=ticket.waits,
                    given=given,
                    last=last,
                    of_all_ranks=b""
                    if of_all_ranks is None
                    else job.dataset.to_local(of_all_ranks).tobytes(),
                    company=0 if alone else len(self._outlook.peers(job)),
                    stretch=stretch or [],
                    early=early,
                ),
            )
        )

    def go_on(self) -> None:
        """Try again those whose draws had to wait."""
        if self._state.stalled:
            self._state.stalled = False
            for job in list(self._state.jobs.values()):
                self.serve_all(job)
