"""Where the ends of draws are reported, and where those are looked after who wait for what others prepare."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.ledger import Ledger
from headrace.coordinate.members import Job
from headrace.coordinate.protocol import Finished, Update
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.tickets import Ticket
from headrace.core.bits import drop, put, test
from headrace.core.errors import ProtocolError
from headrace.core.forms import CACHEABLE, Form

Ids = NDArray[np.int64]

_SHORTEST_PATIENCE, _LONGEST_PATIENCE = 1.0, 10.0


class Desk(Ledger, ABC):
    """Takes in what became of rows, and tells those who waited for them."""

    def finished(self, session: int, event: Finished) -> None:
        """Rows of a ticket are prepared, or given up."""
        ticket = self.tickets.get(event.ticket)
        if ticket is None or ticket.session != session:
            return
        stop = event.first + event.count
        if stop > len(ticket.ids):
            raise ProtocolError(f"rows up to {stop} of a draw of {len(ticket.ids)}")
        job = self.jobs[ticket.job]
        closing = event.first + np.flatnonzero(ticket.open[event.first : stop])
        mine = {offset for offset, (row, _, _) in ticket.blocks.items() if event.first <= row < stop}
        kept = self._kept(job, ticket, event, mine) if event.published and len(closing) else {}
        # All of it is true; from here on things change.
        self.decodes += event.spent.decoded
        self.fetches += event.spent.fetched
        self.division.add(event.spent)
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
                self.pool.store(job.shelves[form], fresh[form], offsets, sizes, [left[row] for row in rows])
        for offset in mine:
            del ticket.blocks[offset]
        self.pool.give_back(mine)
        self._drop_encoded(job, fresh.get(Form.DECODED, []))
        used = self._close_rows(ticket, closing) + fresh.get(Form.AUGMENTED, [])
        self._drop_used_up(job.shelves.get(Form.AUGMENTED), used)
        self.pool.fit()
        self._go_on()

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

    def _close_rows(self, ticket: Ticket, rows: Ids) -> list[int]:
        """Rows are over: their extents are read, and what was pending of them stands or does not.

        Returns the augmented samples that were read.
        """
        if not len(rows):
            return []
        job = self.jobs[ticket.job]
        read: list[int] = []
        for form, samples in ticket.by_form(rows[ticket.reads[rows]]):
            job.shelves[form].release(samples)
            if form == Form.AUGMENTED:
                read = samples
        ticket.reads[rows] = False
        ticket.open[rows] = False
        ticket.left -= len(rows)
        for sample, waiting in list(ticket.waiting.items()):
            if not ticket.open[waiting].any():
                del ticket.waiting[sample]
                self._forget_waiter(sample, ticket)
        if ticket.left == 0:
            del self.tickets[ticket.id]
            if ticket.session in self.ranks and not ticket.fill:
                self.ranks[ticket.session][1].open -= 1
            self._late.discard(ticket.id)
            if ticket.waits == len(ticket.ids):  # one that waited says nothing: patience would feed on itself
                self._span_of_tickets += 0.1 * (self.now - ticket.given - self._span_of_tickets)
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
                if sample in self._waiting:
                    settled[sample] = None
        for sample in settled:
            if sample in self._waiting:
                self._settle(sample)

    def _drop_used_up(self, shelf: Shelf | None, samples: list[int]) -> None:
        """Augmented samples that nobody needs any more make room at once."""
        name = self.pool.eviction.name
        if shelf is None or shelf.form != Form.AUGMENTED or not samples or name not in ("auto", "uses"):
            return
        gone = shelf.used_up(list(dict.fromkeys(samples)))
        if gone:
            self.pool.evict(shelf, gone)

    @staticmethod
    def _hopes(job: Job, ids: Ids) -> set[int]:
        """Those of ``ids`` that somebody is augmenting now, and that this job cannot have had before.

        They are promised from here on: no other draw of the job's gets or hopes for them.
        """
        shelf = job.shelves.get(Form.AUGMENTED)
        if shelf is None or job.stale is None:
            return set()
        coming = ids[test(shelf.pending.words, ids) & ~test(job.stale.words, ids)]
        put(job.stale.words, coming)
        return set(coming.tolist())

    def _forget_waiter(self, sample: int, ticket: Ticket) -> None:
        waiting = self._waiting.get(sample)
        if waiting is not None and ticket in waiting:
            waiting.remove(ticket)
            if not waiting:
                del self._waiting[sample]

    def _settle(self, sample: int) -> None:
        """A sample that some wait for is cached now, or will not be."""
        for ticket in self._waiting.pop(sample):
            rows = [row for row in ticket.waiting.pop(sample, []) if ticket.open[row]]
            job = self.jobs[ticket.job]
            for form in (Form.AUGMENTED, Form.DECODED):
                shelf = job.shelves.get(form)
                if form == Form.AUGMENTED and sample not in ticket.hopes:
                    continue  # the decoded one was waited for: this one the job may have had
                if shelf is not None and sample in shelf:
                    # The augmented one is the one that was waited for, whatever has become stale meanwhile.
                    offsets, lengths = shelf.find([sample])
                    for row in rows:
                        ticket.dress.forms[row] = form
                        ticket.dress.offsets[row], ticket.dress.lengths[row] = offsets[0], lengths[0]
                    self._read(ticket, np.array(rows, np.int64))
                    break
            if not ticket.waiting:
                self._resolve(ticket)

    def _resolve(self, ticket: Ticket) -> None:
        """Nothing of a ticket waits any more: say how the rest of its rows enters."""
        if ticket.session not in self.ranks:
            return  # it waited for another ticket of a session that is gone, and goes with it
        job, rank = self.ranks[ticket.session]
        rows = np.arange(ticket.waits, len(ticket.ids))
        missed = rows[(ticket.dress.forms[rows] == 0) & ticket.open[rows]]
        if len(missed):
            again, _ = self._enter_rows(job, ticket.ids[missed], may_wait=False)
            # (an augmented one that came meanwhile may be one that this job had in an epoch before)
            plain = again.forms < int(Form.AUGMENTED)
            for name in ("forms", "offsets", "lengths"):
                getattr(ticket.dress, name)[missed[plain]] = getattr(again, name)[plain]
            self._read(ticket, missed[plain])
            self._keep(job, ticket, missed)
        dress, first = ticket.dress, ticket.waits
        rank.count(dress.forms[first:], self.now)
        self.out.append(
            (
                ticket.session,
                Update(
                    ticket=ticket.id,
                    forms=dress.forms[first:].tobytes(),
                    offsets=dress.offsets[first:].tobytes(),
                    lengths=dress.lengths[first:].tobytes(),
                    keep=dress.keep[first:].tobytes(),
                    grants=ticket.grants(first),
                ),
            )
        )

    @property
    def patience(self) -> float:
        """Seconds for which a sample that somebody else prepares is waited for."""
        return min(_LONGEST_PATIENCE, max(_SHORTEST_PATIENCE, 4 * self._span_of_tickets))

    def tick(self) -> None:
        """Now and then: whoever has waited too long prepares for itself."""
        late = self.now - self.patience
        for ticket in [t for t in self.tickets.values() if t.waiting and t.given < late]:
            job = self.jobs[ticket.job]
            for sample in list(ticket.waiting):
                self._forget_waiter(sample, ticket)
                self._late |= self._owners(job, sample)
            ticket.waiting.clear()
            self._resolve(ticket)
        self._go_on()

    @abstractmethod
    def _go_on(self) -> None:
        """Try again those whose draws had to wait."""
