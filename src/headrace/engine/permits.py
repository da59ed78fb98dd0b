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
from headrace.engine.roster import BURIED_AT, CELLS, LIMIT, MOST, WAITING, Roster, alive

_LOOK = 0.05
"""Seconds after which one who waits looks whether those before it live."""
_LONG = 30.0
"""Seconds after which a permit does not count any more."""
_POLL = 2e-3
"""Seconds between looks, where nobody can be woken."""
_HOLDER, _START, _TOKEN, _SINCE = range(4)  # of a cell; no holder: it is free
_STATE, _DEADLINE, _PID, _WHO = range(4)  # of one who waits: 0 nobody, 1 waits, from 2 on has cell state - 2
_FREE, _WAITS, _GIVEN = range(3)


class Permits:
    """The permits of a roster, for the threads of one process."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._cells, self._waits = roster.cells, roster.waits
        self._words = roster.memory.cast("B").cast("I")
        self._number = 0

    @property
    def contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._roster.header[WAITING])

    def take(self, deadline: int, stopped: Callable[[], bool] = lambda: False) -> tuple[int, int] | None:
        """Wait for a permit, which is to be given back. ``deadline``: when what is prepared with it is needed, in
        nanoseconds of the monotonic clock. None: ``stopped`` said so meanwhile."""
        with self._roster.locked():
            self._number += 1
            token = (self._roster.me[0] << 24) + (self._number & 0xFFFFFF)
            cell = -1 if self._someone_before(deadline) else self._free_cell()
            if cell >= 0:
                self._write(cell, *self._roster.me, token)
                return cell, token
            place = self._enlist(deadline, token)
        if place < 0:  # more wait than can be written down
            time.sleep(_POLL)
            return self.take(deadline, stopped)
        return self._await(place, token, stopped)

    def renew(
        self, permit: tuple[int, int], deadline: int, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[int, int] | None:
        """Go on with a permit for something else, unless somebody needs it sooner: then wait for another."""
        if not self.contended:
            return permit
        with self._roster.locked():
            if int(self._cells[permit[0], _TOKEN]) == permit[1] and not self._someone_before(deadline):
                self._cells[permit[0], _SINCE] = time.monotonic_ns()
                return permit
        self.give(permit)
        return self.take(deadline, stopped)

    def give(self, permit: tuple[int, int]) -> None:
        """Give a permit back: to the one who waits for it most."""
        cell, token = permit
        with self._roster.locked():
            if int(self._cells[cell, _TOKEN]) == token:  # else it was not counted any more, and is another's
                self._cells[cell] = 0
            self._serve()

    def serve(self) -> None:
        """There may be more permits than before."""
        with self._roster.locked():
            self._serve()

    @property
    def held(self) -> int:
        """Permits that are taken."""
        return int(np.count_nonzero(self._cells[:, _HOLDER]))

    # -- with the lock held ----------------------------------------------------------------------------------

    def _someone_before(self, deadline: int) -> bool:
        if not self._roster.header[WAITING]:
            return False
        waiting = self._waits[:, _STATE] == _WAITS
        return bool(waiting.any()) and int(self._waits[waiting, _DEADLINE].min()) < deadline

    def _free_cell(self) -> int:
        """A cell that may be taken; -1: as many are as may be."""
        limit = min(CELLS, max(1, int(self._roster.header[LIMIT])))
        free = np.flatnonzero(self._cells[:limit, _HOLDER] == 0)
        return int(free[0]) if len(free) and self.held < limit else -1

    def _write(self, cell: int, pid: int, start: int, token: int) -> None:
        self._cells[cell] = (pid, start, token, time.monotonic_ns())
        header = self._roster.header
        header[MOST] = max(int(header[MOST]), self.held)

    def _enlist(self, deadline: int, token: int) -> int:
        places = np.flatnonzero(self._waits[:, _STATE] == _FREE)
        if not len(places):
            return -1
        place = int(places[0])
        self._waits[place, _DEADLINE:] = (deadline, self._roster.me[0], token)
        self._waits[place, _STATE] = _WAITS
        self._roster.header[WAITING] += 1
        return place

    def _leave(self, place: int) -> None:
        self._waits[place, _STATE] = _FREE
        self._roster.header[WAITING] = int(np.count_nonzero(self._waits[:, _STATE] == _WAITS))

    def _serve(self) -> None:
        """Give free cells to those who wait, the earliest deadline first."""
        if not self._roster.header[WAITING]:
            return
        while (cell := self._free_cell()) >= 0:
            waiting = np.flatnonzero(self._waits[:, _STATE] == _WAITS)
            if not len(waiting):
                break
            place = int(waiting[self._waits[waiting, _DEADLINE].argmin()])
            pid, token = self._waits[place, _PID:].tolist()
            # Told first: were this process killed in between, a permit too many is out, and none is lost.
            self._waits[place, _STATE] = _GIVEN + cell
            self._write(cell, pid, 0, token)
            if calls is not None:
                calls.futex_wake(self._words, 2 * (self._roster.first_wait + 4 * place), 1)
        self._roster.header[WAITING] = int(np.count_nonzero(self._waits[:, _STATE] == _WAITS))

    def _bury(self) -> None:
        """Take back what the dead had, and what was held for very long."""
        late = time.monotonic_ns() - int(_LONG * 1e9)
        for cell in np.flatnonzero(self._cells[:, _HOLDER]).tolist():
            pid, start, _, since = self._cells[cell].tolist()
            if since < late or not alive(pid, start, stopped=False):
                self._cells[cell] = 0
        for place in np.flatnonzero(self._waits[:, _STATE]).tolist():
            if not alive(int(self._waits[place, _PID])):
                self._leave(place)
        self._serve()

    # -- waiting ---------------------------------------------------------------------------------------------

    def _await(self, place: int, token: int, stopped: Callable[[], bool]) -> tuple[int, int] | None:
        word = 2 * (self._roster.first_wait + 4 * place)
        looked = time.monotonic()
        while True:
            state = int(self._waits[place, _STATE])
            if state >= _GIVEN:
                with self._roster.locked():
                    self._leave(place)
                return state - _GIVEN, token
            if calls is not None:
                calls.futex_wait(self._words, word, state, _LOOK)
            else:
                time.sleep(_POLL)
            if time.monotonic() - looked < _LOOK:
                continue
            looked = time.monotonic()
            if stopped():
                with self._roster.locked():
                    if int(self._waits[place, _STATE]) == _WAITS:
                        self._leave(place)
                        return None
            # One of all who wait looks after the dead.
            if time.monotonic_ns() - int(self._roster.header[BURIED_AT]) > _LOOK * 1e9:
                with self._roster.locked():
                    self._roster.header[BURIED_AT] = time.monotonic_ns()
                    self._bury()
