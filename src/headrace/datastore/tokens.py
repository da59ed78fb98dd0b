"""Who lives: a process holds a lock on one byte of a file for as long as it runs, and the kernel lets go of it.

The byte's place is the process's token, a random number. Locks belong to the open file: children that are forked
hold them, too, so a job's token lives as long as any process of it. Nothing is left behind in the file system.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct

_FLOCK = "hhqqi4x"
"""``struct flock`` of 64-bit Linux: type, whence, start, length, process."""
_BITS = 62


class Tokens:
    """The file of locks, and this process's own token in it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.own = secrets.randbits(_BITS)
        self._lock(fcntl.F_OFD_SETLK, self.own)

    def lives(self, token: int) -> bool:
        """Whether somebody holds it."""
        if token == self.own:
            return True
        answer = self._lock(fcntl.F_OFD_GETLK, token)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Let go of the own token, but for children that have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self, command: int, token: int) -> bytes:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, token, 1, 0)
        while True:
            try:
                answer: bytes = fcntl.fcntl(self._descriptor, command, asked)
                return answer
            except OSError as error:
                if error.errno != errno.EINTR:
                    raise
