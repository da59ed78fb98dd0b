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
    Ask,
    Begin,
    Drawn,
    Finished,
    Join,
    Over,
    Refused,
    Reply,
    Request,
    Update,
)
from headrace.core import random as rnd
from headrace.core.bits import Bits, choose, put
from headrace.core.errors import HostUnavailable, OptionError
from headrace.core.forms import Form
from headrace.sampling import Draw, Geometry, Lookup
from headrace.sampling.draw import Ids

Send = Callable[[Request, bytes | None], None]

_AHEAD = 1
"""Draws that are asked for before they are needed. More would only lock more of the cache."""
_AUGMENTED = int(Form.AUGMENTED)  # numpy takes long over enumerations


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
        self._epoch = -1
        self._explicit = self._over = False
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
        return 0 if self._over else max(0, _AHEAD - len(self._asked) - len(self._drawn))

    # -- epochs and draws --------------------------------------------------------------------------------------

    def begin(self, epoch: int, *, explicit: bool, given: Bits | None = None) -> None:
        """Begin an epoch. ``given``: samples that were delivered before, where it goes on."""
        self._drop_draws()
        if self.join.world_size > 1 and not self._explicit and self._epoch >= 0:
            self._before = (self._epoch, self._given, self._steps, self._step)
        self._epoch, self._explicit, self._over = epoch, explicit, False
        self._given = Bits.empty(self.join.samples) if given is None else given.copy()
        self._steps, self._step = {}, 0
        if explicit or not self._given.count():
            self._send(Begin(epoch, 0, explicit, 0), None)
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
        self._send(_ask(own), None)

    def take(self) -> Draw | None:
        """The next draw, if it is here."""
        return self._drawn.popleft() if self._drawn else None

    def drop(self) -> None:
        """The epoch was left: give up what came and was not taken, and wait for nothing."""
        self._drop_draws()
        self._waiting.clear()
        self.updates.clear()

    def _drop_draws(self) -> None:
        for draw in self._drawn:
            if draw.lookup is not None:
                self._waiting.pop(draw.lookup.ticket, None)
                self.give_up(draw.lookup.ticket, draw.lookup.instance, 0, len(draw.indices))
        self._drawn.clear()
        self._asked.clear()

    def give_up(self, ticket: int, instance: int, first: int, count: int) -> None:
        """Rows of a draw will not be prepared."""
        if ticket >= 0 and instance == self.instance:
            self._send(Finished(ticket, first, count), None)

    # -- what the host says ------------------------------------------------------------------------------------

    def hear(self, reply: Reply) -> None:
        """Take in what the host said. Raises HostUnavailable where it refuses to go on."""
        if isinstance(reply, Drawn):
            if self._asked and reply.epoch == self._epoch:
                self.company = reply.company
                self._note(_read(reply, self._asked.popleft(), self.instance, parted=not self.join.collates))
            else:
                count = len(reply.indices) // 8  # of an epoch that was left
                self.give_up(reply.ticket, self.instance, 0, count)
        elif isinstance(reply, Over):
            if reply.epoch == self._epoch:
                self._over = True
                self._asked.clear()
        elif isinstance(reply, Update):
            draw = self._waiting.pop(reply.ticket, None)
            if draw is not None and draw.lookup is not None:
                self._go_on(draw, _updated(draw.lookup, reply))
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
            self._send(Begin(self._epoch, 0, True, 0), None)
        else:
            self._report(self._epoch, self._given, self._steps, self._step)
        for own in self._asked:
            self._send(_ask(own), None)
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


def _ask(own: Draw | None) -> Ask:
    return Ask(b"" if own is None else own.indices.tobytes())


def _read(reply: Drawn, own: Draw | None, instance: int, *, parted: bool) -> Draw:
    """What the host ``instance`` replied. ``parted``: a batch is prepared in parts, some of which may wait."""
    indices = np.frombuffer(reply.indices, np.int64)
    forms = np.frombuffer(reply.forms, np.uint8)
    copies = 0
    if parted:
        ready = forms[: reply.waits] == _AUGMENTED
        copies = len(ready) if ready.all() else int(np.argmin(ready))
    lookup = Lookup(
        reply.ticket,
        instance,
        forms,
        np.frombuffer(reply.offsets, np.int64),
        np.frombuffer(reply.lengths, np.int64),
        np.frombuffer(reply.keep, np.uint8),
        _grants(reply.grants),
        reply.waits,
        copies,
    )
    if own is not None:
        return own.looked_up(lookup)
    return Draw(
        reply.epoch,
        reply.step,
        indices,
        reply.given,
        reply.last,
        randomness=(reply.seed, reply.key),
        of_all_ranks=np.frombuffer(reply.of_all_ranks, np.int64) if reply.of_all_ranks else indices,
        lookup=lookup,
    )


def _updated(lookup: Lookup, update: Update) -> Lookup:
    """With what the host says of the rows that waited."""
    first = lookup.waits

    def joined(before: np.ndarray, after: bytes) -> np.ndarray:
        return np.concatenate([before[:first], np.frombuffer(after, before.dtype)])

    return dataclasses.replace(
        lookup,
        forms=joined(lookup.forms, update.forms),
        offsets=joined(lookup.offsets, update.offsets),
        lengths=joined(lookup.lengths, update.lengths),
        keep=joined(lookup.keep, update.keep),
        # (grants of the first rows were in the draw itself, and most are used up by now)
        grants=np.concatenate([lookup.grants[lookup.grants[:, 0] < first], _grants(update.grants)]),
    )


def _grants(data: bytes) -> Ids:
    return np.frombuffer(data, np.int64).reshape(-1, 4)
