"""The first words of every connection to the shared host, and how to ask it for its status or its end."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence

import msgspec

from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    GetStatus,
    Hello,
    Refused,
    Reply,
    Request,
    Shutdown,
    StatusReply,
    Welcome,
    decode_reply,
)
from headrace.core.errors import HostGone, HostRefused, HostSilent, HostUnavailable, ProtocolError
from headrace.engine import wire
from headrace.host.runtime import connect


class MemoryStatus(msgspec.Struct, frozen=True):
    """The cache's memory."""

    budget: int = 0
    used: int = 0
    entries: int = 0
    """Extents in it."""
    granted: int = 0
    """Blocks for extents that are being prepared."""
    encoded: float = 0.0
    """The share of the budget that is set aside for encoded samples; 0: nothing is set aside for any form."""


class JobStatus(msgspec.Struct, frozen=True):
    """One rank of a job that shares."""

    id: str
    name: str = ""
    pid: int = 0
    rank: int = 0
    world_size: int = 1
    dataset: str = ""
    sampling: str = ""
    epoch: int = 0
    left: int = 0
    """Samples of the epoch that are not drawn yet."""
    delivered: int = 0
    """Samples drawn since it joined."""
    rate: float = 0.0
    """Samples per second, of the last seconds."""
    hits: dict[str, int] = msgspec.field(default_factory=dict)
    """Samples by the form in which they entered; "none": fetched."""
    hit_rate: float = 0.0
    workers: int = 0
    idle_s: float = 0.0
    """Seconds since its last draw."""


class DatasetStatus(msgspec.Struct, frozen=True):
    """A dataset that jobs draw from."""

    name: str
    samples: int = 0
    jobs: int = 0


class ShelfStatus(msgspec.Struct, frozen=True):
    """What is cached in one form with one key."""

    form: str
    key: str = ""
    samples: int = 0
    bytes: int = 0
    jobs: int = 0


class HostStatus(msgspec.Struct, frozen=True):
    """How the shared host stands."""

    pid: int
    started: float = 0.0
    """Seconds since 1970."""
    version: str = ""
    protocol: int = PROTOCOL
    memory: MemoryStatus = msgspec.field(default_factory=MemoryStatus)
    jobs: list[JobStatus] = msgspec.field(default_factory=list)
    datasets: list[DatasetStatus] = msgspec.field(default_factory=list)
    shelves: list[ShelfStatus] = msgspec.field(default_factory=list)
    decodes: int = 0
    evictions: int = 0
    refills: int = 0
    """Samples that idle workers prepared for the cache."""


def version_refusal(version: int) -> str | None:
    """Why a host does not take somebody who speaks this version of the protocol; None if it does."""
    if version == PROTOCOL:
        return None
    return (
        f"the shared host (pid {os.getpid()}) speaks protocol {PROTOCOL} and this job protocol {version}: they are "
        "of different versions of headrace. Run `headrace stop` with the host's version, or end the jobs that use "
        "it, and it makes way"
    )


def greet(sock: socket.socket, hello: Hello) -> tuple[Welcome, list[int]]:
    """Say hello on a new connection; the host's welcome and the descriptors that came with it.

    Raises HostUnavailable with the reason if the host refuses, HostGone if it ended meanwhile, and ProtocolError
    for an answer that is none. Waits for as long as the socket's timeout allows.
    """
    reply, fds = ask(sock, hello)
    if isinstance(reply, Welcome):
        return reply, fds
    wire.close_all(fds)
    raise ProtocolError(f"the shared host answered a hello with {type(reply).__name__}")


def ask(sock: socket.socket, request: Request, fds: Sequence[int] = ()) -> tuple[Reply, list[int]]:
    """Send a request and wait for the answer; see ``greet`` for what is raised."""
    try:
        # A host that sends somebody away closes the connection; what it said before is still there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(sock, encoder.encode(request), fds)
        message = wire.receive(sock, wire.REPLY_LIMIT)
    except TimeoutError:
        raise HostSilent(
            f"the shared host (pid {wire.peer_pid(sock)}) did not answer in time; it may be stopped or very busy"
        ) from None
    if message is None:
        raise HostGone("the shared host ended the connection")
    data, received = message
    try:
        reply = decode_reply(data)
    except msgspec.MsgspecError as error:
        wire.close_all(received)
        raise ProtocolError(f"the shared host's answer cannot be read: {error}") from None
    if isinstance(reply, Refused):
        wire.close_all(received)
        raise HostRefused(reply.reason, again=reply.again)
    return reply, received


@contextlib.contextmanager
def _control(timeout: float) -> Iterator[socket.socket | None]:
    """A connection for control; None if there is no host."""
    sock = connect(timeout)
    if sock is None:
        yield None
        return
    with sock:
        sock.settimeout(timeout)
        _, fds = greet(sock, Hello(PROTOCOL, "control", os.getpid()))
        wire.close_all(fds)
        yield sock


def status(timeout: float = 5.0) -> HostStatus | None:
    """How the host stands; None if there is none. Raises HostUnavailable if it does not answer."""
    try:
        with _control(timeout) as sock:
            if sock is None:
                return None
            reply, fds = ask(sock, GetStatus())
    except HostGone:
        return None
    wire.close_all(fds)
    if not isinstance(reply, StatusReply):
        raise ProtocolError(f"the shared host answered with {type(reply).__name__}")
    try:
        return msgspec.json.decode(reply.status, type=HostStatus)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the shared host's status cannot be read: {error}") from None


def stop(timeout: float = 10.0) -> bool:
    """Ask the host to end, and wait until it has; False if there is none.

    Its jobs go on by themselves, or with another host. Raises HostUnavailable if it does not end in time.
    """
    deadline = time.monotonic() + timeout
    try:
        with _control(timeout) as sock:
            if sock is None:
                return False
            pid = wire.peer_pid(sock)
            with _watched(pid) as process:
                wire.send(sock, encoder.encode(Shutdown()))
                while wire.receive(sock) is not None:  # whatever it says, the end counts
                    sock.settimeout(max(0.001, deadline - time.monotonic()))
                if process is not None:
                    left = max(0.0, deadline - time.monotonic())
                    if not wire.wait(process, left):
                        raise TimeoutError
    except TimeoutError:
        raise HostUnavailable(f"the shared host (pid {pid}) did not end within {timeout:g} s") from None
    except (HostGone, BrokenPipeError, ConnectionResetError):
        pass  # it was on its way already
    return True


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[int | None]:
    """A descriptor that is readable once the process has ended, whoever has to reap it; None if there can be none
    (the host is in another container, or the kernel is old). To be had while the host is known to live."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
