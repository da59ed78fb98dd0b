"""The shared host as a process: one per user and machine, started by the first job that shares.

It carries messages to the commons and replies back, watches who is there, and goes when nobody has been there for
a while. It runs no user code and maps none of the cache's memory; it only says where things lie.

Nothing that somebody sends, or fails to do, ends it. What goes wrong with a request is written to the log and ends
the connection that it came from, and there is an end to all that somebody could let grow.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import select
import signal
import socket
import time
from collections import Counter
from typing import BinaryIO

import msgspec

from headrace.coordinate.commons import Commons
from headrace.coordinate.event_log import Recorder
from headrace.coordinate.events import (
    Asked,
    Began,
    Buried,
    Came,
    Done,
    Emptied,
    Event,
    Filled,
    GiveBack,
    Gone,
    Named,
    Ticked,
    Tidied,
    WasIdle,
)
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
    Ping,
    Pong,
    Refused,
    Reply,
    Request,
    Shutdown,
    StatusReply,
    Welcome,
    decode_request,
)
from headrace.core import environment
from headrace.core.errors import ProtocolError
from headrace.core.memory import available_memory, usable_cpus
from headrace.core.sparse import make_addresses, punch, resident
from headrace.engine import wire
from headrace.host.connections import (
    MOST_OF_ONE,
    Connection,
    allow_descriptors,
    log,
    most_connections,
    named,
)
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
"""Seconds without jobs after which a host goes, or its cache if ranks may come (``HEADRACE_HOST_IDLE``)."""
_HELLO = 10.0
"""Seconds in which somebody who connects has to say who it is, and who is sent away has to read why."""
_REST = 1.0
"""Seconds for which nobody is let in where descriptors or memory for it lack."""
_AT_ONCE = 64
"""Connections that are taken before others have their turn, and messages of a worker that are read whose job goes."""
_FAILURES = 10
"""Failures of its own, one after the other, after which a host goes."""
_SMALL, _COPIES = 64 << 20, 8
"""Bytes of identities for which nobody looks whether there is memory, and how often they are copied."""


class Service:
    """The host's loop."""

    def __init__(self, claimed: Claimed, *, idle: float = IDLE, events: str = "") -> None:
        """``events``: a file to which all that happens is written; see ``event_log``."""
        self._claimed = claimed
        self._idle = idle
        self.started = time.time()
        self._memory = os.memfd_create("headrace-cache", os.MFD_CLOEXEC)
        self.span = make_addresses(self._memory)
        instance = secrets.randbits(62) + 1
        self.commons = Commons(
            instance=instance, nonce=secrets.randbits(64), span=self.span, cpus=usable_cpus()
        )
        self._log: BinaryIO | None = None
        self._recorder: Recorder | None = None
        if events:
            self._log = open(events, "wb")  # noqa: SIM115
            self._recorder = Recorder(self.commons, span=self.span, write=self._record)
        self._answers: list[tuple[int, Reply]] = []
        """What is to be told to whom."""
        self.connections: dict[int, Connection] = {}
        """By descriptor: of the socket, and of the process."""
        self._by_pid: Counter[int] = Counter()
        """Connections of each process."""
        self._most = most_connections()
        self._jobs: dict[int, Connection] = {}
        self._tokens: dict[str, int] = {}
        self.workers: dict[int, set[Connection]] = {}
        """By session; that of a job that is gone stays until its workers are."""
        self._sessions = 0
        self._stop = self._overfull = False
        self._failures = 0
        self._longest = environment.host_patience() / 2
        """Seconds that a turn may take: in less than that, no job gives a host up."""
        self._resting = 0.0
        """Until when nobody is let in; 0: everybody is."""
        self._epoll = select.epoll()
        self._epoll.register(claimed.listener, select.EPOLLIN)
        self._signals, self.wake = socket.socketpair()
        """What is written to ``wake`` ends a wait: a process has its signals' numbers written there."""
        for sock in (self._signals, self.wake):
            sock.setblocking(False)
        self._epoll.register(self._signals, select.EPOLLIN)
        self._quiet_since = self._looked = self._ticked = self._turned = time.monotonic()

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop, or until nobody has been there for a while."""
        self._turned = time.monotonic()
        while not self._stop:
            self._turn()
        self.close()

    def _turn(self) -> None:
        waited_for = any(ticket.waiting for ticket in self.commons.state.tickets.values())
        ready = self._epoll.poll(_TICK if waited_for or self._overfull or self._resting else _LOOK)
        if time.monotonic() - self._turned > self._longest:
            # Jobs may have given this host up, and still read what it would give to others.
            log("it stood still for too long; whoever is still here goes on with another host")
            self._stop = True
            return
        for fd, events in ready:
            connection = self.connections.get(fd)
            if connection is None:
                self._accept()
            else:
                self._serve(connection, fd, events)
            self._send_replies()
        now = self._turned = time.monotonic()
        if self._resting and now >= self._resting:
            self._resting = 0.0
            self._epoll.register(self._claimed.listener, select.EPOLLIN)
        if now - self._ticked >= _TICK:
            self._ticked = now
            self._tick()
        if self._jobs:
            self._quiet_since = now
        if now - self._looked >= _LOOK:
            self._looked = now
            self._look(now)
            found = self._claimed.in_place()
            if not self._jobs and now - self._quiet_since >= (self._idle if found else 0.0):
                if found and self.commons.state.absent.awaited:
                    self._tell(Emptied())  # a rank may come that only this host knows the samples of
                else:
                    self._stop = True

    def _tick(self) -> None:
        try:
            workers = {worker for some in self.workers.values() for worker in some}
            self._tell(Ticked(len(workers)))
            self._send_replies()
            self._give_memory_back()
            self._failures = 0
        except Exception as error:
            self._broken(error)

    def _look(self, now: float) -> None:
        """Let go of those who never said who they are or do not read why they are sent away; and forget."""
        for connection in set(self.connections.values()):
            if (connection.leaving or not connection.role) and now - connection.since > _HELLO:
                self._drop(connection)
        try:
            self._tell(Tidied())
        except Exception as error:
            self._broken(error)
        self._send_replies()

    def _broken(self, error: Exception) -> None:
        """Something failed that nobody can be let go for. If it goes on like that, jobs are better off with another
        host."""
        log(f"of itself: {named(error)}")
        self._failures += 1
        self._stop |= self._failures >= _FAILURES

    def _give_memory_back(self) -> None:
        """If the machine holds more for the cache than its budget, let some of what is not filled go."""
        until = time.monotonic() + _FOR_MEMORY
        self._overfull = True
        while self._overfull and time.monotonic() < until:
            self._overfull = False
            self._tell(Filled(resident(self._memory)))
            self._send_replies()

    def stop(self) -> None:
        """End after the present round."""
        self._stop = True

    def close(self) -> None:
        """Let everybody go. Jobs go on by themselves."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None
        self._claimed.close()
        for connection in set(self.connections.values()):
            with contextlib.suppress(OSError, ProtocolError):
                connection.flush()
            connection.sock.close()

    # -- who is there ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(64)
        for _ in range(0 if self._resting else _AT_ONCE):
            try:
                sock = self._claimed.accept()
                if sock is None:
                    return
                self._let_in(sock)
            except OSError as error:
                # Those who wait stay where they are. To look at them all the time would help nobody.
                log(f"nobody is let in for {_REST:g} s: {named(error)}")
                self._epoll.unregister(self._claimed.listener)
                self._resting = time.monotonic() + _REST
                return

    def _let_in(self, sock: socket.socket) -> None:
        connection = Connection(sock, pid=wire.peer_pid(sock), since=time.monotonic())
        # (0 is the pid of whoever is in another container)
        of_one = self._by_pid[connection.pid] if connection.pid else 0
        if of_one >= MOST_OF_ONE or self._by_pid.total() >= self._most:
            log(f"pid {connection.pid} is sent away: {of_one} connections, {self._by_pid.total()} in all")
            with sock, contextlib.suppress(OSError):
                wire.send(sock, encoder.encode(Refused("it has too many connections", again=True)))
            return
        self._epoll.register(sock, select.EPOLLIN)
        self.connections[sock.fileno()] = connection
        self._by_pid[connection.pid] += 1

    def _serve(self, connection: Connection, fd: int, events: int) -> None:
        """Take in what somebody says, or send what it can take now."""
        if fd == connection.pidfd:
            self._drop(connection)
            return
        if events & ~select.EPOLLIN:
            self._flush(connection)
        if events & ~select.EPOLLOUT:
            self._hear(connection, 1)  # others want to be heard, too

    def _hear(self, connection: Connection, most: int) -> None:
        """Take in messages. This is the boundary: whatever fails here costs that connection alone."""
        for _ in range(most):
            if connection.gone or connection.leaving:
                return
            fds: list[int] = []
            try:
                received = wire.receive(connection.sock)
                if received is None:
                    self._drop(connection)
                    return
                data, fds = received
                self._handle(connection, decode_request(data), fds)
            except BlockingIOError:
                return
            except (ProtocolError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._complain(connection, error)
                self._refuse(connection, f"the host did not understand: {str(error)[:500]}")
                self._drop(connection)
                return
            except Exception as error:  # of ours, or of the system's: another try may go better
                self._complain(connection, error)
                self._drop(connection)
                return
            finally:
                wire.close_all(fds)

    @staticmethod
    def _complain(connection: Connection, error: Exception) -> None:
        log(f"{connection.role or 'somebody'} (pid {connection.pid}): {named(error)}")

    # -- requests ----------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, request: Request, fds: list[int]) -> None:
        if isinstance(request, Hello):
            self._hello(connection, request)
        elif connection.role == "job":
            self._job_request(connection, request, fds)
        elif connection.role == "worker":
            self._worker_request(connection, request)
        elif connection.role == "control" and isinstance(request, GetStatus):
            status = describe(self.commons.state, self.workers, self.started)
            self._reply(connection, StatusReply(msgspec.json.encode(status)))
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
            self._reply(connection, Welcome(self.commons.state.instance, self.span), shared)

    def _open(self, connection: Connection) -> None:
        before = self._tokens.get(connection.token)
        if before is not None:
            self._drop(self._jobs[before])
        connection.session = self._sessions = self._sessions + 1
        self._tokens[connection.token] = connection.session
        self._jobs[connection.session] = connection
        mine = self.workers[connection.session] = set()
        # Workers that were there before it lost its connection are its own again. What its earlier session held
        # stays as it is until they are gone: they may be at work on it.
        for workers in self.workers.values():
            mine.update(worker for worker in workers if worker.token == connection.token)
        for worker in mine:
            worker.session = connection.session
        # Processes that the job forked may hold its end of the socket open; its own end must do.
        with contextlib.suppress(OSError, AttributeError):
            connection.pidfd = os.pidfd_open(connection.pid)
            self.connections[connection.pidfd] = connection
            self._epoll.register(connection.pidfd, select.EPOLLIN)

    def _refuse(self, connection: Connection, reason: str, *, again: bool = False) -> None:
        connection.leaving, connection.since = True, time.monotonic()
        self._reply(connection, Refused(reason, again))

    def _job_request(self, connection: Connection, request: Request, fds: list[int]) -> None:
        commons, session = self.commons, connection.session
        if isinstance(request, Ask):
            self._tell(Asked(session, request.indices))
        elif isinstance(request, Finished):
            self._tell(Done(session, request))
        elif isinstance(request, Ping):
            self._reply(connection, Pong())
        elif isinstance(request, Begin):
            progress = wire.from_memfd(fds[0], commons.progress_limit(session)) if fds else None
            self._tell(Began(session, request, progress))
        elif isinstance(request, Join):
            self._tell(Came(session, connection.token, connection.pid, request))
        elif isinstance(request, Identities) and fds:
            self._identities(connection, fds[0])
        else:
            raise ProtocolError(f"{type(request).__name__} from a job")

    def _identities(self, connection: Connection, fd: int) -> None:
        size = self.commons.identity_bytes(connection.session)
        if size > _SMALL and _COPIES * size > available_memory():
            self._refuse(connection, f"there is no memory to number {size // 16} samples")
            return
        self._tell(Named(connection.session, wire.from_memfd(fd, size)))
        self._turned = time.monotonic()  # of very many samples that takes long, and is no standing still

    def _worker_request(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Finished):
            self._tell(Done(connection.session, request))
            if connection.fill is not None and connection.fill[0] not in self.commons.state.tickets:
                connection.fill = None
        elif isinstance(request, Idle):
            if connection.fill is None:
                self._tell(WasIdle(connection.session), connection)
        else:
            raise ProtocolError(f"{type(request).__name__} from a worker")

    # -- replies -----------------------------------------------------------------------------------------------

    def _tell(self, event: Event, worker: Connection | None = None) -> None:
        """Tell the commons what happened. ``worker``: who has nothing to do, if that is what happened."""
        handle = self.commons.handle if self._recorder is None else self._recorder.handle
        for session, answer in handle(event, time.monotonic()):
            if isinstance(answer, Fill):
                assert worker is not None
                worker.fill = (answer.order.ticket, answer.order.rows)
                self._reply(worker, answer)
            elif isinstance(answer, GiveBack):
                self._overfull = True
                for start, end in answer.ranges:
                    punch(self._memory, start, end)
            else:
                self._answers.append((session, answer))

    def _record(self, frame: bytes) -> None:
        """Write an event down. Jobs do not depend on it: if that fails, there is no more of it."""
        if self._log is None:
            return
        try:
            self._log.write(frame)
        except OSError as error:
            log(f"events are not written down any more: {error}")
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = self._recorder = None

    def _send_replies(self) -> None:
        while self._answers:
            answers, self._answers = self._answers, []
            for session, answer in answers:
                connection = self._jobs.get(session)
                if connection is not None:
                    self._reply(connection, answer)

    def _reply(self, connection: Connection, reply: Reply, fds: tuple[int, ...] = ()) -> None:
        if connection.gone:
            return
        try:
            connection.post(reply, fds)
        except ProtocolError as error:
            self._complain(connection, error)
            self._drop(connection)
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if connection.gone:
            return
        try:
            connection.flush()
        except (OSError, ProtocolError) as error:
            self._complain(connection, error)
            self._drop(connection)
            return
        events = 0 if connection.leaving else select.EPOLLIN
        events |= select.EPOLLOUT if connection.outbox else 0
        if not events:
            self._drop(connection)
        elif connection.events != events:
            connection.events = events
            self._epoll.modify(connection.sock, events)

    # -- farewells ---------------------------------------------------------------------------------------------

    def _drop(self, connection: Connection) -> None:
        """Somebody is gone."""
        if connection.gone:
            return
        connection.gone = True
        if connection.role == "job":
            for worker in list(self.workers[connection.session]):  # what they said before counts
                self._hear(worker, _AT_ONCE)
        connection.outbox.clear()
        self._by_pid[connection.pid] -= 1
        if not self._by_pid[connection.pid]:
            del self._by_pid[connection.pid]
        self._epoll.unregister(connection.sock)
        del self.connections[connection.sock.fileno()]
        connection.sock.close()
        if connection.pidfd >= 0:
            with contextlib.suppress(OSError):
                self._epoll.unregister(connection.pidfd)
            self.connections.pop(connection.pidfd, None)
            os.close(connection.pidfd)
        try:
            self._farewell(connection)
        except Exception as error:
            self._broken(error)

    def _farewell(self, connection: Connection) -> None:
        session = connection.session
        if connection.role == "job":
            del self._jobs[session]
            del self._tokens[connection.token]
            self._tell(Gone(session))
            self._tell(Tidied())
        elif connection.role == "worker":
            if connection.fill is not None:
                ticket, rows = connection.fill
                self._tell(Done(session, Finished(ticket, 0, rows)))
            for workers in self.workers.values():
                workers.discard(connection)
        for over in [one for one, workers in self.workers.items() if not workers and one not in self._jobs]:
            del self.workers[over]
            self._tell(Buried(over))


def main() -> None:
    """Be the host, unless there is one."""
    claimed = claim()
    if claimed is None:
        return
    idle = environment.host_idle(IDLE)
    allow_descriptors()
    # What lives here lives long, or is gone at once by its count of references.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    service = Service(claimed, idle=idle, events=environment.host_events())
    signal.set_wakeup_fd(service.wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: service.stop())
    service.run()


if __name__ == "__main__":
    main()
