"""The lock of a disk tier: one process at a time, and nobody waits for long.

Whoever holds it needs it for milliseconds, and the kernel takes it from a process that dies. One that was stopped
keeps it, perhaps for hours. A cache is not worth such a wait: it is left alone then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator

PATIENCE = 2.0
"""Seconds for which a lock is waited for."""
_REST = 60.0
"""Seconds after that, for which it is taken only if it is free."""
_PAUSE = 0.02


def take(fd: int, kind: int, seconds: float | None = None) -> None:
    """Lock a file (``fcntl.flock``). ``TimeoutError`` if others hold it for so long, by default ``PATIENCE``."""
    until = time.monotonic() + (PATIENCE if seconds is None else seconds)
    pause = _PAUSE / 64
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "another process keeps its lock") from None
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE)


def let_go(fd: int) -> None:
    """Unlock a file and close it: a process that was forked meanwhile would keep it locked."""
    if fd >= 0:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)


class Lock:
    """A file that is locked by one thread of one process at a time. A thread that has it may take it again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._threads = threading.RLock()
        self._depth, self._patient_from = 0, 0.0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have it. ``OSError`` if it is not to be had, or if the file is gone: others would have another."""
        patience = PATIENCE if time.monotonic() >= self._patient_from else 0.0
        if not self._threads.acquire(timeout=patience):
            raise TimeoutError(errno.ETIMEDOUT, "another thread keeps its lock")
        try:
            if not self._depth:
                self._take(patience)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self._fd >= 0:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _take(self, patience: float) -> None:
        if self._fd < 0:
            raise OSError(errno.EBADF, "it was closed")
        try:
            take(self._fd, fcntl.LOCK_EX, patience)
        except TimeoutError:
            self._patient_from = time.monotonic() + _REST
            raise
        self._patient_from = 0.0
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                raise OSError(errno.ESTALE, "its folder was made anew")
        except OSError:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            raise

    def close(self) -> None:
        """It is not needed any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
