"""A disk tier seen from outside: what lies in it, and how it is emptied."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.cache.disk.lock import take
from headrace.cache.disk.table import Table


@dataclass(frozen=True)
class Contents:
    """What lies in a tier."""

    budget: int
    taken: int
    """Bytes, taken or reserved."""
    segments: int
    datasets: int
    running: int
    """Datasets that running jobs have open."""


def look_at(path: str) -> Contents | None:
    """What lies in a tier; None if there is none in that folder."""
    try:
        table = Table(os.open(os.path.join(path, "table"), os.O_RDWR | os.O_CLOEXEC))
    except (OSError, ValueError):
        return None
    rows = table.segments[table.segments["number"] != 0]
    owners = {bytes(owner) for owner in rows["owner"][rows["ahead"] == 0]}
    taken = int(rows["reserved"].sum()) + table.nbytes
    return Contents(table.budget, taken, len(rows), len(owners), len(owners & _running(path)))


def _running(path: str) -> set[bytes]:
    out = set()
    names = []
    with contextlib.suppress(OSError):
        names = os.listdir(os.path.join(path, "jobs"))
    for name in names:
        # (one that ends meanwhile takes its file with it)
        with contextlib.suppress(OSError, ValueError), _opened(os.path.join(path, "jobs", name)) as fd:
            owner = bytes.fromhex(name)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                out.add(owner)
    return out


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def remove_all(path: str) -> bool:
    """Empty a tier; False, and nothing is removed, if running jobs use it."""
    with _opened(os.path.join(path, "lock")) as fd:
        try:
            take(fd, fcntl.LOCK_EX)
        except TimeoutError:
            return False  # whoever has it runs, or was stopped
        if _running(path):
            return False
        for name in ("table", "speed"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, name))
        for name in ("segments", "jobs"):
            shutil.rmtree(os.path.join(path, name), ignore_errors=True)
    return True
