"""What a process has open."""

from __future__ import annotations

import gc
import os


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
