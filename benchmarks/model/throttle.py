"""Slow storage, for real: a limit on the bytes that a group of processes may read from a disk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

V1 = Path("/sys/fs/cgroup/blkio")


class NoThrottle(RuntimeError):
    """Reading cannot be limited here; the message says why."""


class Throttle:
    """A control group of the kernel's block layer (version 1)."""

    def __init__(self, group: Path, device: str) -> None:
        self._group, self.device = group, device

    def limit(self, bytes_s: int) -> None:
        """Let the group read so many bytes a second from the disk."""
        limit_group(self.procs, self.device, bytes_s)

    @property
    def procs(self) -> str:
        """Where processes enter the group."""
        return str(self._group / "cgroup.procs")


def limit_group(procs: str, device: str, bytes_s: int) -> None:
    """Let the processes that entered a group there read so many bytes a second from a device."""
    Path(procs).with_name("blkio.throttle.read_bps_device").write_text(f"{device} {bytes_s}")


@contextlib.contextmanager
def throttle(data: Path) -> Iterator[Throttle]:
    """A group that has a limit on reading from the disk that ``data`` lies on."""
    group = V1 / f"headrace-{os.getpid()}"
    number = os.stat(data).st_dev
    try:
        group.mkdir()
    except OSError as error:
        raise NoThrottle(f"no right to make a control group in {V1}: {error}") from error
    try:
        made = Throttle(group, f"{os.major(number)}:{os.minor(number)}")
        try:
            made.limit(1 << 40)
        except OSError as error:
            raise NoThrottle(f"{data} lies on a device that cannot be limited: {error}") from error
        yield made
    finally:
        deadline = time.monotonic() + 10
        while (group / "cgroup.procs").read_text().split() and time.monotonic() < deadline:
            time.sleep(0.1)
        group.rmdir()
