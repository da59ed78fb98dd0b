"""The node servers as a process that uses them knows them: which there are, connections to them, who is in trouble.

A process finds the server of its own node by a Unix socket, and learns of the others from it: where they are, by
which certificate they are known, and the cluster's token. It is told whenever that changes. Whoever does not answer
is left alone for a while, and whoever is gone from the view is not waited for any more.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator

import msgspec

from headrace.channel import wire
from headrace.channel.wire import BODY_LIMIT, Wire
from headrace.cluster.greeting import GREETING
from headrace.cluster.messages import (
    PROTOCOL,
    Hello,
    Node,
    Refused,
    Reply,
    Request,
    View,
    Watch,
    Welcome,
    decode_reply,
    encode,
)
from headrace.cluster.rails import Dialer
from headrace.cluster.window import Window
from headrace.core.errors import HeadraceError, HostRefused, ProtocolError
from headrace.core.version import __version__

_TAKEN = 5.0
"""Seconds for which a server may take in nothing of a request."""
_SILENT = 5.0
"""Seconds without a word of the server of this node after which it is asked for anew; it speaks once a second."""
_LEAST_REST, _MOST_REST = 0.25, 10.0
"""Seconds between two tries to reach somebody who failed: twice as long each time."""
_IDLE = 8
"""Connections to one server that are kept for the next request."""
_DESCRIPTORS = 1 << 16
"""That a process may have, where the system lets it."""

TROUBLE = (OSError, EOFError, HeadraceError, msgspec.MsgspecError)
"""What may come of a request, and says nothing but that the server is not to be had."""


def greet(connection: Wire, token: str) -> Welcome:
    """The first words on a connection. Raises HostRefused with the server's reason."""
    connection.send(encode(Hello(PROTOCOL, token, __version__)), seconds=GREETING)
    reply = decode_reply(connection.receive(seconds=GREETING)[0])
    if isinstance(reply, Refused):
        raise HostRefused(reply.reason)
    if not isinstance(reply, Welcome):
        raise ProtocolError(f"{connection.name} answered a hello with {type(reply).__name__}")
    return reply


def ask(
    connection: Wire, request: Request, seconds: float, *, body_limit: int = 0
) -> tuple[Reply, memoryview]:
    """A request and its answer."""
    connection.send(encode(request), seconds=_TAKEN)
    return answer(connection, seconds, body_limit=body_limit)


def answer(connection: Wire, seconds: float, *, body_limit: int = BODY_LIMIT) -> tuple[Reply, memoryview]:
    """What a server says. Raises HostRefused with its reason."""
    message, body = connection.receive(seconds=seconds, body_limit=body_limit)
    reply = decode_reply(message)
    if isinstance(reply, Refused):
        raise HostRefused(reply.reason)
    return reply, body


