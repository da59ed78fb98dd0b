"""Room in a disk tier: which process may write where, and what has to go. All that takes a lock is here.

A segment is written by one process at a time, which holds a lock on it; locks die with their processes. What a dead
one left is written on by the next. A segment's bytes are reserved before the first of them is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.cache.disk.table import ROWS, Table, create

_SEGMENTS = 256
"""Into about so many a budget is divided."""
_SMALLEST = 256 << 10
_BLOCK = 4096
"""Bytes that files take are a multiple of this."""
REST = 60.0
"""Seconds for which nobody has read a segment before it may be evicted."""
_AHEAD = 64
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
        self._lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locking = threading.RLock()
        self._in_use, self._may_grow = -1, True
        self._own, self._name_here = -1, os.urandom(16)
        """The owner of what this process copies ahead of need."""
        try:
            with self._locked():
                self._use()
                self._table = self._load()
                self._tidy()
        except BaseException:
            self.close()
            raise

    def _use(self) -> None:
        """Say that a job has this dataset open, for as long as this process lives or until ``close``."""
        self._in_use = self._hold(self._owner, fcntl.LOCK_SH)

    def _hold(self, owner: bytes, kind: int) -> int:
        """Under the lock: say that an owner is running."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(os.path.join(self._jobs, owner.hex()), flags, 0o600)
        fcntl.flock(fd, kind)
        return fd

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone with what all processes share."""
        with self._locking:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _load(self) -> Table:
        """The table, under the lock. One that cannot be read is begun anew, and so is the cache."""
        with contextlib.suppress(OSError, ValueError):
            return Table(os.open(self._name, os.O_RDWR | os.O_CLOEXEC))
        buckets = max(64, self._budget >> 20)
        table = create(self._name + ".new", min(buckets.bit_length(), 16))
        os.replace(self._name + ".new", self._name)
        return table

    def _tidy(self) -> None:
        """Under the lock: budget as wanted, nothing in the folder that the table does not know, and not too much."""
        table = self._table
        alone = self._owners() <= {self._owner}
        table.budget = self._budget if alone else max(self._budget, table.budget)
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
        for fd in (self._own, self._in_use, self._lock):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._own = self._in_use = self._lock = -1

    @property
    def table(self) -> Table:
        """The table, also if it has grown meanwhile."""
        if self._table.superseded:
            with self._locked():
                if self._table.superseded:
                    self._table = self._load()
        return self._table

    def segment_path(self, number: int) -> str:
        """The file of a segment."""
        return os.path.join(self._segments, f"{number:08x}")

    def grow(self) -> None:
        """A larger table, if one is due and there is room for it."""
        if not self._may_grow:
            return
        with self._locked():
            table = self._table
            table.recount()
            if not table.superseded and table.crowded:
                if self._taken() + 4 * table.nbytes > table.budget:
                    self._may_grow = False  # hints take the places of others from now on
                    return
                table.larger(self._name)
            if table.superseded:
                self._table = self._load()

    def claim(self, needed: int, before: tuple[int, int] | None) -> tuple[int, int, int, int] | None:
        """A segment with room for so many bytes, for this process alone: its number, a descriptor, where to begin
        and where to end. None: there is none.

        ``before``: the segment that was written so far, and its size. It is over with it if there is another.
        """
        with self._locked():
            table = self.table
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
        row = int(rows[0])
        number = table.enter(row, size, self._owner, time.time())
        try:
            fd = os.open(self.segment_path(number), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            table.remove(row)
            raise
        fcntl.flock(fd, fcntl.LOCK_EX)
        return number, fd, 0

    def begin_ahead(self, needed: int) -> tuple[int, int] | None:
        """A segment of so many bytes for what is copied ahead of need: its number and a descriptor. None: no room."""
        needed = _whole(needed)
        with self._locked():
            table = self.table
            segments = table.segments
            if self._taken_ahead() + needed > table.budget // _AHEAD:
                self._sweep()  # of those that were killed
            room = min(table.budget // _AHEAD - self._taken_ahead(), self._free())
            rows = np.flatnonzero(segments["number"] == 0)
            if room < needed or not len(rows) or not self._is_spare(needed):
                return None
            if self._own < 0:
                self._own = self._hold(self._name_here, fcntl.LOCK_EX)
            row = int(rows[0])
            number = table.enter(row, needed, self._name_here, time.time(), ahead=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            try:
                fd = os.open(self.segment_path(number), flags, 0o600)
            except OSError:
                table.remove(row)
                raise
            fcntl.flock(fd, fcntl.LOCK_EX)
            return number, fd

    @property
    def free_ahead(self) -> int:
        """Bytes that there is room for."""
        with self._locked():
            return min(self.table.budget // _AHEAD - self._taken_ahead(), self._free())

    def release(self, numbers: Sequence[int]) -> None:
        """What was copied ahead of need was used."""
        with self._locked():
            for number in numbers:
                if int(self.table.segments[number & (ROWS - 1)]["number"]) == number:
                    self._evict(number & (ROWS - 1))

    def _is_spare(self, size: int) -> bool:
        """Whether the file system has so much to spare."""
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
        if taken is not None:
            self._remove(self.segment_path(number))
            self._table.remove(row)
            os.close(taken[0])

    def _remove(self, path: str) -> None:
        """Remove a segment. Its bytes are free at once, also where somebody reads it, who then finds nothing."""
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
        with contextlib.suppress(OSError):
            os.unlink(path)

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
            self._table = self._load() if self._table.superseded else self._table
            return self._taken()


def _is_number(name: str) -> bool:
    try:
        return len(name) == 8 and int(name, 16) > 0
    except ValueError:
        return False


def _whole(nbytes: int) -> int:
    """Bytes that a file of so many takes."""
    return -(-nbytes // _BLOCK) * _BLOCK
