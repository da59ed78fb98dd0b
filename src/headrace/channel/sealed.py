"""Long things that travel between processes of one machine: anonymous files that cannot be changed any more."""

from __future__ import annotations

import fcntl
import os

from headrace.core.errors import ProtocolError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE


def as_memfd(data: bytes) -> int:
    """A new descriptor of an anonymous file that holds ``data`` and cannot be changed any more."""
    fd = os.memfd_create("headrace-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def from_memfd(fd: int, limit: int) -> bytes:
    """What ``as_memfd`` made, at most ``limit`` bytes. The descriptor stays open.

    Raises ProtocolError for anything else: without the seals the sender could still change or cut what is read.
    """
    try:
        # First of all: only files in memory have seals, and of others even the size may take for ever to be told.
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ProtocolError("a descriptor that should hold a message is not sealed")
        status = os.fstat(fd)  # after the seals were seen: from now on it cannot shrink
        size = status.st_size
        if size > limit:
            raise ProtocolError(f"a message of {size} bytes arrived; the limit is {limit}")
        if 512 * status.st_blocks < size:
            # Nobody who wrote it has holes in it. They cost the sender nothing, and the reader time and memory.
            raise ProtocolError(f"a message of {size} bytes arrived of which some were never written")
        parts, at = [], 0
        while at < size:
            part = os.pread(fd, size - at, at)
            if not part:
                raise ProtocolError("a descriptor that should hold a message ends early")
            parts.append(part)
            at += len(part)
    except OSError as error:
        raise ProtocolError(f"a descriptor that should hold a message cannot be read: {error}") from None
    return b"".join(parts)
