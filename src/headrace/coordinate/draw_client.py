"""A rank's side of drawing with a shared host: what it asked for, what has come, and what waits. No I/O, no clock.

Requests go out through ``send``, with the bytes that travel beside them, and the host's replies come in through
``hear``. Jobs and the simulator both use it: they differ in who carries the messages. When a host is lost, what is
known here is all that another one needs to go on with the epoch; if there is none, the rank draws for itself.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

import numpy as np

from headrace.coordinate.members import STEPS, write_progress
from headrace.coordinate.protocol import (
    MOST_ROWS,
    MOST_TOGETHER,
    Ask,
    Begin,
    Drawn,
    Finished,
    Join,
    Known,
    Over,
    Refused,
    Reply,
    Request,
    Update,
)
from headrace.coordinate.replies import cut, read, updated
from headrace.core import random as rnd
from headrace.core.bits import Bits, choose, put
from headrace.core.errors import HostUnavailable, OptionError
from headrace.planning import Spent
from headrace.sampling import Draw, Geometry, KnownOrder, Lookup
from headrace.sampling.draw import Ids

Send = Callable[[Request, bytes | None], None]

_AHEAD = 1
"""Draws that are asked for before they are needed. More would only lock more of the cache."""


class DrawClient:
    """One rank's draws from a shared host."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.instance = 0
        """The host that it draws from, or drew from last."""
        self.company = 0
        """Other jobs that drew what this one prepared, when its host last told."""
        self.updates: list[Draw] = []
        """Draws whose waiting rows need not wait any more."""
        self._drawn: deque[Draw] = deque()
        self._waiting: dict[int, Draw] = {}
        """By ticket: draws of which some rows wait."""
        self._asked: deque[Draw | None] = deque()
        """What the rank itself drew, or None, for each draw that has not come."""
        self._low = 0
        """So many draws are left when others are asked for."""
        self._stretches: dict[int, tuple[int, int]] = {}
        """By ticket, of draws that came together: rows that are neither prepared nor given up, and all rows."""
        self._ended: list[tuple[int, int]] = []
        """Tickets of those that are over, which the host has not been told, and their rows."""
        self._spent: Spent | None = None
        """What they took."""
        self._epoch = -1
        self._explicit = self._over = False
        self._known: Known | None = None
        self._left = False
        """Whether the epoch was left before its end."""
        self._given = Bits.empty(0)
        self._steps: dict[int, Ids] = {}
        self._step = 0
        self._before: tuple[int, Bits, dict[int, Ids], int] | None = None
        """The epoch before, as this rank of several knows it."""
        self.join: Join

    @property
    def has_draws(self) -> bool:
        """Whether a draw has come that was not taken, or none will."""
        return bool(self._drawn) or self._over

    @property
    def awaits_draw(self) -> bool:
        """Whether all that is to be drawn was asked for, and the host has not answered yet."""
        return bool(self._asked) and not self.has_draws

    @property
    def awaits_host(self) -> bool:
        """Whether the host has something to say: a draw, or what became of rows that wait."""
        return bool(self._asked or self._waiting)

    @property
    def over(self) -> bool:
        """Whether every draw of the epoch has come."""
        return self._over and not self._drawn

    @property
    def wants(self) -> int:
        """Draws that should be asked for now."""
        if self._over or self._asked or len(self._drawn) > self._low:
            return 0
        return max(1, _AHEAD - len(self._drawn))

    # -- epochs and draws --------------------------------------------------------------------------------------

    def begin(
        self, epoch: int, *, explicit: bool, given: Bits | None = None, known: KnownOrder | None = None
    ) -> None:
        """Begin an epoch. ``given``: samples that were delivered before, where it goes on. ``known``: what a rank
        that draws for itself will draw."""
        self._drop_draws()
        if self.join.world_size > 1 and not self._explicit and self._epoch >= 0:
            self._before = (self._epoch, self._given, self._steps, self._step)
        self._epoch, self._explicit, self._over, self._left = epoch, explicit, False, False
        self._given = Bits.empty(self.join.samples) if given is None else given.copy()
        self._steps, self._step = {}, 0
        self._known = told(known) if explicit else None
        if explicit or not self._given.count():
            self._send(Begin(epoch, 0, explicit, 0, self._known), None)
        else:
            self._report(epoch, self._given, self._steps, self._step)

    def _report(self, epoch: int, given: Bits, steps: dict[int, Ids], step: int) -> None:
        """Tell a host what is given out of an epoch that it did not begin."""
        self._send(Begin(epoch, given.count(), False, step), write_progress(given, steps))

    def ask(self, own: Draw | None = None) -> None:
        """Ask for one draw. ``own``: where the rank draws for itself, what the host is to look up."""
        if own is not None and len(own.indices) > MOST_ROWS:
            raise OptionError(
                f"a batch of {len(own.indices)} samples is too large to share; {MOST_ROWS} are the most. "
                "Use smaller batches, or share=False"
            )
        self._asked.append(own)
        self._send(self._ask(own), None)

    def _ask(self, own: Draw | None) -> Ask:
        """With it the host is told which stretches are over: they are asked for as often as they end."""
        over, spent = np.array([ticket for ticket, _ in self._ended], np.int64).tobytes(), self._spent
        self._ended, self._spent = [], None
        return Ask(b"" if own is None else own.indices.tobytes(), MOST_TOGETHER, over, spent)

    def take(self) -> Draw | None:
        """The next draw, if it is here."""
        found = self._drawn.popleft() if self._drawn else None
        if self._ended and self._asked and not self._drawn:
            self._tell_ends()
        return found

    def drop(self) -> None:
        """The epoch was left: give up what came and was not taken, and wait for nothing."""
        self._left = True
        self._drop_draws()
        self._waiting.clear()
        self.updates.clear()
        self._tell_ends()

    def _drop_draws(self) -> None:
        for draw in self._drawn:
            if draw.lookup is not None:
                self._waiting.pop(draw.lookup.ticket, None)
                first, count = draw.lookup.first, len(draw.indices)
                self.give_up(draw.lookup.ticket, draw.lookup.instance, first, count)
        self._drawn.clear()
        self._asked.clear()
        self._low = 0

    def give_up(self, ticket: int, instance: int, first: int, count: int) -> None:
        """Rows of a draw will not be prepared."""
        if ticket >= 0 and instance == self.instance:
            self._send(Finished(ticket, first, count), None)
            self._end(ticket, count)

    def done(self, ticket: int, instance: int, count: int, spent: Spent) -> None:
        """Rows of a draw are prepared of which no worker tells the host."""
        if instance != self.instance or ticket not in self._stretches:
            return
        if self._spent is None:
            self._spent = Spent()
        self._spent.add(spent)
        self._end(ticket, count)

    def _end(self, ticket: int, count: int) -> None:
        left, rows = self._stretches.get(ticket, (0, 0))
        if left > count:
            self._stretches[ticket] = left - count, rows
        elif left:
            del self._stretches[ticket]
            self._ended.append((ticket, rows))
            # Nothing more is asked for soon; or it was, and the host may wait for just this before it answers.
            if self._over or self._left or (self._asked and not self._drawn):
                self._tell_ends()

    def _tell_ends(self) -> None:
        """Tell the host which stretches are over."""
        spent, self._spent = self._spent or Spent(), None
        for ticket, rows in self._ended:
            self._send(Finished(ticket, 0, rows, spent=spent), None)
            spent = Spent()
        self._ended.clear()

    # -- what the host says ------------------------------------------------------------------------------------

    def hear(self, reply: Reply) -> None:
        """Take in what the host said. Raises HostUnavailable where it refuses to go on."""
        if isinstance(reply, Drawn):
            if self._asked and reply.epoch == self._epoch:
                self.company = reply.company
                draw = read(reply, self._asked.popleft(), self.instance, parted=not self.join.collates)
                self._low = reply.early
                if reply.stretch:
                    self._stretches[reply.ticket] = len(draw.indices), len(draw.indices)
                    for part in cut(draw, reply.stretch):
                        self._note(part)
                else:
                    self._note(draw)
            else:
                count = len(reply.indices) // 8  # of an epoch that was left
                self.give_up(reply.ticket, self.instance, 0, count)
        elif isinstance(reply, Over):
            if reply.epoch == self._epoch:
                self._over = True
                self._asked.clear()
                self._tell_ends()
        elif isinstance(reply, Update):
            waited = self._waiting.pop(reply.ticket, None)
            if waited is not None and waited.lookup is not None:
                self._go_on(waited, updated(waited.lookup, reply))
        elif isinstance(reply, Refused):
            raise HostUnavailable(reply.reason)

    def _go_on(self, draw: Draw, lookup: Lookup) -> None:
        """The rest of a draw need not wait any more, whether its batch is being prepared or still to be begun."""
        known = draw.looked_up(dataclasses.replace(lookup, waits=len(draw.indices)))
        self._drawn = deque(known if other is draw else other for other in self._drawn)
        self.updates.append(known)

    def _note(self, draw: Draw) -> None:
        self._drawn.append(draw)
        if draw.lookup is not None and draw.waits < len(draw.indices):
            self._waiting[draw.lookup.ticket] = draw
        if draw.of_all_ranks is not None:  # else the rank drew it itself
            put(self._given.words, draw.of_all_ranks)
            self._step = draw.step + 1
            if self.join.world_size > 1:
                self._steps[draw.step] = draw.of_all_ranks
                self._steps.pop(draw.step - STEPS, None)

    # -- when a host is lost -----------------------------------------------------------------------------------

    def lose_host(self) -> None:
        """It is gone. Nobody will tell what became of rows that wait: they are prepared here."""
        self._stretches.clear()
        self._ended.clear()
        self._spent = None
        for draw in self._waiting.values():
            assert draw.lookup is not None
            self._go_on(draw, draw.lookup)
        self._waiting.clear()

    def go_on_at_new_host(self) -> bool:
        """Tell another host how far the epoch is, and ask it for what did not come.

        Returns whether it has to wait for the other ranks to do the same before it deals anything.
        """
        if self._epoch < 0:
            return False
        if self._before is not None:
            self._report(*self._before)  # other ranks may still be there, and not know the end of it
        if self._explicit:
            self._send(Begin(self._epoch, 0, True, 0, self._known), None)
        else:
            self._report(self._epoch, self._given, self._steps, self._step)
        for own in self._asked:
            self._send(self._ask(own), None)
        return not self._explicit and self.join.world_size > 1

    def draw_alone(self) -> None:
        """Draw what was asked for as a host would. Raises HostUnavailable where ranks would have to agree."""
        if self._drawn or not self._asked:
            return
        own = self._asked.popleft()
        if own is not None:
            self._note(own)
            return
        join, step = self.join, self._step
        if join.world_size > 1:
            raise HostUnavailable(
                "the shared host is gone, and the ranks of a job need one to agree on samples"
            )
        left = Bits.full(join.samples) - self._given
        total = left.count()
        geometry = Geometry(join.batch_size, 0, 1, join.drop_last)
        if geometry.steps(total) == 0:
            self._over = True
            self._asked.clear()
            return
        stop = geometry.cut(total, 0)[1]
        ids = choose(left.words, stop, rnd.key(self.instance, self._epoch, step))
        # (its random numbers must not be those of a draw that the host made)
        randomness = (self.instance & ((1 << 63) - 1), (1 << 40) + self._epoch)
        position = self._given.count() + stop
        self._note(Draw(self._epoch, step, ids, position, randomness=randomness, of_all_ranks=ids))


def told(known: KnownOrder | None) -> Known | None:
    """What a host is told of an order, where it can work it out from that."""
    if known is None or known.seed is None or not -1 << 63 <= known.seed < 1 << 63:
        return None
    cut = known.geometry
    return Known(
        known.seed, known.shuffled, cut.batch_size, cut.rank, cut.world_size, cut.drop_last, known.position
    )
