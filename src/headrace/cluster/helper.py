"""A helper: a process of a node that prepares rows for ranks on other nodes, when it has nothing better to do.

It runs at the lowest priority there is, so what runs on its node for that node's own sake goes first. It gets recipes
as plain data and never code, and imports what they name only from modules that who started the cluster has listed.
Samples come by way of the node's server; rows go back over the connection that granted room for them. ``Helpers``
starts them, and they end with whoever made that.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.channel import wire
from headrace.channel.wire import Wire
from headrace.cluster.certificates import make_certificate
from headrace.cluster.greeting import GREETING, refusal
from headrace.cluster.messages import (
    MOST_SAMPLES,
    Grant,
    Helper,
    Land,
    Message,
    Opened,
    Refused,
    Rows,
    Teach,
    View,
    Welcome,
    decode_request,
    encode,
)
from headrace.cluster.nixl_rows import NixlSending, try_nixl
from headrace.cluster.ports import ANY, Ports
from headrace.cluster.rails import listen_at
from headrace.cluster.rows import NIXL, TLS, Sending, WireSending
from headrace.cluster.taught import Known, Recipes
from headrace.core.errors import HeadraceError, HostUnavailable, ProtocolError
from headrace.engine.link import shortened

_SLOW = 20.0
"""Seconds for which somebody who is sent rows may take in nothing."""
_THREADS = 2
"""One prepares while the other waits for samples, or for its rows to be sent."""
_MOST_CLIENTS = 1024
_TOGETHER = 32
"""Rows whose samples are read at once, where small orders wait: each node is asked once for all of them."""
_MOST_GRANTS = 256
"""Grants that may wait, of all connections."""
_AGAIN = 10.0
"""Seconds between two tries to start a helper, where one has failed."""
_LEAST_URGENT, _NICES = b"19", 0.1
"""What is written of a session, and seconds between two of those that the kernel takes from users."""


class Config(msgspec.Struct):
    """What a helper is told as it starts."""

    node: str
    host: str
    token: str
    socket: str
    """That of its node's server."""
    rails: tuple[str, ...] = ()
    """Addresses at which it listens, too."""
    ports: Ports = ANY
    code: tuple[str, ...] = ()
    """Modules and packages of which code may be imported, and run."""
    transport: str = TLS
    """How rows go to those who grant it so: ``TLS`` or ``NIXL``."""
    idle: bool = True
    """Whether it runs only when nobody else does."""


class Client:
    """A connection of somebody who grants room."""

    def __init__(self, connection: Wire) -> None:
        self.connection = connection
        self._using = threading.Lock()
        self._rows: Sending = WireSending(connection)
        self._over = False
        self.known: Known | None = None
        """The recipe that it uses: it is not forgotten meanwhile."""

    @property
    def ended(self) -> bool:
        """Whether nobody waits for rows any more."""
        return self._over

    def say(self, message: Message) -> None:
        """Send a message alone."""
        with self._using:
            self.connection.send(encode(message), seconds=_SLOW)

    def land(self, land: Land) -> None:
        """Write rows there from now on. Raises NoNixl."""
        sending = NixlSending(self.connection, land)
        with self._using:
            before, self._rows = self._rows, sending
            if isinstance(before, NixlSending):
                before.end()

    def give(self, grant: Grant, message: Message, rows: Sequence[Any]) -> None:
        """Send the rows of a grant."""
        with self._using:
            if self._over:
                raise EOFError("the connection has ended")
            self._rows.send(grant.number, grant.place, encode(message), rows, _SLOW)

    def close(self) -> None:
        """End it. Whoever prepares for it finds out."""
        self.connection.shut()
        with self._using:
            self._over = True
            self._rows.close()


@dataclass
class Waiting:
    """A grant and who it is from."""

    grant: Grant
    client: Client
    known: Known
    samples: NDArray[np.int64]
    since: float


