"""Permits: how many threads prepare at once on a machine, over all ranks, and whose turn it is when there are more.

A thread takes a permit before it prepares and may keep it from order to order while nobody waits. Where all are
taken, it waits, and of those who wait the one whose batch is needed first is next. So processors go to the rank that
would be late, whichever it is, and none stands idle while any rank has work for it.

A permit is a cell of the roster with its holder's process in it. What the dead had, and those who were stopped, is
taken from them by those who wait; and what somebody has held for very long is not counted any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from headrace.core.native import calls
from headrace.engine.permit_table import GIVEN, HOLDER, PID, STATE, WAITS, in_c, in_python
from headrace.engine.roster import BURIED_AT, WAIT_WIDTH, WAITING, Roster, alive

_LOOK = 0.05
"""Seconds after which one who waits looks whether those before it live."""
_LONG = 30.0
"""Seconds after which a permit does not count any more."""
_POLL = 2e-3
"""Seconds between looks, where nobody can be woken."""
_NO_CELL = -1


class Permits:
    """The permits of a roster, for the threads of one process."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._cells, self._waits = roster.cells, roster.waits
        self._words = roster.memory.cast("B").cast("I")
        self._long_words = roster.memory.cast("B").cast("q")
        self._table = in_python if in_c is None else in_c
        self._number = 0

    @property
    def contended(self) -> bool:
        """Whether somebody waits."""
        return self._long_words[WAITING] > 0

    def take(
        self, deadline: int, later: int = 0, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[int, int] | None:
        """Wait for a permit, which is to be given back. ``deadline``: when what is prepared with it is needed, in
        nanoseconds of the monotonic clock. ``later``: taken to be so much later for each permit that this process
        has already, as its threads hold each other up. None: ``stopped`` said so meanwhile."""
        roster = self._roster
        with roster.locked():
            self._number += 1
            token = (roster.me[0] << 24) + (self._number & 0xFFFFFF)
            found: int = self._table.take(
                roster.header,
                self._cells,
                self._waits,
                deadline,
                later,
                *roster.me,
                token,
                time.monotonic_ns(),
            )
        if found >= 0:
            return found, token
        if found == _NO_CELL:  # more wait than can be written down
            time.sleep(_POLL)
            return self.take(deadline, later, stopped)
        return self._await(-2 - found, token, stopped)

    def renew(
        self,
        permit: tuple[int, int],
        deadline: int,
        later: int = 0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[int, int] | None:
        """Go on with a permit for something else, unless somebody needs it sooner: then wait for another."""
        if self.keep(permit, deadline, later):
            return permit
        return self.take(deadline, later, stopped)

    def keep(self, permit: tuple[int, int], deadline: int, later: int = 0) -> bool:
        """Whether a permit may be kept for something else; if somebody needs it sooner by more than ``later``, it is
        given back. (To hand it on takes time, in which nobody prepares.)"""
        if not self.contended:
            return True
        roster, now, late = self._roster, time.monotonic_ns(), deadline - later
        table, words = self._table, (self._roster.header, self._cells, self._waits)
        with roster.locked():
            if table.renew(*words, *permit, late, later, now):
                return True
            table.give(*words, *permit, now)
        return False

    def give(self, permit: tuple[int, int]) -> None:
        """Give a permit back: to the one who waits for it most. (One that was held for too long is another's.)"""
        roster, now = self._roster, time.monotonic_ns()
        with roster.locked():
            self._table.give(roster.header, self._cells, self._waits, *permit, now)

    def serve(self) -> None:
        """There may be more permits than before."""
        self.give((_NO_CELL, 0))

    @property
    def held(self) -> int:
        """Permits that are taken."""
        return int(np.count_nonzero(self._cells[:, HOLDER]))

    # -- waiting ---------------------------------------------------------------------------------------------

    def _await(self, place: int, token: int, stopped: Callable[[], bool]) -> tuple[int, int] | None:
        at = self._roster.first_wait + WAIT_WIDTH * place
        looked = time.monotonic()
        while True:
            state = self._long_words[at + STATE]
            if state >= GIVEN:
                self._long_words[at + STATE] = 0
                return state - GIVEN, token
            if calls is not None:
                calls.futex_wait(self._words, 2 * (at + STATE), state, _LOOK)
            else:
                time.sleep(_POLL)
            if time.monotonic() - looked < _LOOK:
                continue
            looked = time.monotonic()
            if stopped():
                with self._roster.locked():
                    if self._long_words[at + STATE] == WAITS:
                        self._long_words[at + STATE] = 0
                        self._long_words[WAITING] -= 1
                        return None
            # One of all who wait looks after the dead.
            if time.monotonic_ns() - self._long_words[BURIED_AT] > _LOOK * 1e9:
                with self._roster.locked():
                    self._long_words[BURIED_AT] = time.monotonic_ns()
                    self._bury()
                self.serve()

    def _bury(self) -> None:
        """Take back what the dead had, and what was held for very long."""
        late = time.monotonic_ns() - int(_LONG * 1e9)
        for cell in np.flatnonzero(self._cells[:, HOLDER]).tolist():
            pid, start, _, since = self._cells[cell].tolist()
            if since < late or not alive(pid, start, stopped=False):
                self._cells[cell] = 0
        for place in np.flatnonzero(self._waits[:, STATE]).tolist():
            if not alive(int(self._waits[place, PID])):
                self._waits[place] = 0
        self._roster.header[WAITING] = np.count_nonzero(self._waits[:, STATE] == WAITS)
