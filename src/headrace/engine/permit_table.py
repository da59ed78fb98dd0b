"""The table of permits: who prepares, and who waits for a turn. The caller holds the table's lock.

A cell is a permit: its holder's process, when that was started (0: not known), a token by which the holder knows it
for its own, and since when it is held. One who waits has a state (0: nobody waits here, 1: waits, from 2 on: has the
cell of that number less 2), a deadline, its process, its token, and by how much later its deadline counts for each
cell that its process has already; it frees its place itself when it has the cell.

In Python, for where the compiled counterpart (``core/permits.c``) is not built; the two do the same.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from headrace.core.native import calls
from headrace.engine.roster import LIMIT, MOST, WAITING

Words = NDArray[np.int64]

HOLDER, START, TOKEN, SINCE = range(4)
"""Of a cell; no holder: it is free."""
STATE, DEADLINE, PID, WHO, LATER = range(5)
"""Of one who waits."""
FREE, WAITS, GIVEN = range(3)
"""States."""


def permits_take(
    header: Words,
    cells: Words,
    waits: Words,
    deadline: int,
    later: int,
    pid: int,
    start: int,
    token: int,
    now: int,
    /,
) -> int:
    """A free cell, now written; else, from -2 on downwards, the place at which this one waits from now on; -1: there
    is none."""
    due = deadline + later * _held_by(cells, pid)
    cell = -1 if _someone_before(header, cells, waits, due) else _free_cell(header, cells)
    if cell >= 0:
        _write(header, cells, cell, pid, start, token, now)
        return cell
    places = np.flatnonzero(waits[:, STATE] == FREE)
    if not len(places):
        return -1
    place = int(places[0])
    waits[place, DEADLINE:] = (deadline, pid, token, later)
    waits[place, STATE] = WAITS
    header[WAITING] += 1
    return -2 - place


def permits_renew(
    header: Words, cells: Words, waits: Words, cell: int, token: int, deadline: int, later: int, now: int, /
) -> bool:
    """Whether a cell may be kept for something with another deadline: it is still the caller's, and nobody waits
    with an earlier one."""
    if int(cells[cell, TOKEN]) != token:
        return False
    due = deadline + later * (_held_by(cells, int(cells[cell, HOLDER])) - 1)
    kept = not _someone_before(header, cells, waits, due)
    if kept:
        cells[cell, SINCE] = now
    return kept


def permits_give(header: Words, cells: Words, waits: Words, cell: int, token: int, now: int, /) -> None:
    """Free a cell, if it is the caller's and there is one (-1: none), and give free cells to those who wait, the
    earliest deadline first."""
    if cell >= 0 and int(cells[cell, TOKEN]) == token:
        cells[cell] = 0
    while header[WAITING] > 0 and (found := _free_cell(header, cells)) >= 0:
        first = _first_waiting(cells, waits)
        if first is None:
            header[WAITING] = 0
            return
        place = first[1]
        pid, who = waits[place, PID : WHO + 1].tolist()
        # Told first: were this process killed in between, a permit too many is out, and none is lost.
        waits[place, STATE] = GIVEN + found
        header[WAITING] -= 1
        _write(header, cells, found, pid, 0, who, now)


def _held_by(cells: Words, pid: int) -> int:
    return int(np.count_nonzero(cells[:, HOLDER] == pid))


def _first_waiting(cells: Words, waits: Words) -> tuple[int, int] | None:
    """The earliest deadline, and the place of the one who waits with it."""
    dues = [
        (deadline + later * _held_by(cells, pid), place)
        for place in np.flatnonzero(waits[:, STATE] == WAITS).tolist()
        for _, deadline, pid, _, later in [waits[place].tolist()]
    ]
    return min(dues, default=None)


def _someone_before(header: Words, cells: Words, waits: Words, due: int) -> bool:
    first = _first_waiting(cells, waits) if header[WAITING] > 0 else None
    return first is not None and first[0] < due


def _free_cell(header: Words, cells: Words) -> int:
    """A cell that may be taken; -1: as many are as may be."""
    limit = min(len(cells), max(1, int(header[LIMIT])))
    free = np.flatnonzero(cells[:limit, HOLDER] == 0)
    return int(free[0]) if len(free) and np.count_nonzero(cells[:, HOLDER]) < limit else -1


def _write(header: Words, cells: Words, cell: int, pid: int, start: int, token: int, now: int) -> None:
    cells[cell] = (pid, start, token, now)
    header[MOST] = max(int(header[MOST]), int(np.count_nonzero(cells[:, HOLDER])))


in_python = SimpleNamespace(take=permits_take, renew=permits_renew, give=permits_give)
in_c = (
    None
    if calls is None
    else SimpleNamespace(take=calls.permits_take, renew=calls.permits_renew, give=calls.permits_give)
)