class HelperServer:
    """Takes grants, and sends rows."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._nixl = config.transport == NIXL
        if self._nixl and (missing := try_nixl()):
            print(f"headrace: rows go over TLS: {missing}", file=sys.stderr, flush=True)
            self._nixl = False
        self._known = Recipes()
        self._teaching = threading.Lock()
        self._grants: deque[Waiting] = deque()
        self._granted = threading.Condition()
        self._clients, self._counting = 0, threading.Lock()
        """Connections that have a thread, whoever they are from."""
        for _ in range(_THREADS):
            threading.Thread(target=self._work, name="headrace-help", daemon=True).start()

    def listen(self) -> Helper:
        """Take in those who know the token."""
        context, fingerprint = make_certificate(f"{self._config.node} helper")
        listeners = listen_at(self._config.host, self._config.ports, self._config.rails)
        for listener in listeners:
            threading.Thread(
                target=self._accept, args=(listener, context), name="headrace-help", daemon=True
            ).start()
        return Helper(listeners[0].getsockname()[1], fingerprint, self._nixl)

    def _accept(self, listener: socket.socket, context: Any) -> None:
        while True:
            try:
                sock, address = listener.accept()
            except OSError:
                time.sleep(0.05)
                continue
            with self._counting:
                full = self._clients >= _MOST_CLIENTS
                self._clients += not full
            if full:  # (who is not taken in tries other helpers)
                sock.close()
                continue
            name = f"{address[0]}:{address[1]}"
            try:
                threading.Thread(target=self._attend, args=(sock, context, name), daemon=True).start()
            except RuntimeError:  # (no more may be started just now)
                with self._counting:
                    self._clients -= 1
                sock.close()

    def _attend(self, sock: socket.socket, context: Any, name: str) -> None:
        try:
            self._serve(sock, context, name)
        finally:
            with self._counting:
                self._clients -= 1

    def _serve(self, sock: socket.socket, context: Any, name: str) -> None:
        try:
            connection = wire.accept_tls(sock, context, name, GREETING)
        except OSError:
            sock.close()
            return
        client = Client(connection)
        try:
            if self._greet(connection):
                while True:
                    self._take(client, connection.receive(seconds=None)[0])
        except (OSError, EOFError):
            pass
        except (HeadraceError, msgspec.MsgspecError) as error:
            with contextlib.suppress(OSError, HeadraceError):
                client.say(Refused(str(error)[:4000]))
        finally:
            client.close()

    def _greet(self, connection: Wire) -> bool:
        refused = refusal(connection, self._config.token)
        answer = Refused(refused) if refused else Welcome(self._config.node, View(0))
        connection.send(encode(answer), seconds=_SLOW)
        return not refused

    def _take(self, client: Client, data: bytes) -> None:
        request = decode_request(data)
        if isinstance(request, Teach):
            self._learn(client, request)
            return
        if isinstance(request, Land) and self._nixl:
            client.land(request)
            return
        if not isinstance(request, Grant):
            raise ProtocolError(f"a helper was sent {type(request).__name__}")
        known = self._known.find(request.recipe)
        if known is None:
            raise ProtocolError("that recipe is not known here")
        samples = np.frombuffer(request.samples, np.int64) if len(request.samples) % 8 == 0 else None
        if (
            samples is None
            or not 0 < len(samples) <= MOST_SAMPLES
            or len(samples) * known.row > wire.BODY_LIMIT
        ):
            raise ProtocolError(f"a grant of {len(request.samples)} bytes")
        if not 0 <= int(samples.min()) <= int(samples.max()) < known.samples:
            raise ProtocolError(f"a sample that is none of {known.samples}")
        if request.words and len(request.words) != len(request.samples):
            raise ProtocolError("random numbers for other samples")
        with self._granted:
            if len(self._grants) >= _MOST_GRANTS:
                raise ProtocolError("too many grants")
            self._grants.append(Waiting(request, client, known, samples, time.monotonic()))
            self._granted.notify()

    def _learn(self, client: Client, teach: Teach) -> None:
        with self._teaching:
            known = self._known.find(teach.recipe)
            if known is None:
                if not self._known.has_room():
                    client.say(
                        Refused("its helpers have no room for another recipe while jobs use those they have")
                    )
                    return
                try:
                    known = Known(teach, self._config.socket, self._config.code)
                except BaseException as error:
                    # (of libraries that talk to storage, and of code of the user's, too)
                    known_here = isinstance(error, HeadraceError | OSError | ValueError)
                    said = str(error) if known_here else f"{type(error).__name__}: {error}"
                    client.say(Refused(said[:4000]))
                    return
                self._known.keep(teach.recipe, known)
        client.known = known
        if json.dumps(known.layout.describe()).encode() != teach.fields:
            client.say(Refused("rows are of other sizes or types here than the job's"))
            return
        client.say(Opened(True, known.row))

    def _next(self) -> list[Waiting]:
        """The grant that has waited longest, and those after it for which samples had better be read with it."""
        with self._granted:
            self._granted.wait_for(lambda: self._grants)
            out = [self._grants.popleft()]
            rows = len(out[0].samples)
            while self._grants and self._grants[0].known is out[0].known:
                rows += len(self._grants[0].samples)
                if rows > _TOGETHER:
                    break
                out.append(self._grants.popleft())
        return out

    def _work(self) -> None:
        while True:
            # (one that was late for all has many grants of connections that ended, and of those who are back)
            group = [one for one in self._next() if not one.client.ended]
            if len(group) > 1:
                with contextlib.suppress(BaseException):  # (what is wrong, each of them finds out for itself)
                    group[0].known.read_ahead(np.concatenate([one.samples for one in group]))
            for waiting in group:
                if waiting.client.ended:
                    continue
                try:
                    rows, faults, cpu = waiting.known.make(waiting.grant)
                    told = tuple(shortened(faults)) if faults else ()
                    held = time.monotonic() - waiting.since
                    waiting.client.give(waiting.grant, Rows(waiting.grant.number, told, held, cpu), rows)
                except BaseException:
                    # Whoever granted it finds the connection ended, and makes the rows itself. (The thread is needed
                    # for others: whatever code of the user's, or a library in Rust, means to end with it.)
                    waiting.client.connection.shut()


def main() -> None:
    """Run a helper until whoever started it closes its end of standard input."""
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=Config)
    # (libraries may write to standard output, which nobody reads beyond the first line)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        helper = HelperServer(config).listen()
    except HostUnavailable as error:
        sys.exit(f"headrace: a helper of this node has no port: {error}")
    if config.idle:
        step_back()  # (not before: on a node that has much to do, it would take minutes to begin)
    out.write(msgspec.json.encode(helper) + b"\n")
    out.flush()
    sys.stdin.buffer.read()
    os._exit(0)


def step_back() -> None:
    """Run when nobody else does. All threads do: those that are there, too."""
    for thread in os.listdir("/proc/self/task"):
        _step_back(int(thread))
    if os.getsid(0) == os.getpid():  # (it is nobody else's)
        threading.Thread(target=_step_back_by_session, name="headrace-help", daemon=True).start()


def _step_back_by_session() -> None:
    """Where the kernel divides CPU time among sessions first, threads that would run when nobody else does get as
    much as all of somebody else's together: the session has to be less urgent, too."""
    with contextlib.suppress(OSError):
        for _ in range(_MOST_CLIENTS):
            with contextlib.suppress(BlockingIOError):  # (another helper has just said it)
                Path("/proc/self/autogroup").write_bytes(_LEAST_URGENT)
                return
            time.sleep(_NICES * (1.0 + random.random()))


