"""The roster: which ranks on this machine prepare samples, what each needs, and what each may use of the machine.

A table in shared memory that all ranks of a user map, of whatever job, as far as they may use the same CPUs, and
their workers with them. A rank that comes takes a row. It writes there what it needs, and finds there what it may
use: to change that costs a write, and to look it up a read. A rank that is gone is noticed by its process's number
and the time at which that was started; nothing has to be given back by the dead.

All numbers are words of 64 bits: a header, rows, and what ``permits.py`` keeps.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS, ROW_WIDTH = 256, 32
CELLS, CELL_WIDTH = 512, 4
WAITS, WAIT_WIDTH = 1024, 5
_HEADER = 16
_MAGIC = 0x68656164726F7303
"""Another layout takes another number."""
MAGIC, LIMIT, WAITING, MOST, DECIDED_AT, DECIDER, THREADS_HERE, BURIED_AT = range(8)
PID, START, THREADS, TAKEN, TAKEN_AT, INTERVAL, READS, PROCESSES, PREPARE = range(9)
_NEEDS = 9
"""From here on a row has what its rank needs, as floating point numbers."""
_WORDS = _HEADER + ROWS * ROW_WIDTH + CELLS * CELL_WIDTH + WAITS * WAIT_WIDTH

_rosters: weakref.WeakSet[Roster] = weakref.WeakSet()


class Roster:
    """The table, as one process sees it."""

    def __init__(self, fd: int) -> None:
        """``fd``: the file in which it lies; this object's own from now on."""
        self._fd = fd
        self._attach()
        with self.locked():
            if os.fstat(fd).st_size < 8 * _WORDS:
                os.ftruncate(fd, 8 * _WORDS)
            self._map()
            if self.header[MAGIC] != _MAGIC:
                self._words[:] = 0
                self.header[MAGIC] = _MAGIC

    @classmethod
    def at(cls, path: str) -> Roster:
        """The one in a file, which is made if it is not there."""
        return cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    @classmethod
    def of_its_own(cls) -> Roster:
        """One that no other job knows."""
        return cls(os.memfd_create("headrace-roster"))

    def _attach(self) -> None:
        # A lock of one's own after every fork: another thread of the parent may have held the old one.
        self._threads = threading.Lock()
        # A file that was opened here: one that was inherited is locked for the parent, too.
        self._lock = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        _rosters.add(self)
        self._owner = os.getpid()
        self.me = (self._owner, started(self._owner))

    def _map(self) -> None:
        self.memory = memoryview(mmap.mmap(self._fd, 8 * _WORDS))
        self._words = np.frombuffer(self.memory, np.int64)
        self.header = self._words[:_HEADER]
        end = _HEADER + ROWS * ROW_WIDTH
        self.rows = self._words[_HEADER:end].reshape(ROWS, ROW_WIDTH)
        self.needs: NDArray[np.float64] = self.rows[:, _NEEDS:].view(np.float64)
        self.cells = self._words[end : end + CELLS * CELL_WIDTH].reshape(CELLS, CELL_WIDTH)
        self.first_wait = end + CELLS * CELL_WIDTH
        self.waits = self._words[self.first_wait :].reshape(WAITS, WAIT_WIDTH)

    def attach(self) -> None:
        """Call first thing in a process that was forked."""
        if os.getpid() != self._owner:
            self._attach()

    def locked(self) -> Roster:
        """Keep others from changing what takes more than one write. The kernel opens the lock of a dead process.

        (Not a record lock, as the board's: with two of these, each held by one thread and waited for by another, two
        processes look like a deadlock to the kernel, which knows them by process, and refuses.)
        """
        return self

    def __enter__(self) -> None:
        self.attach()
        self._threads.acquire()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    # -- ranks -----------------------------------------------------------------------------------------------

    def take_row(self) -> int:
        """A row for a rank of this process; -1 if all are taken."""
        with self.locked():
            for row in range(ROWS):
                pid, start = self.rows[row, : START + 1].tolist()
                if not pid or not alive(pid, start):
                    self.rows[row] = 0
                    self.rows[row, START] = self.me[1]
                    self.rows[row, PID] = self.me[0]
                    return row
        return -1

    def give_row(self, row: int) -> None:
        """A rank is gone."""
        with self.locked():
            self.rows[row] = 0

    def bury(self) -> None:
        """Forget ranks that are gone without a word."""
        with self.locked():
            for row in np.flatnonzero(self.rows[:, PID]).tolist():
                if not alive(*self.rows[row, : START + 1].tolist()):
                    self.rows[row] = 0

    def present(self) -> list[int]:
        """The rows that are taken."""
        found: list[int] = np.flatnonzero(self.rows[:, PID]).tolist()
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": reduction.DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd = state["fd"].detach()
        self._attach()
        self._map()


_DEAD, _STOPPED = (b"Z", b"X"), (b"T", b"t")


def _let_go() -> None:
    """In a process that was forked: what it holds open of its parent's would stay locked if the parent died."""
    for roster in list(_rosters):
        if roster._lock >= 0:
            os.close(roster._lock)
            roster._lock = -1


os.register_at_fork(after_in_child=_let_go)


def started(pid: int, *, stopped: bool = True) -> int:
    """When a process was started, in the kernel's ticks; 0 if there is none, or it is dead and not yet buried.

    ``stopped``: one that was stopped (Ctrl-Z, a debugger) counts.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        words = file.read().rpartition(b")")[2].split()
        return 0 if words[0] in _DEAD or (words[0] in _STOPPED and not stopped) else int(words[19])
    return 0


def alive(pid: int, start: int = 0, *, stopped: bool = True) -> bool:
    """Whether a process lives, and is the one that was started then; 0: whenever that was. See ``started``."""
    if pid == os.getpid():
        return True
    found = started(pid, stopped=stopped)
    if found or started(os.getpid()):
        return found == start if start else found > 0
    try:  # no process tells when it was started
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
