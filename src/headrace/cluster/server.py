"""A node server: holds samples for all jobs of the cluster, reads each from storage once, gives them to who asks.

Each connection has a thread, since a request may have to wait for storage. Whatever arrives is checked as if an
attacker had sent it; between machines nothing is read before the other end has shown the cluster's token, over TLS.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable

import msgspec
import numpy as np

from headrace.channel import wire
from headrace.channel.wire import Wire
from headrace.cluster.clients import Clients
from headrace.cluster.datasets import CannotOpen, Datasets
from headrace.cluster.fetching import Fetcher
from headrace.cluster.greeting import GREETING, refusal
from headrace.cluster.memory import PoolMemory
from headrace.cluster.messages import (
    KEY,
    MOST_PUT,
    MOST_SAMPLES,
    Ahead,
    Came,
    DatasetStatus,
    Define,
    Drop,
    Find,
    GetStatus,
    Given,
    Hello,
    Message,
    Noted,
    Open,
    Opened,
    Put,
    Refused,
    Request,
    Status,
    Took,
    View,
    Want,
    Watch,
    Welcome,
    decode_request,
    encode,
)
from headrace.cluster.ports import ANY, Ports
from headrace.cluster.rails import listen_at
from headrace.core.errors import HeadraceError, ProtocolError

_SLOW = 20.0
"""Seconds for which somebody who is sent something may take in nothing."""
_STORAGE = 8.0
"""Seconds for which a request waits for storage: who asked can read there, too."""
_MOST_CLIENTS = 4096
"""Connections from other nodes."""
_MOST_HERE = 4096
"""And from this one: others do not keep its own jobs out."""
_REST = 10.0
"""Seconds without a request after which a connection is ended where others come and there is no room."""

Log = Callable[[str], None]


class NodeServer:
    """One of them. It runs in threads of its own from ``start`` to ``close``."""

    def __init__(self, node: str, *, token: str, memory: int, log: Log) -> None:
        """``node``: its id. ``memory``: bytes for samples."""
        self._node, self._token, self._log = node, token, log
        self.memory = PoolMemory(memory)
        self.fetcher = Fetcher(self.memory)
        self._datasets = Datasets(node, self.memory, self.fetcher, log)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._view = View(0)
        self._here, self._elsewhere = Clients(), Clients()
        self._listeners: list[socket.socket] = []
        self._closed = False
        self._served, self._served_bytes = 0, 0

    # -- listening ---------------------------------------------------------------------------------------------

    def listen_unix(self, path: str) -> None:
        """Take in those on this machine, of the same user."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # (nobody finds it before somebody listens there: another server of this machine would sweep it away)
        new = path.removesuffix(".sock") + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        sock.bind(new)
        os.chmod(new, 0o600)
        self._listen(sock, self._accept_unix)
        os.rename(new, path)

    def listen_tls(
        self, host: str, context: ssl.SSLContext, ports: Ports = ANY, rails: tuple[str, ...] = ()
    ) -> int:
        """Take in those on other machines who know the token, by whichever rail they come; the port."""
        found = listen_at(host, ports, rails)
        for sock in found:
            self._listen(sock, lambda taken, name: wire.accept_tls(taken, context, name, GREETING))
        return int(found[0].getsockname()[1])

    @staticmethod
    def _accept_unix(sock: socket.socket, name: str) -> Wire:
        wire.check_user(sock, name)
        return Wire(sock, name)

    def _listen(self, sock: socket.socket, make: Callable[[socket.socket, str], Wire]) -> None:
        sock.listen(256)
        self._listeners.append(sock)
        threading.Thread(target=self._accept, args=(sock, make), name="headrace-node", daemon=True).start()

    def _accept(self, listener: socket.socket, make: Callable[[socket.socket, str], Wire]) -> None:
        while not self._closed:
            try:
                sock, address = listener.accept()
            except OSError:
                if self._closed:
                    return
                threading.Event().wait(0.05)  # (too many descriptors, for one)
                continue
            local = listener.family == socket.AF_UNIX
            name = "a job here" if local else f"{address[0]}:{address[1]}"
            clients, most = (self._here, _MOST_HERE) if local else (self._elsewhere, _MOST_CLIENTS)
            if not clients.may_come(most, _REST):
                sock.close()
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(sock, make, name, local), name="headrace-node", daemon=True
                ).start()
            except RuntimeError:  # (no more may be started just now)
                clients.came(None)
                sock.close()

    # -- one connection ----------------------------------------------------------------------------------------

    def _serve(
        self, sock: socket.socket, make: Callable[[socket.socket, str], Wire], name: str, local: bool
    ) -> None:
        connection, clients = None, self._here if local else self._elsewhere
        try:
            connection = make(sock, name)
        except (OSError, HeadraceError):
            sock.close()
            return
        finally:
            clients.came(connection)
        try:
            if self._greet(connection, local):
                while not self._closed:
                    clients.rests(connection)
                    data, body = connection.receive(seconds=None, body_limit=MOST_PUT)
                    clients.asks(connection)
                    self._answer(connection, data, body)
        except (OSError, EOFError):
            pass
        except (HeadraceError, msgspec.MsgspecError) as error:
            self._log(f"{name}: {error}")
            with contextlib.suppress(OSError, HeadraceError):
                self._reply(connection, Refused(str(error)[:4000]))
        except Exception as error:  # nothing that one client does may end the server
            self._log(f"{name}: {type(error).__name__}: {error}")
        finally:
            clients.gone(connection)
            connection.close()

    def _greet(self, connection: Wire, local: bool) -> bool:
        refused = refusal(connection, None if local else self._token)
        if refused:
            self._log(f"{connection.name}: refused, {refused}")
            self._reply(connection, Refused(refused))
            return False
        with self._lock:
            view = self._view
        self._reply(connection, Welcome(self._node, view, self._token if local else ""))
        return True

    def _reply(
        self, connection: Wire, message: Message, body: list[memoryview | bytes] | None = None
    ) -> None:
        connection.send(encode(message), body or (), seconds=_SLOW)

    def _answer(self, connection: Wire, data: bytes, body: memoryview) -> None:
        request: Request = decode_request(data)
        if len(body) and not isinstance(request, Put):
            raise ProtocolError(f"{len(body)} bytes beside {type(request).__name__}")
        match request:
            case Want():
                self._give(connection, request)
            case Find():
                self._find(connection, request)
            case Put():
                self._put(connection, request, body)
            case Drop():
                self.memory.drop(request.group, self._keys(request.keys))
                self._reply(connection, Noted())
            case Open():
                found = self._datasets.get(request.dataset)
                known = found is not None and found.limit >= request.limit
                self._reply(connection, Opened(known, found.samples if found else 0))
            case Define():
                self._define(connection, request)
            case Ahead():
                self._datasets.preload(request)
                self._reply(connection, Noted())
            case Came():
                self._reply(connection, self._datasets.came(request))
            case Watch():
                self._watch(connection)
            case GetStatus():
                self._reply(connection, self.status())
            case Hello():
                raise ProtocolError("a second hello")

    def _define(self, connection: Wire, define: Define) -> None:
        try:
            found = self._datasets.define(define)
        except CannotOpen as error:
            self._reply(connection, Refused(str(error)[:4000]))
            return
        self._reply(connection, Opened(True, found.samples))

    def _give(self, connection: Wire, want: Want) -> None:
        dataset = self._datasets.get(want.dataset)
        if dataset is None:
            self._reply(connection, Opened(False))
            return
        if len(want.samples) % 8 or len(want.samples) > 8 * MOST_SAMPLES:
            raise ProtocolError(f"a request of {len(want.samples)} bytes")
        numbers = np.frombuffer(want.samples, np.int64)
        samples: list[int] = numbers.tolist()
        if samples and not 0 <= min(samples) <= max(samples) < dataset.samples:
            raise ProtocolError(f"a sample that is none of {dataset.samples}")
        reading = self.memory.read(dataset.name, samples)
        try:
            blobs = reading.samples
            absent = [at for at, blob in enumerate(blobs) if blob is None]
            kept = len(blobs) - len(absent)
            if absent:
                found = self.fetcher.fetch(dataset, [samples[at] for at in absent], _STORAGE)
                for at in absent:
                    blobs[at] = found.get(samples[at])
            lengths = np.array([-1 if blob is None else len(blob) for blob in blobs], np.int64)
            body = [blob for blob in blobs if blob is not None]
            dataset.asked[numbers] = True
            self._reply(connection, Given(lengths.tobytes(), kept, self._view.number, dataset.stored), body)
        finally:
            reading.done()
        with self._lock:
            self._served += len(body)
            self._served_bytes += sum(map(len, body))

    @staticmethod
    def _keys(keys: bytes) -> list[bytes]:
        if len(keys) % KEY or len(keys) > KEY * MOST_SAMPLES:
            raise ProtocolError(f"keys of {len(keys)} bytes")
        return [keys[at : at + KEY] for at in range(0, len(keys), KEY)]

    def _find(self, connection: Wire, find: Find) -> None:
        keys = self._keys(find.keys)
        if find.peek:
            lengths = np.array(self.memory.lengths(find.group, keys), np.int64)
            self._reply(connection, Given(lengths.tobytes(), 0, self._view.number))
            return
        reading = self.memory.find(find.group, keys)
        try:
            lengths = np.array([-1 if one is None else len(one) for one in reading.samples], np.int64)
            body = [one for one in reading.samples if one is not None]
            self._reply(connection, Given(lengths.tobytes(), len(body), self._view.number), body)
        finally:
            reading.done()
        with self._lock:
            self._served += len(body)
            self._served_bytes += int(lengths[lengths > 0].sum())

    def _put(self, connection: Wire, put: Put, body: memoryview) -> None:
        keys = self._keys(put.keys)
        lengths: list[int] = (
            np.frombuffer(put.lengths, np.int64).tolist() if len(put.lengths) % 8 == 0 else []
        )
        if len(lengths) != len(keys) or any(one < 0 for one in lengths) or sum(lengths) != len(body):
            raise ProtocolError(f"{len(keys)} keys and {len(lengths)} lengths for {len(body)} bytes")
        at, count, room = 0, 0, True
        for key, length in zip(keys, lengths, strict=True):
            kept = self.memory.put(put.group, key, body[at : at + length])
            at, count, room = at + length, count + bool(kept), room and kept is not None
        self._reply(connection, Took(count, room))

    # -- who else there is ---------------------------------------------------------------------------------------

    def see(self, view: View) -> int:
        """Other servers have come or gone. The number of the view that it has from now on: that of an earlier manager
        may be higher."""
        with self._changed:
            if view.number <= self._view.number:
                return self._view.number
            self._view = view
            self._changed.notify_all()
        self.memory.see(self._node, view)
        self._datasets.see(view)
        return view.number

    def _watch(self, connection: Wire) -> None:
        number = -1
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._view.number > number or self._closed, 1.0)  # noqa: B023
                view = self._view
            # (something is said again and again, so that both ends know that the other is there; not all of it: it is
            # half a megabyte where there are some hundred nodes)
            self._reply(connection, view if view.number != number else Noted())
            number = view.number

    def status(self) -> Status:
        """How it stands."""
        held = self.memory.describe()
        with self._lock:
            datasets = tuple(
                DatasetStatus(one.name, one.label, one.samples, held[one.name][1], held[one.name][2])
                for one in self._datasets
                if one.name in held
            )
            clients = len(self._here) + len(self._elsewhere)
        return Status(
            self._node,
            os.getpid(),
            self.memory.budget,
            self.memory.used,
            self._served,
            self._served_bytes,
            self.fetcher.fetched,
            self.fetcher.fetched_bytes,
            clients,
            datasets,
            *self.memory.by_key,
        )

    def close(self) -> None:
        """Listen no more, and end all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._datasets.close()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._here.shut()
        self._elsewhere.shut()
        self.fetcher.close()
