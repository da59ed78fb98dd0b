"""Channels: messages between two processes, whole and in order, with what is too long for one beside it.

This is all that a host and those who use it know of their connection. Whatever holds on one machine only (descriptors
that travel, the pid and the user at the other end, memory that both map) is in ``unix``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

LIMIT = 64 << 20
"""Bytes of a message that a host takes: what the largest batch needs, and little enough to be read in a moment."""
REPLY_LIMIT = 1 << 30
"""Bytes of a message that a job takes: about 128 for each row of the largest batch."""


class Peer(NamedTuple):
    """Who is at the other end, as it was when it connected or began to listen."""

    pid: int
    """0: not known, or not in our namespace."""
    name: str
    """For people."""


class Memory(NamedTuple):
    """Memory that the other end may map, if the channel can carry it there."""

    fd: int


class Attached(Protocol):
    """What came beside a message. Which of the two it is the message tells; the other end need not be believed."""

    def read(self, limit: int) -> bytes:
        """The bytes that were sent beside the message. Raises ProtocolError if there are more, or it was no bytes."""
        ...

    def memory(self) -> int | None:
        """A descriptor of the memory, open until ``close``; None where the channel carries none."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


Received = tuple[bytes, Attached | None]
"""A message and what came beside it, which is the receiver's to close."""


class Channel(Protocol):
    """One end of a connection. It never waits, and one thread may send while another receives."""

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when ``receive`` has something to tell, and writable when ``send`` or
        ``flush`` has room."""
        ...

    def send(self, data: bytes, beside: bytes | Memory | None = None, limit: int = LIMIT) -> None:
        """Send one message of at least one byte. What is beside it stays the sender's.

        Raises BlockingIOError when there is no room for it now; then nothing was sent. A peer that is gone is a
        BrokenPipeError or ConnectionResetError, and a message over ``limit`` a ProtocolError.
        """
        ...

    def flush(self) -> bool:
        """Whether all that was sent has left this process. What has not does when there is room (see ``fileno``)
        and somebody flushes or sends."""
        ...

    def receive(self, limit: int = LIMIT) -> Received | None:
        """The next message; None at the end of the connection.

        Raises BlockingIOError when there is none, and ProtocolError for one that is cut short or over a limit.
        """
        ...

    def watch(self) -> int:
        """A descriptor that is readable once the process at the other end has ended, whoever else holds its end of
        the connection; -1 where there can be none. The channel's to close."""
        ...

    def end_peer(self, seconds: float) -> bool:
        """Kill the process at the other end and wait for its end; whether that can be done from here.

        Raises ConnectionResetError if it has hung up by itself.
        """
        ...

    def shut(self) -> None:
        """End the connection for both sides at once; those who wait for it wake up. Never fails."""
        ...

    def close(self) -> None:
        """Let this end go. What was sent still arrives."""
        ...


class Listener(Protocol):
    """Where channels come from."""

    def fileno(self) -> int:
        """A descriptor that is readable when somebody wants to connect."""
        ...

    def accept(self) -> Channel | None:
        """The next one who connects; None when nobody waits. Who must not connect is turned away."""
        ...

    def in_place(self) -> bool:
        """Whether those who look for it still find it."""
        ...

    def close(self) -> None:
        """Listen no more. Those already connected stay so."""
        ...


Dial = Callable[[float], Channel]
"""Connects to a host within so many seconds. Raises OSError or ProtocolError if that cannot be. It can be pickled."""


def wait(fd: int, seconds: float | None, *, writable: bool = False) -> bool:
    """Whether a descriptor becomes readable (or writable) in so many seconds; None: in whatever time. Any descriptor
    will do: ``select`` knows those below 1024 only."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT if writable else select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.999))))


def send_within(
    channel: Channel,
    seconds: float | None,
    data: bytes,
    beside: bytes | Memory | None = None,
    limit: int = LIMIT,
) -> None:
    """Send a message, waiting for room. Raises TimeoutError, and what ``Channel.send`` does."""
    deadline: float | None = None
    sent = False
    while True:
        try:
            if not sent:
                channel.send(data, beside, limit)
                sent = True
            if channel.flush():
                return
        except BlockingIOError:
            pass
        if seconds is not None:
            now = time.monotonic()
            deadline = now + seconds if deadline is None else deadline
            left: float | None = deadline - now
        else:
            left = None
        if not wait(channel.fileno(), left, writable=True):
            raise TimeoutError(f"{channel.peer.name} took in nothing for {seconds:g} s")


def receive_within(channel: Channel, seconds: float | None, limit: int = LIMIT) -> Received | None:
    """The next message, waiting for it. Raises TimeoutError, and what ``Channel.receive`` does."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        if not wait(channel.fileno(), None if deadline is None else deadline - time.monotonic()):
            raise TimeoutError(f"{channel.peer.name} said nothing for {seconds:g} s")
        try:
            return channel.receive(limit)
        except BlockingIOError:
            continue