def allow_descriptors() -> int:
    """Let this process have many descriptors, as far as it may; how many. A worker has connections to all servers,
    and often 1024 are what it has unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft
    return most


class Members:
    """The servers, for one process. Threads share it."""

    def __init__(self, path: str, rail: str = "") -> None:
        """``path``: the socket of this node's server; ``rail``: see ``Dialer``. Raises one of ``TROUBLE`` where there
        is none."""
        self._path, self.dialer = path, Dialer(rail)
        self._lock = threading.Lock()
        self._idle: dict[str, list[Wire]] = {}
        self._descriptors = allow_descriptors()
        self._lent: dict[str, set[Wire]] = {}
        """By the incarnation of a server: connections that somebody uses."""
        self._absent: set[str] = set()
        """Those that did not answer. A thread of each tries to reach it again: nobody else waits for it."""
        self._closed = threading.Event()
        self.watchers: list[Callable[[View], None]] = []
        """Are told of every view that comes, and are not to wait for anything."""
        self.window = Window()
        """Of what is asked of servers on other nodes."""
        first = wire.connect_unix(path, GREETING)
        try:
            welcome = greet(first, "")
            first.send(encode(Watch()), seconds=_TAKEN)
        except BaseException:
            first.close()
            raise
        self.node, self._token, self.view = welcome.node, welcome.token, welcome.view
        self._thread = threading.Thread(
            target=self._follow, args=(first,), name="headrace-members", daemon=True
        )
        self._thread.start()

    # -- who there is --------------------------------------------------------------------------------------------

    def _follow(self, watched: Wire | None) -> None:
        pause = 0.1
        while not self._closed.is_set():
            try:
                if watched is None:
                    watched = wire.connect_unix(self._path, GREETING)
                    self._token = greet(watched, "").token
                    watched.send(encode(Watch()), seconds=_TAKEN)
                reply, _ = answer(watched, _SILENT)
                if isinstance(reply, View):
                    self._see(reply)
                pause = 0.1
            except TROUBLE:
                if watched is not None:
                    watched.close()
                    watched = None
                self._closed.wait(pause)
                pause = min(2.0, pause * 1.5)
        if watched is not None:
            watched.close()

    def _see(self, view: View) -> None:
        if view.number == self.view.number:
            return
        there = {node.incarnation for node in view.nodes}
        with self._lock:
            self.view = view
            gone = [one for one in {*self._idle, *self._lent} if one not in there]
            for incarnation in gone:
                for connection in self._idle.pop(incarnation, []):
                    connection.close()
                for connection in self._lent.get(incarnation, ()):
                    connection.shut()
                if not self._lent.get(incarnation):
                    self._lent.pop(incarnation, None)
        for told in list(self.watchers):
            told(view)

    def is_well(self, node: Node) -> bool:
        """Whether a server may be asked."""
        return node.incarnation not in self._absent

    def trouble(self, node: Node) -> None:
        """A server did not answer as it should: it is left alone until it can be reached."""
        with self._lock:
            if node.incarnation in self._absent or self._closed.is_set():
                return
            self._absent.add(node.incarnation)
        threading.Thread(target=self._reach, args=(node,), name="headrace-reach", daemon=True).start()

    def _reach(self, node: Node) -> None:
        """Try to connect until that works, or the server is gone from the view."""
        pause = _LEAST_REST
        while not self._closed.wait(pause) and any(
            one.incarnation == node.incarnation for one in self.view.nodes
        ):
            try:
                self.give_back(node, self.borrow(node))
                break
            except TROUBLE:
                pause = min(_MOST_REST, 2 * pause)
        with self._lock:
            self._absent.discard(node.incarnation)

    @property
    def token(self) -> str:
        """What other nodes want to be shown."""
        return self._token

    # -- connections -----------------------------------------------------------------------------------------------

    def borrow(self, node: Node) -> Wire:
        """A connection to a server, for one request; to be given back, or dropped. Raises one of ``TROUBLE``."""
        while True:
            with self._lock:
                idle = self._idle.get(node.incarnation)
                if not idle:
                    break
                connection = idle.pop()
                self._lent.setdefault(node.incarnation, set()).add(connection)
            if not connection.ended():  # (a server ends those that ask nothing where it has too many)
                return connection
            self.drop(node, connection)
        connection = self._connect(node)
        with self._lock:
            self._lent.setdefault(node.incarnation, set()).add(connection)
        return connection

    def _connect(self, node: Node) -> Wire:
        if node.id == self.node:
            connection = wire.connect_unix(node.socket or self._path, GREETING)
        else:
            connection = self.dialer.connect(node, node.port, node.certificate, GREETING)
        try:
            greet(connection, self._token)
        except BaseException:
            connection.close()
            raise
        return connection

    def give_back(self, node: Node, connection: Wire) -> None:
        """The request was answered: the connection is good for another."""
        with self._lock:
            self._lent.get(node.incarnation, set()).discard(connection)
            known = any(one.incarnation == node.incarnation for one in self.view.nodes)
            idle = self._idle.setdefault(node.incarnation, []) if known else None
            # (there may be hundreds of servers, and files are to be opened, too)
            most = max(1, min(_IDLE, self._descriptors // (4 * max(1, len(self.view.nodes)))))
            if idle is not None and len(idle) < most and not self._closed.is_set():
                idle.append(connection)
                return
        connection.close()

    def drop(self, node: Node, connection: Wire) -> None:
        """The connection is good for nothing any more."""
        with self._lock:
            self._lent.get(node.incarnation, set()).discard(connection)
        connection.close()

    @contextlib.contextmanager
    def lent(self, node: Node) -> Iterator[Wire]:
        """A connection for one request and its answer."""
        connection = self.borrow(node)
        try:
            yield connection
        except BaseException:
            self.drop(node, connection)
            raise
        self.give_back(node, connection)

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            for lent in self._lent.values():
                for connection in lent:
                    connection.shut()
            self._idle.clear()


_here: dict[tuple[str, str], tuple[int, Members]] = {}
_finding = threading.Lock()


def members_of(path: str, rail: str = "") -> Members:
    """The servers that this process knows by a socket, and connects to by a rail: one object for all who ask. Raises
    one of ``TROUBLE``."""
    with _finding:
        found = _here.get((path, rail))
        if found is None or found[0] != os.getpid():
            found = _here[path, rail] = (os.getpid(), Members(path, rail))
        return found[1]


def _in_child() -> None:
    """A forked process has none of its parent's connections, and its lock may be held by a thread that it has not."""
    global _finding
    _finding = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
