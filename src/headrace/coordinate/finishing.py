"""Rows that are done with: what was made of them is stored, what they held is free, and who waited is told."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.admission import Admission
from headrace.coordinate.members import Job
from headrace.coordinate.protocol import (
    Finished,
)
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.state import State
from headrace.coordinate.tickets import Ticket
from headrace.coordinate.waiting import Waiting
from headrace.core.bits import drop
from headrace.core.errors import ProtocolError
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import Spent

Ids = NDArray[np.int64]
_NONE: Ids = np.empty(0, np.int64)


class Finishing:
    """Takes in what became of rows."""

    def __init__(self, state: State, admission: Admission, waiting: Waiting) -> None:
        self._state = state
        self._admission = admission
        self._waiting = waiting

    def finished(self, member: int, event: Finished) -> None:
        """Rows of a ticket are prepared, or given up."""
        ticket = self._state.tickets.get(event.ticket)
        if ticket is None or ticket.member != member:
            return
        stop = event.first + event.count
        if stop > len(ticket.ids):
            raise ProtocolError(f"rows up to {stop} of a draw of {len(ticket.ids)}")
        job = self._state.jobs[ticket.job]
        closing = event.first + np.flatnonzero(ticket.open[event.first : stop])
        mine = {offset for offset, (row, _, _) in ticket.blocks.items() if event.first <= row < stop}
        kept = self._kept(job, ticket, event, mine) if event.published and len(closing) else {}
        # All of it is true; from here on things change.
        self._count(job, event.spent, event.count)
        for form, wanted in zip(CACHEABLE, event.wanted, strict=True):
            if wanted and form in job.shelves:
                job.shelves[form].too_small(min(wanted, 1 << 32))
        fresh: dict[Form, list[int]] = {}
        if kept:
            left = self._left_to_take(job, ticket, event.first, stop)
            ids = ticket.ids[event.first : stop].tolist()
            for form, extents in kept.items():
                rows = [row - event.first for row in extents]
                offsets, sizes = zip(*extents.values(), strict=True)
                for offset in offsets:
                    del ticket.blocks[offset]
                mine.difference_update(offsets)
                fresh[form] = [ids[row] for row in rows]
                self._state.pool.store(
                    job.shelves[form], fresh[form], offsets, sizes, [left[row] for row in rows]
                )
        for offset in mine:
            del ticket.blocks[offset]
        self._state.pool.give_back(mine)
        self._admission.drop_encoded(job, fresh.get(Form.DECODED, []))
        used = self.close_rows(ticket, closing)
        if Form.AUGMENTED in fresh:
            used = np.concatenate([used, np.array(fresh[Form.AUGMENTED], np.int64)])
        self.drop_used_up(job.shelves.get(Form.AUGMENTED), used)
        self._state.pool.fit()

    def over(self, member: int, tickets: bytes, spent: Spent | None) -> None:
        """Stretches of a rank are over: their rows were read, and nothing was made of them for others."""
        if len(tickets) % 8:
            raise ProtocolError("tickets are cut off")
        state = self._state
        job, _ = state.joined(member)
        found = [state.tickets.get(number) for number in np.frombuffer(tickets, np.int64).tolist()]
        mine = [ticket for ticket in found if ticket is not None and ticket.member == member]
        if not all(ticket.stretch for ticket in mine):
            raise ProtocolError("a ticket that is no stretch is said to be over")
        count = 0
        for ticket in mine:
            count += ticket.left
            used = self.close_rows(ticket, np.flatnonzero(ticket.open))
            self.drop_used_up(job.shelves.get(Form.AUGMENTED), used)
        if spent is not None:
            self._count(job, spent, count)
        state.pool.fit()

    def _count(self, job: Job, spent: Spent, rows: int) -> None:
        """What rows took."""
        self._state.decodes += int(spent.decoded)
        self._state.fetches += int(spent.fetched)
        self._state.shared_split.add(spent)
        if job.took.add(spent, rows):
            self._state.pool.learn(job.shelves.values(), job.took)

    @staticmethod
    def _kept(
        job: Job, ticket: Ticket, event: Finished, mine: set[int]
    ) -> dict[Form, dict[int, tuple[int, int]]]:
        """The extents that were published, by form and row: offset and bytes. ``mine``: the blocks of these rows."""
        if len(event.published) % 32:
            raise ProtocolError("published extents are cut off")
        stop = event.first + event.count
        may_keep = (ticket.dress.keep[event.first : stop] * ticket.open[event.first : stop]).tolist()
        kept: dict[Form, dict[int, tuple[int, int]]] = {}
        offsets: set[int] = set()
        for row, form, offset, nbytes in np.frombuffer(event.published, np.int64).reshape(-1, 4).tolist():
            shelf = job.shelves.get(form)  # type: ignore[call-overload]  # (a number finds its form, and faster)
            if (
                offset not in mine
                or offset in offsets
                or shelf is None
                or ticket.blocks[offset][1] != form
                or not event.first <= row < stop
                or not 0 < nbytes <= ticket.blocks[offset][2]
                or not may_keep[row - event.first] & (1 << form)
                or row in kept.setdefault(shelf.form, {})
            ):
                raise ProtocolError(f"row {row} of ticket {ticket.id}: {nbytes} bytes at {offset}")
            kept[shelf.form][row] = offset, nbytes
            offsets.add(offset)
        return kept

    def _left_to_take(self, job: Job, ticket: Ticket, first: int, stop: int) -> list[int]:
        """For each row how many jobs have yet to take its sample, were it augmented."""
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None:
            return [0] * (stop - first)
        rows = first + np.flatnonzero(ticket.dress.keep[first:stop] & (1 << Form.AUGMENTED))
        left = np.zeros(stop - first, np.int64)
        left[rows - first] = self._state.needs(shelf, ticket.ids[rows])
        found: list[int] = left.tolist()
        return found

    def close_rows(self, ticket: Ticket, rows: Ids) -> Ids:
        """Rows are over: their extents are read, and what was pending of them stands or does not.

        Returns the augmented samples that were read.
        """
        read = _NONE
        if not len(rows):
            return read
        job = self._state.jobs[ticket.job]
        for form, samples in ticket.by_form(rows[ticket.reads[rows]]):
            job.shelves[form].release(samples)
            self._state.pool.may_go(job.shelves[form], samples)
            if form == Form.AUGMENTED:
                read = samples
        ticket.reads[rows] = False
        ticket.open[rows] = False
        ticket.left -= len(rows)
        for sample, waiting in list(ticket.waiting.items()):
            if not ticket.open[waiting].any():
                del ticket.waiting[sample]
                self._waiting.forget(sample, ticket)
        if ticket.left == 0:
            del self._state.tickets[ticket.id]
            if ticket.member in self._state.ranks and not ticket.fill:
                self._state.ranks[ticket.member][1].open -= 1
            self._state.late.discard(ticket.id)
            # (what was given ahead of need says nothing either)
            if (
                ticket.waits == len(ticket.ids) and not ticket.stretch
            ):  # one that waited says nothing: patience would feed on itself
                self._state.span_of_tickets += 0.1 * (
                    self._state.now - ticket.given - self._state.span_of_tickets
                )
        self._end_pending(job, ticket, rows)
        return read

    def _end_pending(self, job: Job, ticket: Ticket, rows: Ids) -> None:
        """What was to be kept of these rows is cached now, or will not be."""
        keep = ticket.dress.keep[rows]
        if not keep.any():
            return
        settled: dict[int, None] = {}
        for form, shelf in job.shelves.items():
            marked = ticket.ids[rows[(keep & (1 << form)) != 0]]
            if not len(marked):
                continue
            drop(shelf.pending.words, marked)
            for sample in marked.tolist():
                if shelf.owner.get(sample) == ticket.id:
                    del shelf.owner[sample]
                if sample in self._state.waiting:
                    settled[sample] = None
        if settled:
            self._waiting.settle(settled)

    def drop_used_up(self, shelf: Shelf | None, samples: Ids) -> None:
        """Augmented samples that nobody needs any more make room at once."""
        if shelf is None or shelf.form != Form.AUGMENTED or not len(samples):
            return
        if self._state.pool.worths.eviction.name not in ("auto", "uses"):
            return
        gone = shelf.used_up(samples)
        if gone:
            self._state.pool.evict(shelf, gone)
