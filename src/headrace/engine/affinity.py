"""The CPUs that a process keeps to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

_THREADS = "/proc/self/task"


def keep_to(cpus: Iterable[int]) -> None:
    """Let this process, with all threads that it has by now, run on these CPUs alone.

    Where that is not to be had (it is forbidden, or its container has lost those CPUs), all stays as it was.
    """
    wanted = set(cpus)
    threads = [0]  # the one that calls, and all that it will start
    with contextlib.suppress(OSError):
        # Libraries that a spawned process imports first have started some.
        threads += [int(name) for name in os.listdir(_THREADS) if name.isdigit()]
    for thread in threads:
        with contextlib.suppress(OSError, AttributeError, ValueError, OverflowError):
            os.sched_setaffinity(thread, wanted)
