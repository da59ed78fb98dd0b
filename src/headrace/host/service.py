"""The shared host as a process: one per user and machine, started by the first job that shares.

It carries messages to the commons and replies back, watches who is there, and goes when nobody has been there for
a while. It runs no user code and maps none of the cache's memory; it only says where things lie.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.coordinate.commons import Commons
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    Ask,
    Begin,
    Fill,
    Finished,
    GetStatus,
    Hello,
    Identities,
    Idle,
    Join,
    Refused,
    Reply,
    Request,
    Shutdown,
    StatusReply,
    Welcome,
    decode_request,
)
from headrace.core.errors import ProtocolError
from headrace.core.memory import usable_cpus
from headrace.core.sparse import make_addresses, punch, resident
from headrace.engine import wire
from headrace.host.control import version_refusal
from headrace.host.report import describe
from headrace.host.runtime import Claimed, claim

_TICK = 0.1
"""Seconds between looks at those who wait."""
_LOOK = 2.0
"""Seconds between looks at whether this host is still wanted, and found."""
_FOR_MEMORY = 0.005
"""Seconds of a tick for giving memory back: about a millisecond for each MiB."""
IDLE = 60.0
"""Seconds without jobs after which a host goes (``HEADRACE_HOST_IDLE``)."""
_IDENTITY_LIMIT = 16 << 30
_PROGRESS_LIMIT = 4 << 30


@dataclass(eq=False)
class Connection:
    """Somebody who is connected."""

    sock: socket.socket
    role: str = ""
    session: int = -1
    token: str = ""
    pid: int = 0
    pidfd: int = -1
    fill: tuple[int, int] | None = None
    """The ticket and the rows of what a worker fills now."""
    outbox: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)
    leaving: bool = False
    """Close it once everything is sent."""


class Service:
    """The host's loop."""

    def __init__(self, claimed: Claimed, *, idle: float = IDLE) -> None:
        self._claimed = claimed
        self._idle = idle
        self.started = time.time()
        self._memory = os.memfd_create("headrace-cache", os.MFD_CLOEXEC)
        self.span = make_addresses(self._memory)
        instance = secrets.randbits(62) + 1
        self.commons = Commons(instance=instance, nonce=secrets.randbits(64), span=self.span)
        self.commons.division.cpus = usable_cpus()
        self.connections: dict[int, Connection] = {}
        """By descriptor: of the socket, and of the process."""
        self._jobs: dict[int, Connection] = {}
        self._tokens: dict[str, int] = {}
        self.workers: dict[int, set[Connection]] = {}
        """By session; that of a job that is gone stays until its workers are."""
        self._sessions = 0
        self._stop = self._overfull = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(claimed.listener, selectors.EVENT_READ, None)
        self._signals, self.wake = socket.socketpair()
        """What is written to ``wake`` ends a wait: a process has its signals' numbers written there."""
        for sock in (self._signals, self.wake):
            sock.setblocking(False)
        self._selector.register(self._signals, selectors.EVENT_READ, None)

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop, or until nobody has been there for a while."""
        quiet_since = looked = ticked = time.monotonic()
        while not self._stop:
            busy = self._overfull or any(ticket.waiting for ticket in self.commons.tickets.values())
            for key, events in self._selector.select(_TICK if busy else _LOOK):
                self.commons.now = time.monotonic()
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data, key.fd, events)
                self._send_replies()
            now = self.commons.now = time.monotonic()
            if now - ticked >= _TICK:
                ticked = now
                self.commons.division.workers = sum(map(len, self.workers.values()))
                self.commons.tick()
                self._send_replies()
                self._give_memory_back()
            if self._jobs:
                quiet_since = now
            if now - looked >= _LOOK:
                looked = now
                patience = self._idle if self._claimed.in_place() else 0.0
                if not self._jobs and now - quiet_since >= patience:
                    self._stop = True
        self.close()

    def _give_memory_back(self) -> None:
        """If the machine holds more for the cache than its budget, let some of what is not filled go."""
        until = time.monotonic() + _FOR_MEMORY
        self._overfull = True
        while self._overfull and time.monotonic() < until:
            ranges = self.commons.pool.loose(resident(self._memory))
            self._overfull = bool(ranges)
            for start, end in ranges:
                punch(self._memory, start, end)

    def stop(self) -> None:
        """End after the present round."""
        self._stop = True

    def close(self) -> None:
        """Let everybody go. Jobs go on by themselves."""
        self._claimed.close()
        for connection in set(self.connections.values()):
            self._flush(connection)
            connection.sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(64)
        while (sock := self._claimed.accept()) is not None:
            connection = Connection(sock, pid=wire.peer_pid(sock))
            self.connections[sock.fileno()] = connection
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, fd: int, events: int) -> None:
        if connection.sock.fileno() < 0:
            return
        if fd == connection.pidfd:
            self._drop(connection)
            return
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        if not events & selectors.EVENT_READ:
            return
        for _ in range(64):  # others want to be heard, too
            if connection.sock.fileno() < 0:
                return
            try:
                received = wire.receive(connection.sock)
            except BlockingIOError:
                return
            except (OSError, ProtocolError) as error:
                self._complain(connection, error)
                received = None
            if received is None:
                self._drop(connection)
                return
            data, fds = received
            try:
                self._handle(connection, decode_request(data), fds)
            except (ProtocolError, msgspec.MsgspecError, ValueError, KeyError) as error:
                self._complain(connection, error)
                self._reply(connection, Refused(f"the host did not understand: {error}"))
                self._drop(connection)
                return
            finally:
                wire.close_all(fds)

    @staticmethod
    def _complain(connection: Connection, error: Exception) -> None:
        text = f"{connection.role or 'somebody'} (pid {connection.pid}): {type(error).__name__}: {error}"
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)

    # -- requests ----------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, request: Request, fds: list[int]) -> None:
        if isinstance(request, Hello):
            self._hello(connection, request)
        elif connection.role == "job":
            self._job_request(connection, request, fds)
        elif connection.role == "worker":
            self._worker_request(connection, request)
        elif connection.role == "control" and isinstance(request, GetStatus):
            self._reply(connection, StatusReply(msgspec.json.encode(describe(self))))
        elif connection.role == "control" and isinstance(request, Shutdown):
            self._stop = True
        else:
            raise ProtocolError(f"{type(request).__name__} from a connection of role {connection.role!r}")

    def _hello(self, connection: Connection, hello: Hello) -> None:
        refusal = version_refusal(hello.version)
        if refusal is not None:
            self._refuse(connection, refusal)
        elif connection.role or hello.role not in ("job", "worker", "control"):
            raise ProtocolError(f"a second hello, or the unknown role {hello.role!r}")
        elif hello.role == "worker" and hello.job not in self._tokens:
            self._refuse(connection, "its job is not known here", again=True)
        else:
            connection.role, connection.token = hello.role, hello.job
            shared: tuple[int, ...] = ()
            if hello.role == "worker":
                connection.session = self._tokens[hello.job]
                self.workers[connection.session].add(connection)
            if hello.role == "job":
                self._open(connection)
            if hello.role != "control":
                shared = (self._memory,)
            self._reply(connection, Welcome(self.commons.instance, self.span), shared)

    def _open(self, connection: Connection) -> None:
        before = self._tokens.get(connection.token)
        if before is not None:
            self._drop(self._jobs[before])
        connection.session = self._sessions = self._sessions + 1
        self._tokens[connection.token] = connection.session
        self._jobs[connection.session] = connection
        self.workers[connection.session] = set()
        # Processes that the job forked may hold its end of the socket open; its own end must do.
        with contextlib.suppress(OSError, AttributeError):
            connection.pidfd = os.pidfd_open(connection.pid)
            self.connections[connection.pidfd] = connection
            self._selector.register(connection.pidfd, selectors.EVENT_READ, connection)

    def _refuse(self, connection: Connection, reason: str, *, again: bool = False) -> None:
        connection.leaving = True
        self._reply(connection, Refused(reason, again))

    def _job_request(self, connection: Connection, request: Request, fds: list[int]) -> None:
        commons, session = self.commons, connection.session
        if isinstance(request, Ask):
            commons.ask(session, request.indices)
        elif isinstance(request, Finished):
            commons.finished(session, request)
        elif isinstance(request, Begin):
            progress = wire.from_memfd(fds[0], _PROGRESS_LIMIT) if fds else None
            commons.begin(session, request, progress)
        elif isinstance(request, Join):
            self._reply(connection, commons.join(session, connection.token, connection.pid, request))
        elif isinstance(request, Identities) and fds:
            table = np.frombuffer(wire.from_memfd(fds[0], _IDENTITY_LIMIT), np.uint8).reshape(-1, 16)
            self._reply(connection, commons.identities(session, table))
        else:
            raise ProtocolError(f"{type(request).__name__} from a job")

    def _worker_request(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Finished):
            if connection.fill is not None and connection.fill[0] == request.ticket:
                connection.fill = None
            self.commons.finished(connection.session, request)
        elif isinstance(request, Idle):
            if connection.fill is None:
                order = self.commons.fill(connection.session)
                if order is not None:
                    connection.fill = (order.ticket, order.rows)
                    self._reply(connection, Fill(order))
        else:
            raise ProtocolError(f"{type(request).__name__} from a worker")

    # -- replies -----------------------------------------------------------------------------------------------

    def _send_replies(self) -> None:
        out, self.commons.out = self.commons.out, []
        for session, reply in out:
            connection = self._jobs.get(session)
            if connection is not None:
                self._reply(connection, reply)

    def _reply(self, connection: Connection, reply: Reply, fds: tuple[int, ...] = ()) -> None:
        connection.outbox.append((encoder.encode(reply), fds))
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if connection.sock.fileno() < 0:
            return
        events = selectors.EVENT_READ
        while connection.outbox:
            try:
                wire.send(connection.sock, *connection.outbox[0])
                connection.outbox.popleft()
            except BlockingIOError:
                events |= selectors.EVENT_WRITE
                break
            except OSError:
                connection.outbox.clear()  # it is gone, which reading will show
        if self._selector.get_key(connection.sock).events != events:
            self._selector.modify(connection.sock, events, connection)
        if connection.leaving and not connection.outbox:
            self._drop(connection)

    # -- farewells ---------------------------------------------------------------------------------------------

    def _drop(self, connection: Connection) -> None:
        """Somebody is gone."""
        if connection.sock.fileno() < 0:
            return
        if connection.role == "job":
            for worker in list(self.workers[connection.session]):  # what they said before counts
                self._serve(worker, worker.sock.fileno(), selectors.EVENT_READ)
        self._selector.unregister(connection.sock)
        del self.connections[connection.sock.fileno()]
        connection.sock.close()
        if connection.pidfd >= 0:
            self._selector.unregister(connection.pidfd)
            del self.connections[connection.pidfd]
            os.close(connection.pidfd)
        session = connection.session
        if connection.role == "job":
            del self._jobs[session]
            del self._tokens[connection.token]
            self.commons.gone(session)
        elif connection.role == "worker":
            self.workers[session].discard(connection)
            if connection.fill is not None:
                ticket, rows = connection.fill
                self.commons.finished(session, Finished(ticket, 0, rows))
        if (
            connection.role
            and session in self.workers
            and session not in self._jobs
            and not self.workers[session]
        ):
            del self.workers[session]
            self.commons.buried(session)


def main() -> None:
    """Be the host, unless there is one."""
    claimed = claim()
    if claimed is None:
        return
    idle = float(os.environ.get("HEADRACE_HOST_IDLE", IDLE))
    # What lives here lives long, or is gone at once by its count of references.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    service = Service(claimed, idle=idle)
    signal.set_wakeup_fd(service.wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: service.stop())
    service.run()


if __name__ == "__main__":
    main()
