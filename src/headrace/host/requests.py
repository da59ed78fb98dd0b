"""What those who are connected to the shared host may ask of it, and what the commons is told of that."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from headrace.channel.channel import Attached, Memory
from headrace.coordinate.commons import Commons
from headrace.coordinate.events import (
    Asked,
    Began,
    Buried,
    Came,
    Done,
    Event,
    GiveBack,
    Gone,
    Named,
    Neared,
    Tidied,
    WasIdle,
)
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
    Nearer,
    Noted,
    Ping,
    Pong,
    Reply,
    Request,
    Shutdown,
    StatusReply,
    Welcome,
)
from headrace.core.errors import ProtocolError
from headrace.core.memory import available_memory
from headrace.host.cache_memory import CacheMemory
from headrace.host.connections import Connection, log, named
from headrace.host.control import version_refusal
from headrace.host.device_rooms import DeviceRooms
from headrace.host.event_file import EventFile
from headrace.host.members import Members
from headrace.host.report import describe
from headrace.host.switchboard import AT_ONCE, Switchboard

_FAILURES = 10
"""Failures of its own, one after the other, after which a host goes."""
_SMALL, _COPIES = 64 << 20, 8
"""Bytes of identities for which nobody looks whether there is memory, and how often they are copied."""


class Requests:
    """Handles what is asked. See ``Handler``."""

    def __init__(
        self,
        commons: Commons,
        memory: CacheMemory,
        switchboard: Switchboard,
        events: EventFile | None,
        took_long: Callable[[], None],
    ) -> None:
        """``events``: where all that happens is written down. ``took_long``: a request was worth the time it took."""
        self._commons, self._memory, self._switchboard = commons, memory, switchboard
        self._told: Commons | EventFile = commons if events is None else events
        self._took_long = took_long
        self._started = time.time()
        self._answers: list[tuple[int, Reply]] = []
        """What is to be told to whom."""
        self.members = Members()
        self.devices = DeviceRooms(switchboard)
        self.stopping = False
        """The host is to end."""
        self.failures = 0

    def broken(self, error: Exception) -> None:
        """Something failed that nobody can be let go for. If it goes on like that, jobs are better off with another
        host."""
        log(f"of itself: {named(error)}")
        self.failures += 1
        self.stopping |= self.failures >= _FAILURES

    # -- requests ----------------------------------------------------------------------------------------------

    def handle(self, connection: Connection, request: Request, attached: Attached | None) -> None:
        """See ``Handler``."""
        if isinstance(request, Hello):
            self._hello(connection, request)
        elif connection.role == "job":
            self._job_request(connection, request, attached)
        elif connection.role == "worker":
            self._worker_request(connection, request)
        elif connection.role == "device":
            self.devices.handle(connection, request, attached)
        elif connection.role == "near" and isinstance(request, Nearer):
            self._nearer(connection, request)
        elif connection.role == "control" and isinstance(request, GetStatus):
            status = describe(
                self._commons.state, self.members.workers, self.devices.describe(), self._started
            )
            self._switchboard.reply(connection, StatusReply(msgspec.json.encode(status)))
        elif connection.role == "control" and isinstance(request, Shutdown):
            self.stopping = True
        else:
            raise ProtocolError(f"{type(request).__name__} from a connection of role {connection.role!r}")

    def _hello(self, connection: Connection, hello: Hello) -> None:
        refusal = version_refusal(hello.version)
        before = self.members.job_of(hello.job)
        if refusal is not None:
            self._switchboard.refuse(connection, refusal)
        elif connection.role or hello.role not in ("job", "worker", "device", "near", "control"):
            raise ProtocolError(f"a second hello, or the unknown role {hello.role!r}")
        elif hello.role == "worker" and before is None:
            self._switchboard.refuse(connection, "its job is not known here", again=True)
        else:
            connection.role, connection.token = hello.role, hello.job
            if hello.role == "worker":
                self.members.add_worker(connection)
            if hello.role == "job":
                if before is not None:
                    self._switchboard.drop(before)
                self.members.open(connection)
                self._switchboard.watch(connection)
            if hello.role == "device":
                self._switchboard.watch(connection)
                self.devices.welcome(connection)
            shared = Memory(self._memory.fd) if hello.role in ("job", "worker") else None
            welcome = Welcome(self._commons.state.instance, self._memory.span)
            self._switchboard.reply(connection, welcome, shared)

    def _job_request(self, connection: Connection, request: Request, attached: Attached | None) -> None:
        member = connection.member
        if isinstance(request, Ask):
            self.tell(Asked(member, request.indices, request.most, request.over, request.spent))
        elif isinstance(request, Finished):
            self.tell(Done(member, request))
        elif isinstance(request, Ping):
            self._switchboard.reply(connection, Pong())
        elif isinstance(request, Begin):
            progress = None
            if attached is not None:
                progress = attached.read(self._commons.progress_limit(member))
            self.tell(Began(member, request, progress))
        elif isinstance(request, Join):
            self.tell(Came(member, connection.token, connection.peer.pid, request))
        elif isinstance(request, Identities) and attached is not None:
            self._identities(connection, attached)
        else:
            raise ProtocolError(f"{type(request).__name__} from a job")

    def _identities(self, connection: Connection, attached: Attached) -> None:
        size = self._commons.identity_bytes(connection.member)
        if size > _SMALL and _COPIES * size > available_memory():
            self._switchboard.refuse(connection, f"there is no memory to number {size // 16} samples")
            return
        self.tell(Named(connection.member, attached.read(size)))
        self._took_long()  # of very many samples it does, and is no standing still

    def _worker_request(self, connection: Connection, request: Request) -> None:
        if isinstance(request, Finished):
            self.tell(Done(connection.member, request))
            if connection.fill is not None and connection.fill[0] not in self._commons.state.tickets:
                connection.fill = None
        elif isinstance(request, Idle):
            if connection.fill is None:
                self.tell(WasIdle(connection.member), connection)
        else:
            raise ProtocolError(f"{type(request).__name__} from a worker")

    def _nearer(self, connection: Connection, nearer: Nearer) -> None:
        known = nearer.dataset in self._commons.state.universe.datasets
        lost = (
            known
            and nearer.more
            and nearer.before > 0
            and self._commons.has_lost_near(nearer.dataset, time.monotonic())
        )
        if known and not lost:
            self.tell(Neared(nearer.dataset, nearer.samples, nearer.more))
        self._switchboard.reply(connection, Noted(known and not lost, lost))

    # -- the commons -------------------------------------------------------------------------------------------

    def tell(self, event: Event, worker: Connection | None = None) -> None:
        """Tell the commons what happened. ``worker``: who has nothing to do, if that is what happened."""
        for member, answer in self._told.handle(event, time.monotonic()):
            if isinstance(answer, Fill):
                assert worker is not None
                worker.fill = (answer.order.ticket, answer.order.rows)
                self._switchboard.reply(worker, answer)
            elif isinstance(answer, GiveBack):
                self._memory.give_back(answer.ranges)
            else:
                self._answers.append((member, answer))

    def send_replies(self) -> None:
        """Send what the commons has answered."""
        while self._answers:
            answers, self._answers = self._answers, []
            for member, answer in answers:
                connection = self.members.jobs.get(member)
                if connection is not None:
                    self._switchboard.reply(connection, answer)

    def farewell(self, connection: Connection) -> None:
        """See ``Handler``."""
        try:
            if connection.role == "job":
                for worker in list(self.members.workers[connection.member]):
                    self._switchboard.hear(worker, AT_ONCE)  # what they said before counts
                self.members.close(connection)
                self.tell(Gone(connection.member))
                self.tell(Tidied())
            elif connection.role == "worker":
                if connection.fill is not None:
                    ticket, rows = connection.fill
                    self.tell(Done(connection.member, Finished(ticket, 0, rows)))
                self.members.remove_worker(connection)
            elif connection.role == "device":
                self.devices.farewell(connection)
            for member in self.members.bury():
                self.tell(Buried(member))
        except Exception as error:
            self.broken(error)
