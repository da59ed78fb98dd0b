"""A job's end of the connection to the shared host: asks for draws, keeps track of what came, outlives the host.

A job depends on the host for draws and for where cached samples lie, and on nothing else: its batches are prepared
by its own workers in its own memory. So when a host dies, the job finds or starts another, tells it which samples
of the epoch are given out already, and goes on; if there is none to be had, it draws for itself.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.channel.asking import ask_plainly, greet
from headrace.channel.channel import REPLY_LIMIT, Channel, Dial, send_within
from headrace.coordinate.draw_client import DrawClient
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    Drawn,
    Hello,
    Identities,
    Join,
    Joined,
    Over,
    Ping,
    Request,
    decode_reply,
)
from headrace.core import environment
from headrace.core.bits import Bits
from headrace.core.errors import HostRefused, HostSilent, HostUnavailable, ProtocolError
from headrace.host import runtime
from headrace.host.way import Way
from headrace.sampling import Draw, KnownOrder

_PATIENCE = 20.0
"""Seconds to wait for a host to start, and to take a connection."""
_TRIES = 3
"""Hosts that may be lost, one after the other, before a job gives up."""
_PAUSE = 0.2
"""Seconds before another try where a host asks for it."""
_BRIEFLY = 1.0
"""Seconds for a host to answer a job that has gone on without one."""
_PER_SAMPLE = 1e-5
"""Seconds that a host may take over each sample of a dataset that is new to it."""

_COMPANY = 60.0
"""Seconds that a rank waits for the others of its job at a new host before it says so."""


class SharedClient:
    """One rank's connection to the shared host, made again when it is lost, and its draws from there."""

    def __init__(self, identities: Callable[[], NDArray[np.uint8]], way: Way = runtime) -> None:
        """Connects only with ``open``: how samples look may have to be found out first. ``way``: to the host."""
        self.token = uuid.uuid4().hex
        self._identities = identities
        self._way = way
        self._channel: Channel | None = None
        self._draws = DrawClient(self._send)
        self.alone = False
        """There is no host to be had."""
        self._patience = environment.host_patience()
        self._heard = time.monotonic()
        """When the host last said something, or was first waited for."""
        self._pinged = 0.0
        """When it was asked whether it is there; 0: there was no need."""
        self._lonely: float | None = None
        """Since when a rank is at a new host that has dealt it nothing yet."""
        self.takeovers = 0
        self.give_up = self._draws.give_up
        self.done = self._draws.done
        self.drop = self._draws.drop
        self.ask = self._draws.ask

    def open(self, join: Join) -> None:
        """Join the host, which is started if there is none."""
        self._draws.join = join
        self._connect()

    @property
    def opened(self) -> bool:
        """Whether ``open`` was called."""
        return hasattr(self._draws, "join")

    @property
    def instance(self) -> int:
        """See ``DrawClient``."""
        return self._draws.instance

    @property
    def company(self) -> int:
        """See ``DrawClient``."""
        return self._draws.company

    @property
    def has_draws(self) -> bool:
        """See ``DrawClient``."""
        return self._draws.has_draws

    @property
    def awaits_draw(self) -> bool:
        """See ``DrawClient``."""
        return self._draws.awaits_draw and not self.alone

    @property
    def wants(self) -> int:
        """See ``DrawClient``."""
        return self._draws.wants

    @property
    def over(self) -> bool:
        """See ``DrawClient``."""
        return self._draws.over

    def take_updates(self) -> list[Draw]:
        """Draws whose waiting rows need not wait any more."""
        updates, self._draws.updates = self._draws.updates, []
        return updates

    @property
    def has_updates(self) -> bool:
        """Whether there are any."""
        return bool(self._draws.updates)

    @property
    def dial(self) -> Dial:
        """How workers reach the host."""
        return self._way.dial()

    def fileno(self) -> int:
        """The connection's descriptor; -1 if there is none."""
        return -1 if self._channel is None else self._channel.fileno()

    # -- the connection ----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Join a host. One that ends, is killed as it starts or does not answer is not the last that can be had."""
        for left in reversed(range(_TRIES)):
            try:
                self._join_host()
                return
            except HostUnavailable as error:
                if not error.again or not left:
                    raise
                if isinstance(error, HostRefused):
                    time.sleep(_PAUSE)

    def _join_host(self) -> None:
        try:
            channel = self._way.find_or_start(_PATIENCE)
        except OSError as error:  # of this process: it has no descriptors left, say
            raise HostUnavailable(f"the shared host cannot be reached: {error}") from error
        try:
            self._join_at(channel, self._patience)
        except BaseException as error:
            if isinstance(error, HostSilent):
                error.again = self._way.depose(channel)
            channel.close()
            raise

    def _come_back(self) -> None:
        """Look for a host again, without waiting for one. Not for the one that was left: it may have given to others
        what workers here still read."""
        with contextlib.suppress(HostUnavailable, OSError):
            channel = self._way.connect(_BRIEFLY)
            if channel is not None:
                try:
                    self._join_at(channel, _BRIEFLY, but=self._draws.instance)
                except BaseException:
                    channel.close()
                    raise
                self.alone = False

    def _join_at(self, channel: Channel, patience: float, but: int = 0) -> None:
        try:
            welcome, attached = greet(channel, Hello(PROTOCOL, "job", os.getpid(), self.token), patience)
            if attached is not None:
                attached.close()  # of its memory a job needs nothing: its workers do
            if welcome.instance == but:
                raise HostUnavailable("it is the one that was left")
            joined = self._joined(channel, self._draws.join, patience)
            if joined.identities:
                table = np.ascontiguousarray(self._identities())
                self._joined(channel, Identities(), patience + _PER_SAMPLE * len(table), table.tobytes())
        except (OSError, ProtocolError) as error:
            raise HostUnavailable(f"the shared host does not answer: {error}") from error
        self._channel = channel
        self._draws.instance = welcome.instance
        self._is_heard()

    @staticmethod
    def _joined(channel: Channel, request: Request, seconds: float, beside: bytes | None = None) -> Joined:
        reply = ask_plainly(channel, request, seconds, beside)
        if not isinstance(reply, Joined):
            raise ProtocolError(f"it said {type(reply).__name__}")
        return reply

    def _send(self, request: Request, beside: bytes | None = None) -> None:
        """Tell the host. One that is gone is noticed when its answer is read."""
        channel = self._channel
        if channel is None:
            return
        try:
            send_within(channel, self._patience, encoder.encode(request), beside)
            return
        except TimeoutError:
            self._way.depose(channel)
        except OSError:
            pass
        # It is gone, or this process cannot send. What it was not told it must not go on without.
        channel.shut()

    def _is_heard(self) -> None:
        self._heard, self._pinged = time.monotonic(), 0.0

    def _look_after_host(self) -> None:
        """All that it said is read. If something is waited for, see that it is still there to say it."""
        if self._channel is None or not self._draws.awaits_host:
            self._is_heard()
            return
        now, patience = time.monotonic(), self._patience
        if self._lonely is not None and now - self._lonely > _COMPANY:
            self._lonely = None
            warnings.warn(
                f"rank {self._draws.join.rank} waits for the other ranks of its job: their shared host died, and the "
                "new one deals no samples before each of them has told it how far it is. If one of them has ended, "
                "stop this job and go on from its last state_dict().",
                stacklevel=2,
            )
        if self._pinged:
            if now - self._pinged > 0.75 * patience:
                self._way.depose(self._channel)
                self._lost()
        elif now - self._heard > 0.25 * patience:
            self._pinged = now
            self._send(Ping())

    def _lost(self) -> None:
        """The host is gone: find or start another, and go on from what is known here."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._draws.lose_host()
        self.takeovers += 1
        try:
            self._connect()
        except HostUnavailable as error:
            warnings.warn(
                f"the shared host is gone and there is no other: {error} This job goes on alone.",
                stacklevel=2,
            )
            self.alone = True
            return
        if self._draws.go_on_at_new_host():
            self._lonely = time.monotonic()

    # -- epochs and draws --------------------------------------------------------------------------------------

    def begin(
        self, epoch: int, *, explicit: bool, given: Bits | None = None, known: KnownOrder | None = None
    ) -> None:
        """See ``DrawClient``. A job that has gone on without a host looks for one again."""
        if self.alone:
            self._come_back()
        self._draws.begin(epoch, explicit=explicit, given=given, known=known)

    def take(self) -> Draw | None:
        """The next draw, if it is here."""
        if self._draws.awaits_draw:
            self.pump()
            if self.alone:
                self._draws.draw_alone()
        return self._draws.take()

    def pump(self) -> None:
        """Take in what the host has said."""
        while self._channel is not None:
            try:
                received = self._channel.receive(REPLY_LIMIT)
                reply = None
                if received is not None:
                    data, attached = received
                    if attached is not None:
                        attached.close()
                    reply = decode_reply(data)
            except BlockingIOError:
                self._look_after_host()
                return
            except (OSError, ProtocolError, msgspec.MsgspecError):
                reply = None
            if reply is None:
                self._lost()
            else:
                self._is_heard()
                if isinstance(reply, Drawn | Over):
                    self._lonely = None
                self._draws.hear(reply)

    def close(self) -> None:
        """Leave."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.close()
            self._channel = None
