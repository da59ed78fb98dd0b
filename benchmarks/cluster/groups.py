"""Control groups, of the first version: who gets how much of which CPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def make_cgroup(name: str, cpus: float) -> str:
    """A control group that gets so much of the CPUs. (Of the first version, which this benchmark was made on.)"""
    place = Path(f"/sys/fs/cgroup/cpu/headrace-bench-{name}")
    place.mkdir(exist_ok=True)
    (place / "cpu.cfs_period_us").write_text("20000")
    (place / "cpu.cfs_quota_us").write_text(str(int(20000 * cpus)))
    return str(place)


def make_cpuset(name: str, cpu: int) -> str:
    """A control group that has one CPU."""
    place = Path(f"/sys/fs/cgroup/cpuset/headrace-bench-{name}")
    place.mkdir(exist_ok=True)
    (place / "cpuset.mems").write_text(Path("/sys/fs/cgroup/cpuset/cpuset.mems").read_text())
    (place / "cpuset.cpus").write_text(str(cpu))
    return str(place)


def enter(cgroup: str) -> None:
    """Have this process in a control group."""
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))


def move(nodes: Iterable[str], cgroup: str) -> None:
    """Have all that runs in some network namespaces in a control group."""
    for name in nodes:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        for pid in listed.stdout.split():
            with contextlib.suppress(OSError):
                Path(cgroup, "cgroup.procs").write_text(pid)


@contextlib.contextmanager
def one_queue() -> Iterator[None]:
    """All processes that begin meanwhile share a CPU as their priorities say, and not session by session first.

    (Which of them share one would be a matter of who has started whom; and Linux 6.18 has a session wait for minutes
    beside another whose weight changes all the time.) Whoever ends the benchmark has it as it was, too.
    """
    before = AUTOGROUP.read_text() if AUTOGROUP.exists() else ""
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with contextlib.suppress(PermissionError):
            if before:
                AUTOGROUP.write_text("0")
        yield
    finally:
        with contextlib.suppress(PermissionError):
            if before:
                AUTOGROUP.write_text(before)
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def busy(cgroup: str) -> Iterator[None]:
    """Somebody else's work, two processes of it."""
    # (it ends with this process, however that ends)
    work = f"import os\nwhile os.getppid() == {os.getpid()}:\n    for _ in range(1000000): pass"
    command = [sys.executable, "-c", work]
    processes = [subprocess.Popen(command, preexec_fn=lambda: enter(cgroup)) for _ in range(2)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