def _step_back(thread: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, 19)


# -- who starts them ------------------------------------------------------------------------------------------


class Helpers:
    """The helpers of a node. Nobody waits for them to start: there may be a hundred, and the node's server is of use
    without them."""

    def __init__(self, config: Config, count: int) -> None:
        self._config = config
        self._processes: list[subprocess.Popen[bytes]] = []
        self._told: dict[int, Helper] = {}
        """By process: where it listens."""
        self.all: tuple[Helper, ...] = ()
        self._again = 0.0
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cluster.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # (see step_back)
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(msgspec.json.encode(self._config) + b"\n")
            process.stdin.flush()
        self._processes.append(process)

    def look(self, *, wait: bool = False) -> None:
        """Learn where those are that have started, and start others for those that have ended. ``wait``: until all
        have said it."""
        now = time.monotonic()
        for process in list(self._processes):
            if process.poll() is None:
                continue
            if process.pid not in self._told:  # (it has not even begun, and so may the next)
                if now < self._again:
                    continue
                self._again = now + _AGAIN
            self._processes.remove(process)
            self._told.pop(process.pid, None)
            self._start()
        for process in self._processes:
            if process.pid not in self._told and process.stdout is not None:
                if not wait and not _has_said(process.stdout):
                    continue
                line = process.stdout.readline()
                with contextlib.suppress(msgspec.MsgspecError):
                    self._told[process.pid] = msgspec.json.decode(line, type=Helper)
        self.all = tuple(self._told[one.pid] for one in self._processes if one.pid in self._told)

    def close(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _has_said(pipe: IO[bytes]) -> bool:
    poll = select.poll()  # (select() takes no descriptor above 1023, and a server has thousands)
    poll.register(pipe.fileno(), select.POLLIN)
    return bool(poll.poll(0))


if __name__ == "__main__":
    main()
