"""One process at a time: the ranks of a job start together, and each would read all archives through."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from headrace.sources.archives.windows import Stopped

_LOOK = 0.05
"""Seconds between two looks at whether the other is done."""


@contextlib.contextmanager
def alone(path: bytes, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold off others who come here with the same ``path``, which is a file only for that long.

    Where it cannot be made, nobody is held off: to do something twice is no fault, as what is written is written as a
    whole. A process that dies lets the next one in.
    """
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = _acquired(path, stopped)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


def _acquired(path: bytes, stopped: Callable[[], bool]) -> int:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who had it before has deleted it: another may have made a new one by now.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if stopped():
            raise Stopped
        time.sleep(_LOOK)
