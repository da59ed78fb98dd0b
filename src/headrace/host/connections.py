"""Those who are connected to the shared host: what they are owed, and what there is an end to."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import stat
import time
from collections import deque
from dataclasses import dataclass, field

from headrace.channel.channel import REPLY_LIMIT, Channel, Memory, Peer
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import Reply
from headrace.core.errors import ProtocolError

MOST_OF_ONE = 512
"""Connections of one process."""
_MOST = 8192
"""Connections in all, where the system allows so many descriptors."""
MOST_CHUNKS = 2048
"""Chunks of devices' memory that are kept."""
_SPARE_FDS = 64
"""Descriptors that are kept for everything but connections."""
_MOST_UNSENT = 1024
"""Replies that somebody may leave unread. Who asks no more than it reads has a few."""
_UNSENT_BYTES = 64 << 20
"""The same in bytes, where there are more than a few."""
_FEW = 4
_LOG_LIMIT = 1 << 20
"""Bytes of the log above which it is begun anew."""
_LINE = 500
"""Characters of a line in it."""


@dataclass(eq=False)
class Connection:
    """Somebody who is connected."""

    channel: Channel
    peer: Peer
    role: str = ""
    member: int = -1
    token: str = ""
    watched: int = -1
    """A descriptor that tells of its process's end, if there is one."""
    since: float = 0.0
    """When it connected, or was sent away."""
    fill: tuple[int, int] | None = None
    """The ticket and the rows of what a worker fills now."""
    outbox: deque[tuple[bytes, Memory | None]] = field(default_factory=deque)
    unsent: int = 0
    """Bytes in the outbox."""
    leaving: bool = False
    """Close it once everything is sent."""
    gone: bool = False
    events: int = select.EPOLLIN
    """What it is waited for."""

    def post(self, reply: Reply, memory: Memory | None = None) -> None:
        """Put a reply into the outbox. Raises ProtocolError if it has too many that nobody reads."""
        data = encoder.encode(reply)
        self.outbox.append((data, memory))
        self.unsent += len(data)
        if len(self.outbox) > _MOST_UNSENT or (len(self.outbox) > _FEW and self.unsent > _UNSENT_BYTES):
            raise ProtocolError(f"{len(self.outbox)} replies of {self.unsent} bytes were not read")

    def flush(self) -> bool:
        """Send what there is room for; whether that was all. Raises OSError or ProtocolError for what cannot be sent
        at all."""
        try:
            while self.outbox:
                data, memory = self.outbox[0]
                self.channel.send(data, memory, REPLY_LIMIT)
                self.outbox.popleft()
                self.unsent -= len(data)
            return self.channel.flush()
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self.outbox.clear()  # it is gone, which reading will show: what it said before counts
            return True


def most_connections() -> int:
    """Connections that this process can have. A job takes two descriptors, and some are needed besides."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MOST
    return max(1, min(_MOST, (allowed - _SPARE_FDS) // 2))


def allow_descriptors() -> None:
    """Let this process have as many descriptors as it may. (Nothing in it uses ``select``.)"""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        most = 2 * _MOST + MOST_CHUNKS + _SPARE_FDS
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def named(error: BaseException) -> str:
    """An error on one line, and where it happened."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" ({os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {str(error)[: _LINE // 2]}{where}"


def log(text: str) -> None:
    """A line for the log, which is the standard error. It neither grows without end nor can it fail."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:_LINE])
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(2)
        if stat.S_ISREG(status.st_mode) and status.st_size > _LOG_LIMIT:
            os.ftruncate(2, 0)
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n"
        os.write(2, text.encode(errors="backslashreplace"))
