"""The arena: the shared memory of a host.

It is one anonymous file (a memfd): it has no name, so nothing of it can be left behind by a killed process,
and it does not count against the size of /dev/shm, which containers set to 64 MiB. Processes inherit its
descriptor and map the parts that they use, when they use them. Where a memfd cannot be had, or a directory is
asked for (``HEADRACE_SHM_DIR``), the file lies there instead, unlinked as soon as it is open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import Any

from headrace.cache.mappings import Mappings
from headrace.core import environment
from headrace.core.errors import OutOfSharedMemory
from headrace.core.layout import aligned
from headrace.core.memory import available_memory
from headrace.core.places import Memory
from headrace.core.ranges import Ranges
from headrace.core.sizes import show_size
from headrace.core.sparse import PAGE, punch

_LOOK = 0.5
"""Seconds for which a look at the available memory holds."""
_NAME = re.compile(r"headrace-(\d+)-(\d+)-(\d+)-\w+\Z")


class Arena:
    """Shared memory that grows, a ``Place``. Offsets are the addresses; every process maps ranges on demand."""

    memory = Memory.ARENA

    def __init__(self, directory: str | None = None) -> None:
        directory = directory or environment.shared_memory_dir() or None
        if directory is None and hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("headrace", os.MFD_CLOEXEC)
            self.directory = None
        else:
            self.directory = directory or ("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
            self.fd = _anonymous_file(self.directory)
        self._maps = Mappings()
        self._free = Ranges()
        self.size = 0
        self.in_use = 0
        self._looked, self._available = 0.0, 0
        self.extend: Callable[[int], int] = self._grow

    # -- the owner's side ---------------------------------------------------------------------------------

    def allocate(self, nbytes: int, *, reserve: bool = True) -> tuple[int, int]:
        """A range of at least ``nbytes`` bytes: its offset and size. Raises if the memory is not there.

        ``reserve=False`` leaves the pages to be taken when they are first written (cache memory, which is
        reserved piece by piece with ``reserve``).
        """
        size = aligned(max(nbytes, 1), PAGE)
        found = self._free.take(size)
        offset = self.extend(size) if found is None else found
        if reserve:
            try:
                self.require(size)
                self.reserve(offset, size)
            except OutOfSharedMemory:
                self._free.free(offset, size)
                raise
            self._available -= size
        self.in_use += size
        return offset, size

    def free(self, offset: int, nbytes: int) -> None:
        """Give a range back; its memory returns to the system at once."""
        self.in_use -= nbytes
        if self.fd < 0:
            return
        # File systems that cannot punch holes keep the memory until the range is used again.
        with contextlib.suppress(OSError):
            punch(self.fd, offset, offset + nbytes)
        self.forget(offset, nbytes)
        self._free.free(offset, nbytes)

    def _grow(self, size: int) -> int:
        """Make the file longer. Once there are workers, which may do so too, the board's way replaces it."""
        offset, self.size = self.size, self.size + size
        os.ftruncate(self.fd, self.size)
        return offset

    def adopt(self, nbytes: int) -> None:
        """Count a range that a worker allocated for the owner."""
        self.in_use += nbytes

    def require(self, size: int) -> None:
        """Raise if there is less memory than that."""
        if self.directory is not None:
            return
        # Looking costs a millisecond, and small batches are many.
        if time.monotonic() - self._looked > _LOOK:
            self._available, self._looked = available_memory(), time.monotonic()
        if self._available < size:
            self._looked = 0.0
            raise OutOfSharedMemory(
                f"{show_size(size)} of shared memory are needed and {show_size(self._available)} are available. "
                "Use a smaller batch_size, prefetch_factor or cache, or give the machine or container more."
            )

    def reserve(self, offset: int, nbytes: int) -> None:
        """Make sure that a range can be written without the system running out under it (a bus error)."""
        if self.directory is None:
            return
        try:
            os.posix_fallocate(self.fd, offset, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                raise
            stat = os.statvfs(self.directory)
            free = stat.f_bavail * stat.f_frsize
            raise OutOfSharedMemory(
                f"{show_size(nbytes)} of shared memory are needed and {self.directory} has {show_size(free)} "
                f"left. Enlarge it (mount -o remount,size=8G {self.directory}; docker run --shm-size=8g); "
                "unset HEADRACE_SHM_DIR to use memory that does not depend on it; "
                "or use a smaller batch_size, prefetch_factor or cache."
            ) from None

    # -- everybody's side ---------------------------------------------------------------------------------

    def map(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of a range. Bounds are checked against the file itself."""
        mapped = self._maps.find(offset, nbytes)
        if mapped is None:
            if offset < 0 or nbytes <= 0 or offset % PAGE or offset + nbytes > os.fstat(self.fd).st_size:
                raise ValueError(f"range {offset}+{nbytes} is outside of the arena")
            mapped = self._maps.add(self.fd, offset, nbytes)
        return mapped

    def forget(self, offset: int, nbytes: int) -> None:
        """Drop this process's mapping of a range."""
        self._maps.forget(offset, nbytes)

    def close(self) -> None:
        """Close the descriptor. Memory that tensors still use lives until they are gone."""
        self._maps.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": reduction.DupFd(self.fd), "directory": self.directory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fd = state["fd"].detach()
        self.directory = state["directory"]
        self._maps, self._free = Mappings(), Ranges()
        self.size = self.in_use = 0
        self.extend = self._grow
        self._looked, self._available = 0.0, 0


def _anonymous_file(directory: str) -> int:
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    sweep(directory)
    with _named_file(directory) as (fd, path):
        # Swept already, where processes that cannot see each other's pids share the directory.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return os.dup(fd)


@contextlib.contextmanager
def _named_file(directory: str) -> Iterator[tuple[int, str]]:
    prefix = f"headrace-{os.getuid()}-{os.getpid()}-{_started(os.getpid())}-"
    fd, path = tempfile.mkstemp(prefix=prefix, dir=directory)
    try:
        yield fd, path
    finally:
        os.close(fd)


def _started(pid: int) -> int:
    """When a process started, in the kernel's ticks; 0 if it does not exist. Tells reused pids apart."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def sweep(directory: str) -> list[str]:
    """Remove arena files that dead processes of this user left in ``directory``, and nothing else."""
    removed = []
    for name in os.listdir(directory):
        match = _NAME.match(name)
        path = os.path.join(directory, name)
        if not match or int(match[1]) != os.getuid() or _started(int(match[2])) == int(match[3]):
            continue
        try:
            if os.lstat(path).st_uid == os.getuid():
                os.unlink(path)
                removed.append(path)
        except OSError:
            pass
    return removed
