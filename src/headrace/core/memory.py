"""How much memory and how many CPUs this process may use: the machine's and its container's limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

_PROC = "/proc"
_CGROUPS = "/sys/fs/cgroup"
_MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage, in cgroups of version 2 and of version 1."""
_STACK, _HEAP = 8 << 20, 64 << 20
"""Addresses that a thread takes: its stack (where no limit says how large one is) and a heap of its own."""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def cgroup_directories(controller: str, root: str = "", proc: str = "") -> list[str]:
    """Directories of the cgroups that bind this process, innermost first: its own, and all those above it.
    ``root`` and ``proc``: where to look, if not where all systems have them.

    In a container the path in /proc is often the machine's, while the mounted root is the container's own, so
    the roots always count; directories that are not there set no limit.
    """
    root, proc = root or _CGROUPS, proc or _PROC
    v1 = os.path.join(root, controller)
    found: list[str] = []
    for line in _read(os.path.join(proc, "self/cgroup")).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        base = v1 if controllers else root
        found += [os.path.join(base, *parts[:depth]) for depth in range(len(parts), 0, -1)]
    return [*found, root, v1]


def _memory_limits() -> Iterator[tuple[int, int | None, str]]:
    """Limit, usage and directory of each cgroup that limits memory."""
    for directory in cgroup_directories("memory"):
        for limit_file, usage_file in _MEMORY_FILES:
            limit = _number(os.path.join(directory, limit_file))
            if limit is not None:
                yield limit, _number(os.path.join(directory, usage_file)), directory


def total_memory() -> int:
    """Bytes of memory of this machine, or of the container if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *(limit for limit, _, _ in _memory_limits())])


def available_memory() -> int:
    """Bytes that can still be allocated without swapping or being killed."""
    available = total_memory()
    for line in _read(os.path.join(_PROC, "meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            available = min(available, int(line.split()[1]) * 1024)
    for limit, usage, directory in _memory_limits():
        if usage is not None:
            # The page cache counts as usage but is given back under pressure.
            available = min(available, max(0, limit - usage) + _reclaimable(directory))
    return available


def _reclaimable(directory: str) -> int:
    stat = dict(line.split() for line in _read(os.path.join(directory, "memory.stat")).splitlines())
    # In version 1, "inactive_file" leaves out the cgroups below, whose pages count as usage all the same.
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def address_limit() -> int | None:
    """Bytes of addresses that this process may have (``ulimit -v``); None: as many as it likes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def address_room() -> int | None:
    """Bytes of addresses that this process may still take; None: as many as it likes."""
    limit = address_limit()
    if limit is None:
        return None
    words = _read(os.path.join(_PROC, "self/statm")).split()
    return max(0, limit - (int(words[0]) * os.sysconf("SC_PAGE_SIZE") if words else limit // 2))


def thread_room(most: int) -> int:
    """How many threads, of ``most``, may be started in half of the addresses that this process may still take.

    With the last of them a thread begins, finds none for its first object and dies, and Python waits for ever for it
    to say that it has begun (python/cpython#140746). So that point must not be reached.
    """
    room = address_room()
    if room is None:
        return most
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if stack == resource.RLIM_INFINITY:
        stack = _STACK
    return min(most, room // 2 // (stack + _HEAP))


def usable_cpus() -> int:
    """CPUs that this process may use: affinity and cgroup quota considered."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cpus = os.cpu_count() or 1
    for quota, period in _quotas():
        cpus = min(cpus, max(1, -(-quota // period)))
    return max(1, cpus)


def _quotas() -> Iterator[tuple[int, int]]:
    """CPU time and the time in which it may be used, of each cgroup that limits it."""
    for directory in cgroup_directories("cpu"):
        words = _read(os.path.join(directory, "cpu.max")).split()
        words = words or [
            _read(os.path.join(directory, f"cpu.cfs_{word}_us")).strip() for word in ("quota", "period")
        ]
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            yield int(words[0]), int(words[1])
