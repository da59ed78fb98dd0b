"""Carries messages between the shared host and those who are connected: lets them in, hears them, lets them go.

What is said means nothing here; a ``Handler`` knows. Whatever goes wrong costs the connection that it came from.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import Counter
from typing import Protocol

import msgspec

from headrace.channel.channel import Attached, Channel, Listener, Memory
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import Refused, Reply, Request, decode_request
from headrace.core.errors import ProtocolError
from headrace.host.connections import MOST_OF_ONE, Connection, log, most_connections, named

_HELLO = 10.0
"""Seconds in which somebody who connects has to say who it is, and who is sent away has to read why."""
_REST = 1.0
"""Seconds for which nobody is let in where descriptors or memory for it lack."""
AT_ONCE = 64
"""Connections that are taken before others have their turn, and messages of a worker that are read whose job goes."""


class Handler(Protocol):
    """Knows what messages mean."""

    def handle(self, connection: Connection, request: Request, attached: Attached | None) -> None:
        """Somebody said something. What this raises ends the connection."""
        ...

    def farewell(self, connection: Connection) -> None:
        """Somebody is gone. Does not fail. (What it said before may still be heard.)"""
        ...


class Switchboard:
    """All connections of the host, and what is waited for on them."""

    handler: Handler

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.connections: dict[int, Connection] = {}
        """By descriptor: of the channel, and of the process where one is watched."""
        self._by_pid: Counter[int] = Counter()
        """Connections of each process."""
        self._most = most_connections()
        self._resting = 0.0
        """Until when nobody is let in; 0: everybody is."""
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._signals, self.wake = socket.socketpair()
        """What is written to ``wake`` ends a wait: a process has its signals' numbers written there."""
        for sock in (self._signals, self.wake):
            sock.setblocking(False)
        self._epoll.register(self._signals, select.EPOLLIN)

    # -- the loop's part ---------------------------------------------------------------------------------------

    @property
    def resting(self) -> bool:
        """Whether nobody is let in for a moment."""
        return bool(self._resting)

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait until somebody wants something, or for so long; what ``serve`` is to be told."""
        return self._epoll.poll(seconds)

    def serve(self, fd: int, events: int) -> None:
        """Take in what somebody says, or send what it can take now, or let somebody in."""
        connection = self.connections.get(fd)
        if connection is None:
            self._accept()
        elif fd == connection.watched:  # its process has ended
            self.drop(connection)
        else:
            if events & ~select.EPOLLIN:
                self._flush(connection)
            if events & ~select.EPOLLOUT:
                self.hear(connection, 1)  # others want to be heard, too

    def look(self, now: float) -> None:
        """Let somebody in again, if the rest is over."""
        if self._resting and now >= self._resting:
            self._resting = 0.0
            self._epoll.register(self.listener.fileno(), select.EPOLLIN)

    def drop_silent(self, now: float) -> None:
        """Let go of those who never said who they are or do not read why they are sent away."""
        for connection in set(self.connections.values()):
            if (connection.leaving or not connection.role) and now - connection.since > _HELLO:
                self.drop(connection)

    def close(self) -> None:
        """Let everybody go, without a farewell."""
        self.listener.close()
        for connection in set(self.connections.values()):
            with contextlib.suppress(OSError, ProtocolError):
                connection.flush()
            connection.channel.close()

    # -- who comes and goes ------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(64)
        for _ in range(0 if self._resting else AT_ONCE):
            try:
                channel = self.listener.accept()
                if channel is None:
                    return
                self._let_in(channel)
            except OSError as error:
                # Those who wait stay where they are. To look at them all the time would help nobody.
                log(f"nobody is let in for {_REST:g} s: {named(error)}")
                self._epoll.unregister(self.listener.fileno())
                self._resting = time.monotonic() + _REST
                return

    def _let_in(self, channel: Channel) -> None:
        connection = Connection(channel, channel.peer, since=time.monotonic())
        pid = connection.peer.pid
        # (0 is the pid of whoever is in another container)
        of_one = self._by_pid[pid] if pid else 0
        if of_one >= MOST_OF_ONE or self._by_pid.total() >= self._most:
            log(f"{connection.peer.name} is sent away: {of_one} connections, {self._by_pid.total()} in all")
            with contextlib.closing(channel), contextlib.suppress(OSError):
                channel.send(encoder.encode(Refused("it has too many connections", again=True)))
            return
        self._epoll.register(channel.fileno(), select.EPOLLIN)
        self.connections[channel.fileno()] = connection
        self._by_pid[pid] += 1

    def watch(self, connection: Connection) -> None:
        """Let go of somebody when its process ends, too: those that it forked may hold its end of the channel."""
        with contextlib.suppress(OSError):
            connection.watched = connection.channel.watch()
            if connection.watched >= 0:
                self.connections[connection.watched] = connection
                self._epoll.register(connection.watched, select.EPOLLIN)

    def drop(self, connection: Connection) -> None:
        """Somebody is gone, or has to go."""
        if connection.gone:
            return
        connection.gone = True
        connection.outbox.clear()
        pid = connection.peer.pid
        self._by_pid[pid] -= 1
        if not self._by_pid[pid]:
            del self._by_pid[pid]
        for fd in [fd for fd in (connection.channel.fileno(), connection.watched) if fd >= 0]:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)
            self.connections.pop(fd, None)
        connection.channel.close()
        self.handler.farewell(connection)

    # -- what is said ------------------------------------------------------------------------------------------

    def hear(self, connection: Connection, most: int) -> None:
        """Take in messages. This is the boundary: whatever fails here costs that connection alone."""
        for _ in range(most):
            if connection.gone or connection.leaving:
                return
            attached: Attached | None = None
            try:
                received = connection.channel.receive()
                if received is None:
                    self.drop(connection)
                    return
                data, attached = received
                self.handler.handle(connection, decode_request(data), attached)
            except BlockingIOError:
                return
            except (ProtocolError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._complain(connection, error)
                self.refuse(connection, f"the host did not understand: {str(error)[:500]}")
                self.drop(connection)
                return
            except Exception as error:  # of ours, or of the system's: another try may go better
                self._complain(connection, error)
                self.drop(connection)
                return
            finally:
                if attached is not None:
                    attached.close()

    @staticmethod
    def _complain(connection: Connection, error: Exception) -> None:
        log(f"{connection.role or 'somebody'} ({connection.peer.name}): {named(error)}")

    def refuse(self, connection: Connection, reason: str, *, again: bool = False) -> None:
        """Send somebody away once it has read why."""
        connection.leaving, connection.since = True, time.monotonic()
        self.reply(connection, Refused(reason, again))

    def reply(self, connection: Connection, reply: Reply, memory: Memory | None = None) -> None:
        """Tell somebody something, now or when it has room for it."""
        if connection.gone:
            return
        try:
            connection.post(reply, memory)
        except ProtocolError as error:
            self._complain(connection, error)
            self.drop(connection)
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if connection.gone:
            return
        try:
            sent = connection.flush()
        except (OSError, ProtocolError) as error:
            self._complain(connection, error)
            self.drop(connection)
            return
        events = 0 if connection.leaving else select.EPOLLIN
        events |= 0 if sent else select.EPOLLOUT
        if not events:
            self.drop(connection)
        elif connection.events != events:
            connection.events = events
            self._epoll.modify(connection.channel.fileno(), events)
