"""The board: where a host posts orders and workers claim them.

Workers pull. The host only posts, so a training process that is busy with its step holds nobody up, a slow
worker delays only what it claimed, and idle workers find work without asking. A claim is one short critical
section under a POSIX record lock, which the kernel releases when its holder dies, and it is written down, so
that the host knows exactly what a dead worker had taken and posts that again.

Where only a worker finds out how much memory a batch takes, it takes that here, too: from a list of ranges of the
arena. The host frees one with a single write, so it can be taken again as soon as the batch in it is gone.

All numbers lie in one shared page range: a header, the list, then a ring of entries.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np

from headrace.cache.arena import Arena

CAPACITY = 4096
_HEAD, _TAIL, _END, _LEFT, _FEW, _TAKEN, _ROWS, _MAKING = range(8)
_HEADER = 8
RANGES = 256
"""Ranges that can be listed."""
_OFFSET, _BYTES, _SINCE = range(3)  # of each: 0 bytes, no range; since when it is free, 0: it is not
UNUSED, PUT_DOWN = 1, 2
"""Since when a range is free that was never used, and one that was too small."""
_RING = _HEADER + RANGES * 3
_ORDER, _AREA, _AREA_BYTES, _START, _LENGTH, _CLAIMER, _GROWN, _GROWN_BYTES, _COUNT = range(
    9
)  # of each entry
_WIDTH = 9
_LATEST = 0.05
"""The weight of one order in what making a row takes."""
FREE, CANCELLED = 0, -1
_ALONE = 1 << 40
"""Added to the claimer of an entry: its order is the only one that the claimer is busy with."""
_EARLY = 1 << 41
"""Added to the claimer of an entry that was claimed before others in front of it."""


class Claim(NamedTuple):
    """An order that this worker has taken."""

    position: int
    order: int
    area: tuple[int, int]
    """The range of the arena in which the order's encoding lies: offset, bytes."""
    start: int
    length: int


