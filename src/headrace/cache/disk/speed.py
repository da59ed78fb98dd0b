"""How fast a disk reads: measured once for a folder, and written down there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time

_SIZE = 64 << 20
_PIECE = 4 << 20
_SECONDS = 1.0
"""A disk that takes longer over less than all of it is known well enough."""
_NAME = "speed"


def read_speed(path: str) -> float:
    """Bytes per second that the disk under a folder gives, its memory left aside. 0: it cannot be told."""
    name = os.path.join(path, _NAME)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        with open(name) as file:
            known = float(json.load(file)["bytes_per_second"])
        if known > 0 and math.isfinite(known):
            return known
    found = _measure(path)
    if found:
        with contextlib.suppress(OSError):
            new = f"{name}.{os.getpid()}"
            with open(new, "w") as file:
                json.dump({"bytes_per_second": found, "at": time.time()}, file)
            os.replace(new, name)
    return found


def _measure(path: str) -> float:
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return 0.0
    try:
        written, begun = 0, time.perf_counter()
        while written < _SIZE and time.perf_counter() - begun < _SECONDS:
            written += os.write(fd, os.urandom(_PIECE))
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # else it would be read from memory
        have, begun = 0, time.perf_counter()
        while have < written and time.perf_counter() - begun < _SECONDS:
            have += len(os.pread(fd, _PIECE, have))
        return have / max(time.perf_counter() - begun, 1e-9)
    except OSError:
        return 0.0
    finally:
        os.close(fd)
