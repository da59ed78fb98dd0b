"""A job's end of the connection to the shared host: asks for draws, keeps track of what came, outlives the host.

A job depends on the host for draws and for where cached samples lie, and on nothing else: its batches are prepared
by its own workers in its own memory. So when a host dies, the job finds or starts another, tells it which samples
of the epoch are given out already, and goes on; if there is none to be had, it draws for itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.members import STEPS, write_progress
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    MOST_ROWS,
    PROTOCOL,
    Ask,
    Begin,
    Drawn,
    Finished,
    Hello,
    Identities,
    Join,
    Joined,
    Over,
    Ping,
    Refused,
    Reply,
    Request,
    Update,
    decode_reply,
)
from headrace.core import environment
from headrace.core.bits import Bits, put
from headrace.core.errors import HostRefused, HostSilent, HostUnavailable, OptionError, ProtocolError
from headrace.core.forms import Form
from headrace.engine import wire
from headrace.host import runtime
from headrace.host.control import ask, greet
from headrace.host.shared_draw import Ids, SharedDraw, draw_alone

_AHEAD = 1
"""Draws that are asked for before they are needed. More would only lock more of the cache."""
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
    """One rank's session with the shared host."""

    def __init__(self, identities: Callable[[], NDArray[np.uint8]]) -> None:
        """Connects only with ``open``: how samples look may have to be found out first."""
        self.token = uuid.uuid4().hex
        self._identities = identities
        self._sock: socket.socket | None = None
        self.instance = 0
        self.alone = False
        """There is no host to be had."""
        self.company = 0
        """Other jobs that drew what this one prepared, when its host last told."""
        self._patience = environment.host_patience()
        self._heard = time.monotonic()
        """When the host last said something, or was first waited for."""
        self._pinged = 0.0
        """When it was asked whether it is there; 0: there was no need."""
        self._lonely: float | None = None
        """Since when a rank is at a new host that has dealt it nothing yet."""
        self.takeovers = 0
        self.updates: list[SharedDraw] = []
        """Draws whose waiting rows need not wait any more."""
        self._drawn: deque[SharedDraw] = deque()
        self._waiting: dict[int, SharedDraw] = {}
        self._asked: deque[tuple[bytes, Any]] = deque()
        self._epoch = -1
        self._explicit = False
        self._over = False
        self._given = Bits.empty(0)
        self._steps: dict[int, Ids] = {}
        self._step = 0
        self._before: tuple[int, Bits, dict[int, Ids], int] | None = None
        """The epoch before, as this rank of several knows it."""
        self._join: Join

    def open(self, join: Join) -> None:
        """Join the host, which is started if there is none."""
        self._join = join
        self._connect()

    @property
    def opened(self) -> bool:
        """Whether ``open`` was called."""
        return hasattr(self, "_join")

    @property
    def has_draws(self) -> bool:
        """Whether a draw has come that was not taken."""
        return bool(self._drawn) or self._over

    @property
    def awaits_draw(self) -> bool:
        """Whether all that is to be drawn was asked for, and the host has not answered yet."""
        return bool(self._asked) and not (self._drawn or self._over or self.alone)

    @property
    def path(self) -> str:
        """Where workers find the host."""
        return os.path.join(runtime.runtime_dir(), runtime.SOCKET)

    def fileno(self) -> int:
        """The connection's descriptor; -1 if there is none."""
        return -1 if self._sock is None else self._sock.fileno()

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
            sock = runtime.find_or_start(_PATIENCE)
        except OSError as error:  # of this process: it has no descriptors left, say
            raise HostUnavailable(f"the shared host cannot be reached: {error}") from error
        try:
            self._join_at(sock, self._patience)
        except BaseException as error:
            if isinstance(error, HostSilent):
                error.again = runtime.depose(sock)
            sock.close()
            raise

    def _come_back(self) -> None:
        """Look for a host again, without waiting for one. Not for the one that was left: it may have given to others
        what workers here still read."""
        with contextlib.suppress(HostUnavailable, OSError):
            sock = runtime.connect(_BRIEFLY)
            if sock is not None:
                try:
                    self._join_at(sock, _BRIEFLY, but=self.instance)
                except BaseException:
                    sock.close()
                    raise
                self.alone = False

    def _join_at(self, sock: socket.socket, patience: float, but: int = 0) -> None:
        try:
            sock.settimeout(patience)
            welcome, fds = greet(sock, Hello(PROTOCOL, "job", os.getpid(), self.token))
            wire.close_all(fds)
            if welcome.instance == but:
                raise HostUnavailable("it is the one that was left")
            joined = self._joined(sock, self._join)
            if joined.identities:
                table = np.ascontiguousarray(self._identities())
                fd = wire.as_memfd(table.tobytes())
                sock.settimeout(patience + _PER_SAMPLE * len(table))
                try:
                    self._joined(sock, Identities(), (fd,))
                finally:
                    os.close(fd)
            sock.setblocking(False)
        except (OSError, ProtocolError) as error:
            raise HostUnavailable(f"the shared host does not answer: {error}") from error
        self._sock = sock
        self.instance = welcome.instance
        self._is_heard()

    @staticmethod
    def _joined(sock: socket.socket, request: Request, fds: tuple[int, ...] = ()) -> Joined:
        reply, received = ask(sock, request, fds)
        wire.close_all(received)
        if not isinstance(reply, Joined):
            raise ProtocolError(f"it said {type(reply).__name__}")
        return reply

    def _send(self, request: Request, fds: tuple[int, ...] = ()) -> None:
        """Tell the host. One that is gone is noticed when its answer is read."""
        if self._sock is None:
            return
        data = encoder.encode(request)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                wire.send(self._sock, data, fds)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    runtime.depose(self._sock)
                    break
                wire.wait(self._sock.fileno(), 1.0, writable=True)
            except OSError:
                break
        # It is gone, or this process cannot send. What it was not told it must not go on without.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _is_heard(self) -> None:
        self._heard, self._pinged = time.monotonic(), 0.0

    def _look_after_host(self) -> None:
        """All that it said is read. If something is waited for, see that it is still there to say it."""
        if self._sock is None or not (self._asked or self._waiting):
            self._is_heard()
            return
        now, patience = time.monotonic(), self._patience
        if self._lonely is not None and now - self._lonely > _COMPANY:
            self._lonely = None
            warnings.warn(
                f"rank {self._join.rank} waits for the other ranks of its job: their shared host died, and the new "
                "one deals no samples before each of them has told it how far it is. If one of them has ended, stop "
                "this job and go on from its last state_dict().",
                stacklevel=2,
            )
        if self._pinged:
            if now - self._pinged > 0.75 * patience:
                runtime.depose(self._sock)
                self._lost()
        elif now - self._heard > 0.25 * patience:
            self._pinged = now
            self._send(Ping())

    def _lost(self) -> None:
        """The host is gone: find or start another, and go on from what is known here."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        for drawn in self._waiting.values():
            self._go_on(drawn)  # nobody will tell what became of those rows: they are prepared here
        self._waiting.clear()
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
        if self._epoch >= 0:
            if self._before is not None:
                self._report(*self._before)  # other ranks may still be there, and not know the end of it
            if self._explicit:
                self._send(Begin(self._epoch, 0, True, 0))
            else:
                self._report(self._epoch, self._given, self._steps, self._step)
                if self._join.world_size > 1:
                    self._lonely = time.monotonic()
            for indices, _ in self._asked:
                self._send(Ask(indices))

    # -- epochs and draws --------------------------------------------------------------------------------------

    def begin(self, epoch: int, *, explicit: bool, given: Bits | None = None) -> None:
        """Begin an epoch. ``given``: samples that were delivered before, where it goes on."""
        self._drop_draws()
        if self.alone:
            self._come_back()
        if self._join.world_size > 1 and not self._explicit and self._epoch >= 0:
            self._before = (self._epoch, self._given, self._steps, self._step)
        self._epoch, self._explicit, self._over = epoch, explicit, False
        self._given = Bits.empty(self._join.samples) if given is None else given.copy()
        self._steps, self._step = {}, 0
        if explicit or not self._given.count():
            self._send(Begin(epoch, 0, explicit, 0))
        else:
            self._report(epoch, self._given, self._steps, self._step)

    def _report(self, epoch: int, given: Bits, steps: dict[int, Ids], step: int) -> None:
        """Tell a host what is given out of an epoch that it did not begin."""
        fd = wire.as_memfd(write_progress(given, steps))
        try:
            self._send(Begin(epoch, given.count(), False, step), (fd,))
        finally:
            os.close(fd)

    def _drop_draws(self) -> None:
        for drawn in self._drawn:
            self._waiting.pop(drawn.ticket, None)
            self.give_up(drawn.ticket, drawn.instance, 0, len(drawn.indices))
        self._drawn.clear()
        self._asked.clear()

    def drop(self) -> None:
        """The epoch was left: give up what came and was not taken, and wait for nothing."""
        self._drop_draws()
        self._waiting.clear()
        self.updates.clear()

    def ask(self, indices: bytes = b"", given: Any = None) -> None:
        """Ask for one draw."""
        if len(indices) // 8 > MOST_ROWS:
            raise OptionError(
                f"a batch of {len(indices) // 8} samples is too large to share; {MOST_ROWS} are the most. "
                "Use smaller batches, or share=False"
            )
        self._asked.append((indices, given))
        if not self.alone:
            self._send(Ask(indices))

    @property
    def wants(self) -> int:
        """Draws that should be asked for now."""
        return max(0, _AHEAD - len(self._asked) - len(self._drawn))

    def take(self) -> SharedDraw | None:
        """The next draw, if it is here."""
        if not self._drawn and self._asked:
            self.pump()
        if not self._drawn and self._asked and self.alone:
            self._draw_alone()
        return self._drawn.popleft() if self._drawn else None

    @property
    def over(self) -> bool:
        """Whether every draw of the epoch has come."""
        return self._over and not self._drawn

    def pump(self) -> None:
        """Take in what the host has said."""
        while self._sock is not None:
            try:
                received = wire.receive(self._sock, wire.REPLY_LIMIT)
                reply = None
                if received is not None:
                    wire.close_all(received[1])
                    reply = decode_reply(received[0])
            except BlockingIOError:
                self._look_after_host()
                return
            except (OSError, ProtocolError, msgspec.MsgspecError):
                reply = None
            if reply is None:
                self._lost()
            else:
                self._is_heard()
                self._take_in(reply)

    def _take_in(self, reply: Reply) -> None:
        if isinstance(reply, Drawn):
            if self._asked and reply.epoch == self._epoch:
                _, given = self._asked.popleft()
                self.company = reply.company
                self._note(SharedDraw.read(reply, given, self.instance))
            else:
                count = len(reply.indices) // 8  # of an epoch that was left
                self.give_up(reply.ticket, self.instance, 0, count)
        elif isinstance(reply, Over):
            if reply.epoch == self._epoch:
                self._over, self._lonely = True, None
                self._asked.clear()
        elif isinstance(reply, Update):
            drawn = self._waiting.pop(reply.ticket, None)
            if drawn is not None:
                drawn.update(reply)
                self._go_on(drawn)
        elif isinstance(reply, Refused):
            raise HostUnavailable(reply.reason)

    def _go_on(self, drawn: SharedDraw) -> None:
        """The rest of a draw need not wait any more, whether its batch is being prepared or still to be begun."""
        drawn.waits = len(drawn.indices)
        self.updates.append(drawn)

    def _note(self, drawn: SharedDraw) -> None:
        self._lonely = None
        self._drawn.append(drawn)
        if not self._join.whole:
            ready = drawn.forms[: drawn.waits] == int(Form.AUGMENTED)  # numpy takes long over enumerations
            drawn.copies = len(ready) if ready.all() else int(np.argmin(ready))
        if drawn.waits < len(drawn.indices):
            self._waiting[drawn.ticket] = drawn
        if drawn.given is None:
            put(self._given.words, drawn.whole)
            self._step = drawn.step + 1
            if self._join.world_size > 1:
                self._steps[drawn.step] = drawn.whole
                self._steps.pop(drawn.step - STEPS, None)

    def _draw_alone(self) -> None:
        """Draw what was asked for without a host."""
        _, given = self._asked.popleft()
        if given is not None:
            self._note(SharedDraw.alone(self._epoch, given.step, given.indices, given.position, given))
            return
        drawn = draw_alone(self._join, self._given, self.instance, self._epoch, self._step)
        if drawn is None:
            self._over = True
            self._asked.clear()
        else:
            self._note(drawn)

    def give_up(self, ticket: int, instance: int, first: int, count: int) -> None:
        """Rows of a draw will not be prepared."""
        if ticket >= 0 and instance == self.instance:
            self._send(Finished(ticket, first, count))

    def close(self) -> None:
        """Leave."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None
