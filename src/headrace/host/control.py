"""How to ask the shared host for its status or its end, and what it tells of itself."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import msgspec

from headrace.channel.asking import ask_plainly, greet
from headrace.channel.channel import Channel, receive_within, send_within, wait
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    GetStatus,
    Hello,
    Shutdown,
    StatusReply,
)
from headrace.core.errors import HostGone, HostUnavailable, ProtocolError
from headrace.host import runtime
from headrace.host.way import Way


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


class DeviceStatus(msgspec.Struct, frozen=True):
    """Decoded images in the memory of a device that jobs share."""

    device: str
    jobs: int = 0
    bytes: int = 0
    """Of its memory that is taken."""
    budget: int = 0


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
    devices: list[DeviceStatus] = msgspec.field(default_factory=list)
    eviction: str = ""
    """What has to go by: ``eviction=``, or "reuse" where it is known what all jobs will draw."""


def version_refusal(version: int) -> str | None:
    """Why a host does not take somebody who speaks this version of the protocol; None if it does."""
    if version == PROTOCOL:
        return None
    return (
        f"the shared host (pid {os.getpid()}) speaks protocol {PROTOCOL} and this job protocol {version}: they are "
        "of different versions of headrace. Run `headrace stop` with the host's version, or end the jobs that use "
        "it, and it makes way"
    )


@contextlib.contextmanager
def _control(timeout: float, way: Way) -> Iterator[Channel | None]:
    """A channel for control; None if there is no host."""
    channel = way.connect(timeout)
    if channel is None:
        yield None
        return
    with contextlib.closing(channel):
        _, attached = greet(channel, Hello(PROTOCOL, "control", os.getpid()), timeout)
        if attached is not None:
            attached.close()
        yield channel


def status(timeout: float = 5.0, way: Way = runtime) -> HostStatus | None:
    """How the host stands; None if there is none. Raises HostUnavailable if it does not answer."""
    try:
        with _control(timeout, way) as channel:
            if channel is None:
                return None
            reply = ask_plainly(channel, GetStatus(), timeout)
    except HostGone:
        return None
    if not isinstance(reply, StatusReply):
        raise ProtocolError(f"the shared host answered with {type(reply).__name__}")
    try:
        return msgspec.json.decode(reply.status, type=HostStatus)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the shared host's status cannot be read: {error}") from None


def stop(timeout: float = 10.0, way: Way = runtime) -> bool:
    """Ask the host to end, and wait until it has; False if there is none.

    Its jobs go on by themselves, or with another host. Raises HostUnavailable if it does not end in time.
    """
    deadline = time.monotonic() + timeout
    name = ""
    try:
        with _control(timeout, way) as channel:
            if channel is None:
                return False
            name = channel.peer.name
            process = channel.watch()  # (to be had while the host is known to live)
            send_within(channel, timeout, encoder.encode(Shutdown()))
            while (received := receive_within(channel, deadline - time.monotonic())) is not None:
                if received[1] is not None:
                    received[1].close()  # whatever it says, the end counts
            if process >= 0 and not wait(process, deadline - time.monotonic()):
                raise TimeoutError
    except TimeoutError:
        raise HostUnavailable(f"the shared host ({name}) did not end within {timeout:g} s") from None
    except (HostGone, BrokenPipeError, ConnectionResetError):
        pass  # it was on its way already
    return True
