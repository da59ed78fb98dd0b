"""What a process has open."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


def open_fds() -> set[str]:
    """Descriptors of this process and what they lead to."""
    gc.collect()
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return {entry for entry in found if "/proc/" not in entry}


@contextmanager
def none_left_open(but: int = 0) -> Iterator[None]:
    """Nothing is opened that stays open (or as little as is said). What tests before have left behind, such as idle
    connections, may be closed meanwhile."""
    before = open_fds()
    yield
    left = open_fds() - before
    assert len(left) <= but, f"left open: {sorted(left)}"
