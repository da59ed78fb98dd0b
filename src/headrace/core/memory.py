"""How much memory this process may still use: the machine's and its container's limits."""

from __future__ import annotations

import os

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _own_cgroup_files() -> list[tuple[str, str]]:
    """Limit and usage files of this process's own cgroup (v1 or v2), innermost first."""
    found: list[tuple[str, str]] = []
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = "/sys/fs/cgroup" + path, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = "/sys/fs/cgroup/memory" + path
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        found.append((os.path.join(base, names[0]), os.path.join(base, names[1])))
    return found


def total_memory() -> int:
    """Bytes of memory of this machine, or of the container if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit_file, _ in (*_own_cgroup_files(), *_CGROUP_FILES):
        limit = _number(limit_file)
        if limit is not None:
            total = min(total, limit)
    return total


def available_memory() -> int:
    """Bytes that can still be allocated without swapping or being killed."""
    available = total_memory()
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
                    break
    except OSError:
        pass
    for limit_file, usage_file in (*_own_cgroup_files(), *_CGROUP_FILES):
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None and limit < 1 << 60:
            # The page cache counts as usage but is given back under pressure.
            available = min(available, max(0, limit - usage) + _reclaimable(limit_file))
    return available


def _reclaimable(limit_file: str) -> int:
    stat = os.path.join(os.path.dirname(limit_file), "memory.stat")
    try:
        with open(stat) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name in ("inactive_file", "total_inactive_file"):
                    return int(value)
    except OSError:
        pass
    return 0


def usable_cpus() -> int:
    """CPUs that this process may use: affinity and cgroup quota considered."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cpus = os.cpu_count() or 1
    for quota, period in _quotas():
        if quota > 0 and period > 0:
            cpus = min(cpus, max(1, -(-quota // period)))
    return max(1, cpus)


def _quotas() -> list[tuple[int, int]]:
    out = []
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            out.append((int(quota), int(period)))
    except (OSError, ValueError):
        pass
    quota1 = _number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period1 = _number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota1 and period1:
        out.append((quota1, period1))
    return out
