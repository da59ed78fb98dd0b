"""Room in a disk tier: which process may write where, and what has to go. All that takes a lock is here.

A segment is written by one process at a time, which holds a lock on it; locks die with their processes. What a dead
one left is written on by the next. A segment's bytes are reserved before the first of them is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Sequence

import numpy as np

from headrace.cache.disk.lock import Lock, let_go, take
from headrace.cache.disk.table import ROWS, Table, create

_SEGMENTS = 256
"""Into about so many a budget is divided."""
_SMALLEST = 256 << 10
_BLOCK = 4096
"""Bytes that files take are a multiple of this."""
REST = 60.0
"""Seconds for which nobody has read a segment before it may be evicted."""
_AHEAD = 128
"""One part in so many is kept for what is copied ahead of need."""
_SPARE = 0.02
"""Part of the file system that is left to others."""


class Room:
    """The folder of a tier, as one process sees it."""

    def __init__(self, path: str, budget: int, owner: bytes) -> None:
        """``owner``: the dataset; what its segments hold is not evicted while a job has it open."""
        self.path, self._budget, self._owner = path, budget, owner
        self._segments, self._jobs = os.path.join(path, "segments"), os.path.join(path, "jobs")
        for folder in (path, self._segments, self._jobs):
            os.makedirs(folder, 0o700, exist_ok=True)
        self._name = os.path.join(path, "table")
        self._lock = Lock(os.path.join(path, "lock"))
        self._locked = self._lock.held
        self._in_use, self._may_grow = -1, True
        self._unreleased: list[int] = []
        self._own, self._name_here = -1, os.urandom(16)
        """The owner of what this process copies ahead of need."""
        try:
            with self._locked():
                alone = self._use()
                self._table = self._load()
                self._tidy(alone and self._owners() <= {owner})
        except BaseException:
            self.close()
            raise

    def _use(self) -> bool:
        """Say that a job has this dataset open, for as long as this process lives or until ``close``; returns whether
        it is the first."""
        self._in_use = self._hold(self._owner)
        try:
            fcntl.flock(self._in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        take(self._in_use, fcntl.LOCK_SH)
        return alone

    def _hold(self, owner: bytes) -> int:
        """Under the lock: a file that is locked while an owner runs."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(os.path.join(self._jobs, owner.hex()), flags, 0o600)

    def _load(self) -> Table:
        """The table, under the lock. One that cannot be read is begun anew, and so is the cache."""
        with contextlib.suppress(OSError, ValueError):
            table = Table(os.open(self._name, os.O_RDWR | os.O_CLOEXEC))
            table.superseded = False  # (whoever was about to put a larger one here was killed)
            return table
        buckets = max(64, self._budget >> 20)
        table = create(self._name + ".new", min(buckets.bit_length(), 16))
        os.replace(self._name + ".new", self._name)
        return table

    def _current(self) -> Table:
        """Under the lock: the table that all have. ``OSError`` if there is another by now that did not come of it."""
        if self._table.superseded:
            self._table = self._load()
        if not self._table.is_at(self._name):
            raise OSError(errno.ESTALE, "its folder was emptied")
        return self._table

    def _tidy(self, alone: bool) -> None:
        """Under the lock: budget as wanted, nothing in the folder that the table does not know, and not too much.

        ``alone``: no other process has anything open here.
        """
        if alone and self._table.nbytes > self._budget // 2:  # (the budget was far larger once)
            os.unlink(self._name)
            self._table = self._load()
        table = self._table
        table.budget = self._budget if alone else max(self._budget, table.budget)
        table.mend()
        known = {int(number) for number in table.segments["number"] if number}
        for name in os.listdir(self._segments):
            if not _is_number(name) or int(name, 16) not in known:
                self._remove(os.path.join(self._segments, name))
        found = {int(name, 16) for name in os.listdir(self._segments) if _is_number(name)}
        for number in known - found:
            table.remove(number & (ROWS - 1))
        self._sweep()
        with contextlib.suppress(OSError):
            os.unlink(self._name + ".new")
        if self._taken() > table.budget:
            self._settle()
            self._make_room(0, anything=alone)

    def close(self) -> None:
        """This process needs no more of it."""
        if self._own >= 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._jobs, self._name_here.hex()))
        for fd in (self._own, self._in_use):
            let_go(fd)
        self._own = self._in_use = -1
        self._lock.close()

    @property
    def table(self) -> Table:
        """The table, also if it has grown meanwhile. The old one will do if the new one is not to be had."""
        if self._table.superseded:
            with contextlib.suppress(OSError), self._locked():
                self._current()
        return self._table

    def segment_path(self, number: int) -> str:
        """The file of a segment."""
        return os.path.join(self._segments, f"{number:08x}")

    def grow(self) -> None:
        """A larger table, if one is due and there is room for it."""
        if not self._may_grow:
            return
        with self._locked():
            table = self._current()
            table.recount()
            if not table.crowded:
                return
            self._may_grow = self._taken() + 4 * table.nbytes <= table.budget and self._is_spare(
                4 * table.nbytes
            )
            if self._may_grow:
                try:
                    table.larger(self._name)
                except OSError:
                    self._may_grow = False  # hints take the places of others from now on
                self._current()

    def claim(self, needed: int, before: tuple[int, int] | None) -> tuple[int, int, int, int] | None:
        """A segment with room for so many bytes, for this process alone: its number, a descriptor, where to begin
        and where to end. None: there is none.

        ``before``: the segment that was written so far, and its size. It is over with it if there is another.
        """
        with self._locked():
            table = self._current()
            found = self._adopt(needed, before) or self._begin(needed)
            if found is None:
                return None
            if before is not None:
                self._seal(*before)
            number, fd, at = found
            return number, fd, at, int(table.segments[number & (ROWS - 1)]["reserved"])

    def _adopt(self, needed: int, before: tuple[int, int] | None) -> tuple[int, int, int] | None:
        """A segment of the same dataset that nobody writes any more."""
        segments = self._table.segments
        own = np.flatnonzero((segments["number"] != 0) & (segments["open"] != 0))
        for row in own.tolist():
            one = segments[row]
            if bytes(one["owner"]) != self._owner or (before is not None and int(one["number"]) == before[0]):
                continue
            taken = self._take(int(one["number"]))
            if taken is None:
                continue
            fd, size = taken
            if int(one["reserved"]) - size >= needed:
                return int(one["number"]), fd, size
            os.close(fd)
        return None

    def _take(self, number: int) -> tuple[int, int] | None:
        """A segment to write to, and its size, if nobody else writes to it."""
        try:
            fd = os.open(self.segment_path(number), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd, os.fstat(fd).st_size
        except OSError:
            os.close(fd)
            return None

    def _begin(self, needed: int) -> tuple[int, int, int] | None:
        """A new segment, if there is room for one or room can be made."""
        table = self._table
        wanted = _whole(max(needed, table.budget // _SEGMENTS, _SMALLEST))
        kept = max(0, table.budget // _AHEAD - self._taken_ahead())
        free = self._free() - kept
        if free < wanted:
            self._settle()
            free = self._make_room(wanted + kept) - kept
        size = min(wanted, free)
        rows = np.flatnonzero(table.segments["number"] == 0)
        if size < needed or not len(rows) or not self._is_spare(size):
            return None
        number, fd = self._enter(int(rows[0]), size, self._owner)
        return number, fd, 0

    def _enter(self, row: int, size: int, owner: bytes, *, ahead: bool = False) -> tuple[int, int]:
        """Under the lock: a new segment, for this process to write to."""
        number = self._table.enter(row, size, owner, time.time(), ahead=ahead)
        fd = -1
        try:
            fd = os.open(self.segment_path(number), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            let_go(fd)
            self._table.remove(row)
            raise
        return number, fd

    def begin_ahead(self, needed: int) -> tuple[int, int] | None:
        """A segment of so many bytes for what is copied ahead of need: its number and a descriptor. None: no room."""
        needed = _whole(needed)
        with self._locked():
            table = self._current()
            segments = table.segments
            if self._taken_ahead() + needed > table.budget // _AHEAD:
                self._sweep()  # of those that were killed
            room = min(table.budget // _AHEAD - self._taken_ahead(), self._free())
            rows = np.flatnonzero(segments["number"] == 0)
            if room < needed or len(rows) <= ROWS // 2 or not self._is_spare(needed):
                return None
            if self._own < 0:
                self._own = self._hold(self._name_here)
                take(self._own, fcntl.LOCK_EX)
            return self._enter(int(rows[0]), needed, self._name_here, ahead=True)

    @property
    def free_ahead(self) -> int:
        """Bytes that there is room for."""
        with self._locked():
            return min(self._current().budget // _AHEAD - self._taken_ahead(), self._free())

    def release(self, numbers: Sequence[int]) -> None:
        """What was copied ahead of need was used. What cannot be released now is with the next."""
        self._unreleased += numbers
        if not self._unreleased:
            return
        with contextlib.suppress(OSError), self._locked():
            gone, self._unreleased = self._unreleased, []
            rows = self._current().segments
            for number in gone:
                if int(rows[number & (ROWS - 1)]["number"]) == number:
                    self._evict(number & (ROWS - 1))

    def _is_spare(self, size: int) -> bool:
        """Under the lock: whether the file system has so much to spare, with all that is about to be written."""
        segments = self._table.segments
        for row in np.flatnonzero((segments["number"] != 0) & (segments["open"] != 0)).tolist():
            with contextlib.suppress(OSError):
                written = os.stat(self.segment_path(int(segments[row]["number"]))).st_blocks * 512
                size += max(0, int(segments[row]["reserved"]) - written)
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize - size > _SPARE * found.f_blocks * found.f_frsize

    def _taken(self) -> int:
        """Bytes that are taken or reserved."""
        return int(self._table.segments["reserved"].sum()) + self._table.nbytes

    def _taken_ahead(self) -> int:
        """Of those, what was copied ahead of need."""
        segments = self._table.segments
        return int(segments["reserved"][segments["ahead"] != 0].sum())

    def _sweep(self) -> None:
        """Under the lock: what processes copied ahead of need that are gone is of no use."""
        segments = self._table.segments
        rows = np.flatnonzero(segments["ahead"]).tolist()
        running = self._owners() if rows else set()
        for row in rows:
            if bytes(segments[row]["owner"]) not in running:
                self._evict(row)

    def _free(self) -> int:
        return max(0, self._table.budget - self._taken())

    def _settle(self) -> None:
        """Under the lock: what nobody writes any more, and no running job will, frees what it does not take."""
        segments, running = self._table.segments, self._owners()
        for row in np.flatnonzero((segments["number"] != 0) & (segments["open"] != 0)).tolist():
            if bytes(segments[row]["owner"]) in running:
                continue
            taken = self._take(int(segments[row]["number"]))
            if taken is not None:
                os.close(taken[0])
                self._seal(int(segments[row]["number"]), taken[1])

    def _seal(self, number: int, size: int) -> None:
        """Under the lock: nothing more is written to a segment, and what it does not take is free."""
        one = self._table.segments[number & (ROWS - 1)]
        one["open"], one["reserved"] = 0, min(_whole(size), int(one["reserved"]))

    def _make_room(self, wanted: int, *, anything: bool = False) -> int:
        """Under the lock: evict until so many bytes are free, as far as one may; returns how many are.

        ``anything``: also what this dataset has, and what was read just now.
        """
        segments, running, now = self._table.segments, self._owners(), time.time()
        rows = np.flatnonzero(segments["number"] != 0)
        for row in rows[np.argsort(segments["used"][rows], kind="stable")].tolist():
            free = self._table.budget - self._taken()
            if free >= wanted:
                break
            one = segments[row]
            if not anything and (bytes(one["owner"]) in running or 0 <= now - float(one["used"]) < REST):
                continue
            self._evict(row)
        return self._free()

    def _evict(self, row: int) -> None:
        """Under the lock: remove a segment, unless somebody writes to it."""
        number = int(self._table.segments[row]["number"])
        taken = self._take(number)
        if taken is None and not os.path.lexists(self.segment_path(number)):
            self._table.remove(row)  # (whoever entered it was killed before the file was there)
        elif taken is not None:
            self._remove(self.segment_path(number))
            self._table.remove(row)
            os.close(taken[0])

    def _remove(self, path: str) -> None:
        """Remove a segment. Its bytes are free at once, also where somebody reads it, who then finds nothing.

        The name goes first: an empty file that somebody who was killed left would keep its room.
        """
        fd = -1
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            os.unlink(path)
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        let_go(fd)

    def _owners(self) -> set[bytes]:
        """The datasets that running jobs have open."""
        out = {self._owner}
        for name in os.listdir(self._jobs):
            path = os.path.join(self._jobs, name)
            try:
                owner = bytes.fromhex(name)
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except (OSError, ValueError):
                continue
            try:
                if owner != self._owner:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
            except OSError:
                out.add(owner)
            finally:
                os.close(fd)
        return out

    @property
    def taken(self) -> int:
        """Bytes that are taken or reserved."""
        with self._locked():
            self._current()
            return self._taken()


def _is_number(name: str) -> bool:
    try:
        return len(name) == 8 and int(name, 16) > 0
    except ValueError:
        return False


def _whole(nbytes: int) -> int:
    """Bytes that a file of so many takes."""
    return -(-nbytes // _BLOCK) * _BLOCK