class Board:
    """A ring of posted orders in shared memory."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._range = arena.allocate((_RING + CAPACITY * _WIDTH) * 8)
        self._lock_fd = os.memfd_create("headrace-lock") if hasattr(os, "memfd_create") else _lock_file()
        self._work_fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._attach()
        self._header[_END] = arena.size
        arena.extend = self.extend

    def _attach(self) -> None:
        # A lock object of one's own after every fork: another thread of the parent may have held the old one.
        self._threads = threading.Lock()
        buffer = self._arena.map(*self._range)
        words = np.frombuffer(buffer, np.int64)
        self._header = words[:_HEADER]
        self._ranges = words[_HEADER:_RING].reshape(RANGES, 3)
        self._entries = words[_RING : _RING + CAPACITY * _WIDTH].reshape(CAPACITY, _WIDTH)

    def attach(self) -> None:
        """Call first thing in a worker."""
        self._attach()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._lock_fd, fcntl.LOCK_UN)

    # -- the host's side ----------------------------------------------------------------------------------

    def room(self, oldest_open: int) -> int:
        """Entries that can be posted while the one at ring position ``oldest_open`` is still needed."""
        return CAPACITY - (int(self._header[_TAIL]) - oldest_open)

    def post(self, order: int, area: tuple[int, int], start: int, length: int, rows: int = 1) -> int:
        """Post an order of ``rows`` whose encoding lies at ``start`` in ``area``; returns its ring position."""
        # Under the lock, so that no worker sees the tail before the entry: processors may reorder writes.
        with self._locked():
            tail = int(self._header[_TAIL])
            if tail - int(self._header[_HEAD]) >= CAPACITY:
                raise RuntimeError(f"the board is full: {CAPACITY} orders wait")
            self._entries[tail % CAPACITY] = (order, *area, start, length, FREE, 0, 0, rows)
            self._header[_TAIL] = tail + 1
        return tail

    def wake(self, orders: int) -> None:
        """Let workers know that ``orders`` more orders wait."""
        if orders:
            os.eventfd_write(self._work_fd, orders)

    def cancel(self, position: int) -> bool:
        """Take an order back; False if a worker already has it."""
        with self._locked():
            entry = self._entries[position % CAPACITY]
            if entry[_CLAIMER] != FREE:
                return False
            entry[_CLAIMER] = CANCELLED
            return True

    def claimer(self, position: int) -> int | None:
        """The worker that claimed the order at ``position``, if any."""
        claimer = int(self._entries[position % CAPACITY][_CLAIMER])
        if claimer <= FREE or (position >= int(self._header[_HEAD]) and not claimer & _EARLY):
            # Not claimed, or by a worker that was killed before the head moved: others will claim it again.
            return None
        return (claimer & (_ALONE - 1)) - 1

    def was_alone(self, position: int) -> bool:
        """Whether the claimer of ``position`` said that it is busy with that order alone."""
        claimer = int(self._entries[position % CAPACITY][_CLAIMER])
        return claimer > FREE and bool(claimer & _ALONE)

    def grown(self, position: int) -> tuple[int, int]:
        """The range that the claimer of ``position`` took or made while working on it: offset and bytes."""
        offset, nbytes = self._entries[position % CAPACITY][_GROWN:_COUNT].tolist()
        return offset, nbytes

    def release(self, row: int, since: int) -> None:
        """Let a listed range be taken. ``since``: grows with every call, from more than ``PUT_DOWN`` on.

        One write and no lock: this may run at any point of the host, in the middle of another call.
        """
        self._ranges[row, _SINCE] = since

    def free_ranges(self, nbytes: int = 0) -> int:
        """Listed ranges of at least so many bytes that can be taken."""
        return int(np.count_nonzero(self._ranges[self._ranges[:, _BYTES] >= nbytes, _SINCE]))

    def withdraw(self, keep: int, age: int = 0) -> list[tuple[int, int]]:
        """Take free ranges off the list that were used, all but the ``keep`` that were used last, and those that were
        released less than ``age`` releases before the last one. (What was put down is of no use to anybody.)"""
        with self._locked():
            since = self._ranges[:, _SINCE]
            free = np.flatnonzero(since > UNUSED)
            free = free[np.argsort(since[free])]
            old = free[: max(0, len(free) - keep)]
            if len(old):
                old = old[since[old] <= max(PUT_DOWN, since[free[-1]] - age)]
            found: list[tuple[int, int]] = [tuple(row) for row in self._ranges[old, :_SINCE].tolist()]
            self._ranges[old] = 0
        return found

    # -- a worker's side ----------------------------------------------------------------------------------

    def backlog(self) -> int:
        """Orders that nobody has claimed, about."""
        return max(0, int(self._header[_TAIL]) - int(self._header[_HEAD]))

    @property
    def claimed(self) -> int:
        """Rows of orders that were ever claimed."""
        return int(self._header[_ROWS])

    def made(self, seconds: float) -> None:
        """A worker made rows, each of which took so much of a processor."""
        before = int(self._header[_MAKING])
        self._header[_MAKING] = before + int(((1e9 * seconds) - before) * (_LATEST if before else 1.0))

    @property
    def making(self) -> float:
        """Seconds of a processor that making a row takes here; 0: not known. (Of many workers who say so at the same
        time, some may not be heard.)"""
        return int(self._header[_MAKING]) / 1e9

    def leave_orders(self, seconds: float) -> None:
        """Have workers leave orders to the one who calls, for so long."""
        self._header[_LEFT] = time.monotonic_ns() + int(seconds * 1e9) if seconds > 0 else 0

    @property
    def left(self) -> bool:
        """Whether orders are to be left to somebody else."""
        until = int(self._header[_LEFT])
        return until > 0 and time.monotonic_ns() < until

    def share_orders(self, seconds: float, taken: float = 0.0) -> None:
        """Have workers claim no more than they are about to begin, for so long: somebody else takes the rest, and
        lately so many a second."""
        self._header[_TAKEN] = int(1000 * taken)
        self._header[_FEW] = time.monotonic_ns() + int(seconds * 1e9) if seconds > 0 else 0

    @property
    def shared(self) -> bool:
        """Whether somebody else takes orders, too."""
        until = int(self._header[_FEW])
        return until > 0 and time.monotonic_ns() < until

    @property
    def taken(self) -> float:
        """Orders a second that somebody else takes."""
        return int(self._header[_TAKEN]) / 1000 if self.shared else 0.0

    def wait(self, timeout: float | None = None) -> bool:
        """Block until something may be there to claim; False if nothing was for ``timeout`` seconds."""
        while True:
            try:
                os.eventfd_read(self._work_fd)
                return True
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._work_fd, select.POLLIN)
                if not poll.poll(None if timeout is None else timeout * 1000):
                    return False

    def claim(self, worker: int, skip: int = 0) -> Claim | None:
        """Take the oldest posted order, or None if there is none. ``skip``: leave so many to others, if there are."""
        with self._locked():
            head, tail = int(self._header[_HEAD]), int(self._header[_TAIL])
            while head < tail and self._is_gone(head):
                head += 1
                self._header[_HEAD] = head
            position = min(head + skip, tail - 1)
            while position > head and self._entries[position % CAPACITY][_CLAIMER] != FREE:
                position -= 1
            if position < head:
                return None
            entry = self._entries[position % CAPACITY]
            if position > head:
                entry[_CLAIMER] = (worker + 1) | _EARLY
            else:
                # The claim stands before the head moves: were this process killed in between, the next one would
                # claim the same order again.
                entry[_CLAIMER] = worker + 1
                self._header[_HEAD] = head + 1
            self._header[_ROWS] += entry[_COUNT]
            order, area, area_bytes, start, length = (int(word) for word in entry[:_CLAIMER])
            return Claim(position, order, (area, area_bytes), start, length)

    def _is_gone(self, position: int) -> bool:
        """Whether the order at ``position``, not yet behind the head, was taken back or claimed."""
        claimer = int(self._entries[position % CAPACITY][_CLAIMER])
        return claimer == CANCELLED or (claimer > FREE and bool(claimer & _EARLY))

    def mark_alone(self, claim: Claim) -> None:
        """Say that from now on this worker is busy with a claimed order and no other."""
        self._entries[claim.position % CAPACITY][_CLAIMER] |= _ALONE

    def extend(self, nbytes: int, claim: Claim | None = None) -> int:
        """Make the arena's file longer; the offset of the new range, which belongs to the caller."""
        with self._locked():
            end = int(self._header[_END])
            os.ftruncate(self._arena.fd, end + nbytes)
            self._header[_END] = end + nbytes
            if claim is not None:
                self._note(claim, end, nbytes)
        return end

    def take(self, nbytes: int, claim: Claim | None = None) -> tuple[int, int] | None:
        """A listed range of at least so many bytes, which belongs to the caller now: the one that was used last."""
        with self._locked():
            since = np.where(self._ranges[:, _BYTES] >= nbytes, self._ranges[:, _SINCE], 0)
            row = int(since.argmax())
            if not since[row]:
                return None
            self._ranges[row, _SINCE] = 0  # first: a range that nobody has is better than one that two have
            offset, size, _ = self._ranges[row].tolist()
            if claim is not None:
                self._note(claim, offset, size)
        return offset, size

    def put_down(self, offset: int, nbytes: int) -> None:
        """A worker has no use for a range that it has, and has taken another: this one is the first to go."""
        row = self.enlist(offset, nbytes)
        if row >= 0:
            self.release(row, PUT_DOWN)

    def _note(self, claim: Claim, offset: int, nbytes: int) -> None:
        self._entries[claim.position % CAPACITY][_GROWN:_COUNT] = (offset, nbytes)

    # -- both ---------------------------------------------------------------------------------------------

    def enlist(self, offset: int, nbytes: int) -> int:
        """The row of a range that is in use: the one it has, or a new one; -1 if the list is full."""
        with self._locked():
            offsets, sizes = self._ranges[:, _OFFSET], self._ranges[:, _BYTES]
            rows = np.flatnonzero((offsets == offset) & (sizes > 0))
            if not len(rows):
                rows = np.flatnonzero(sizes == 0)
                if not len(rows):
                    return -1
                self._ranges[rows[0]] = (offset, nbytes, 0)
            return int(rows[0])

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self._lock_fd, self._work_fd):
            os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "arena": self._arena,
            "range": self._range,
            "lock": reduction.DupFd(self._lock_fd),
            "work": reduction.DupFd(self._work_fd),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._arena, self._range = state["arena"], state["range"]
        self._lock_fd, self._work_fd = state["lock"].detach(), state["work"].detach()
        self._attach()


def _lock_file() -> int:
    import tempfile

    fd, path = tempfile.mkstemp(prefix="headrace-lock-")
    os.unlink(path)
    return fd
