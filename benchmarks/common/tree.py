"""What a process tree uses, read from /proc: CPU seconds, and memory as PSS.

PSS (proportional set size) divides each shared page by the number of processes that map it, so the sum over a
tree counts shared memory once. RSS would count a batch that three processes map three times.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36
SAMPLING = 0.01
"""The part of a CPU that looking at memory may take."""


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat: who, whose child, and CPU seconds of itself and of its reaped children."""

    pid: int
    parent: int
    own_s: float
    reaped_s: float


def read_stat(pid: int) -> Stat | None:
    """The process's line, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name may hold spaces and brackets, so fields are counted from the last closing one.
    fields = text[text.rindex(b")") + 2 :].split()
    user, system, child_user, child_system = (int(field) for field in fields[11:15])
    return Stat(pid, int(fields[1]), (user + system) / _TICK, (child_user + child_system) / _TICK)


def descendants(root: int, others: frozenset[int] = frozenset()) -> list[Stat]:
    """Every living process below ``root``, without ``root`` itself, and without ``others`` and what is below them."""
    children: dict[int, list[Stat]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := read_stat(int(entry))):
            children[stat.parent].append(stat)
    found: list[Stat] = []
    todo = [root]
    while todo:
        below = [stat for stat in children.get(todo.pop(), []) if stat.pid not in others]
        found += below
        todo += [stat.pid for stat in below]
    return found


def tree_cpu(root: int) -> float:
    """CPU seconds (user and system) of all processes below ``root``: living ones, and those they reaped."""
    return sum(stat.own_s + stat.reaped_s for stat in descendants(root))


def tree_pss(root: int) -> int:
    """Bytes of memory of all processes below ``root``, shared pages counted once."""
    return sum(pss(stat.pid) for stat in descendants(root))


def pss(pid: int, *fields: str) -> int:
    """Bytes of memory of one process, or those of the named fields; 0 when it is gone."""
    found = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.split(maxsplit=1)[0] in (fields or ("Pss:",)):
                found += int(line.split()[1]) * 1024
    return found


def tree_memory(root: int) -> int:
    """Bytes of memory of all processes below ``root``, with shared memory that none of them has mapped just now.

    A batch that torch's loader has ready is such memory: its worker has unmapped it, and the training process has not
    read it yet, so that its pages are in nobody's PSS.
    """
    pids = [stat.pid for stat in descendants(root)]
    own = sum(pss(pid, "Pss_Anon:", "Pss_File:") for pid in pids)
    return own + sum(dict(held for pid in pids for held in _shared_files(pid)).values())


def _shared_files(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """The shared memory that a process has open: which it is, and its bytes."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}").startswith(("/memfd:", "/dev/shm/")):
                    stat = os.stat(f"{folder}/{name}")
                    yield (stat.st_dev, stat.st_ino), stat.st_blocks * 512


def stolen_cpu() -> tuple[float, float]:
    """CPU seconds that the hypervisor gave to others while this machine wanted them, and all that went by, since it
    was started."""
    with open("/proc/stat", "rb") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return ticks[7] / _TICK, sum(ticks) / _TICK


def stolen_since(before: tuple[float, float]) -> float:
    """The share of all CPU time since then that the hypervisor gave to others. ``before``: ``stolen_cpu`` then."""
    stolen, whole = stolen_cpu()
    return (stolen - before[0]) / max(whole - before[1], 1e-9)


def busy_cpu() -> float:
    """CPU seconds that the whole machine has been busy since it started, or that its hypervisor gave to others."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, stolen = (
            int(word) for word in file.readline().split()[1:9]
        )
    return (user + nice + system + irq + softirq + stolen) / _TICK


def wait_until_idle(patience_s: float, busy: float = 0.1, look_s: float = 0.5) -> bool:
    """Wait until less than ``busy`` CPUs are in use, at most ``patience_s``; whether that came about."""
    until = time.monotonic() + patience_s
    while True:
        before = busy_cpu()
        time.sleep(look_s)
        if (busy_cpu() - before) / look_s < busy:
            return True
        if time.monotonic() > until:
            return False


def adopt_orphans(adopt: bool = True) -> None:
    """Keep processes that outlive their parent, such as daemons, below this one, where they count; or no longer."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


class PeakPss:
    """Samples the memory of the tree below ``root`` in a thread of its own; ``bytes`` is the peak so far."""

    def __init__(
        self,
        root: int,
        every_s: float = 0.25,
        share: float = SAMPLING,
        read: Callable[[int], int] = tree_pss,
    ) -> None:
        self.bytes = 0
        self._read = read
        self._root, self._every_s, self._share = root, every_s, share
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.thread_time()
            self.bytes = max(self.bytes, self._read(self._root))
            # The kernel walks page tables for each reading, so a tree that maps gigabytes is read less often:
            # the sampler must not take more than its share of the CPU it stands beside.
            pause = max(self._every_s, (time.thread_time() - began) / self._share)
