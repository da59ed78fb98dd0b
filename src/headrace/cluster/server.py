"""A node server: holds samples for all jobs of the cluster, reads each from storage once, gives them to who asks.

Each connection has a thread, since a request may have to wait for storage. Whatever arrives is checked as if an
attacker had sent it; between machines nothing is read before the other end has shown the cluster's token, over TLS.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.channel import wire
from headrace.channel.wire import Wire
from headrace.cluster.clients import Clients
from headrace.cluster.fetching import Dataset, Fetcher, Preload
from headrace.cluster.greeting import GREETING, refusal
from headrace.cluster.memory import PoolMemory
from headrace.cluster.messages import (
    KEY,
    MOST_CAME,
    MOST_PUT,
    MOST_SAMPLES,
    Ahead,
    Arrived,
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
from headrace.cluster.placement import Placement, moves
from headrace.cluster.ports import ANY, Ports
from headrace.cluster.rails import listen_at
from headrace.core.errors import HeadraceError, ProtocolError
from headrace.recipes.plain import source_from_plain
from headrace.sampling.uniform import epoch_order

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
_MOST_DATASETS = 64

Log = Callable[[str], None]


class NodeServer:
    """One of them. It runs in threads of its own from ``start`` to ``close``."""

    def __init__(self, node: str, *, token: str, memory: int, log: Log) -> None:
        """``node``: its id. ``memory``: bytes for samples."""
        self._node, self._token, self._log = node, token, log
        self.memory = PoolMemory(memory)
        self.fetcher = Fetcher(self.memory)
        self._datasets: dict[str, Dataset] = {}
        self._defining: dict[str, threading.Lock] = {}
        self._preloads: dict[str, tuple[Ahead, Preload]] = {}
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
                self._reply(connection, Opened(found is not None, found.samples if found else 0))
            case Define():
                self._define(connection, request)
            case Ahead():
                self._preload(request, begins=True)
                self._reply(connection, Noted())
            case Came():
                self._came(connection, request)
            case Watch():
                self._watch(connection)
            case GetStatus():
                self._reply(connection, self.status())
            case Hello():
                raise ProtocolError("a second hello")

    def _dataset(self, name: str) -> Dataset:
        found = self._datasets.get(name)
        if found is None:
            raise ProtocolError("that dataset is not known here")
        return found

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

    def _define(self, connection: Wire, define: Define) -> None:
        """Make a dataset of its definition. It is listed here: what this node sees has to be what the job sees."""
        with self._lock:
            full = len(self._datasets) >= _MOST_DATASETS and define.dataset not in self._datasets
            if full and not self._forget():
                raise ProtocolError(
                    f"this server has {_MOST_DATASETS} datasets that jobs use, and takes no more"
                )
            making = self._defining.setdefault(define.dataset, threading.Lock())
        with making:
            found = self._datasets.get(define.dataset)
            if found is None:
                try:
                    source = source_from_plain(json.loads(define.definition))
                    fingerprint = source.fingerprint()
                except Exception as error:  # (of libraries that talk to storage, too)
                    known = isinstance(error, HeadraceError | OSError | ValueError)
                    said = str(error) if known else f"{type(error).__name__}: {error}"
                    self._log(f"the data cannot be opened: {said}")
                    self._reply(connection, Refused(f"it cannot open the data: {said}"[:4000]))
                    return
                if fingerprint != define.dataset:
                    # (how many they are may differ from node to node, and is nothing to make many warnings of)
                    self._log(f"{len(source)} files here, which are others than a job sees: {source!r:.512}")
                    self._reply(
                        connection,
                        Refused(
                            "it sees other files there than the job does, or other versions of them; give all nodes "
                            "the same storage at the same path"
                        ),
                    )
                    return
                self.memory.open(define.dataset, len(source))
                found = Dataset(define.dataset, source, repr(source)[:512])
                with self._lock:
                    self._datasets[define.dataset] = found
        self._reply(connection, Opened(True, found.samples))

    def _forget(self) -> bool:
        """Forget a dataset that nobody uses, if there is one. (Who does after all is asked what it is made of.)"""
        name = self.memory.forget()
        if name is None:
            return False
        self._datasets.pop(name, None)
        self._defining.pop(name, None)
        if name in self._preloads:
            self._preloads.pop(name)[1].stop()
        return True

    def _preload(self, ahead: Ahead, *, begins: bool) -> None:
        """Read what is this node's part of an epoch, in the order of its use; what was begun before is left.
        ``begins``: nothing of it was used yet. (A job that is started anew may say what it said before.)"""
        dataset = self._dataset(ahead.dataset)
        if ahead.position > dataset.samples:
            raise ProtocolError(f"position {ahead.position} of {dataset.samples}")
        with self._lock:
            before = self._preloads.get(dataset.name)
            placement = Placement(self._view, dataset.name, dataset.samples)
            if before is not None:
                before[1].stop()
            # (others may be in the middle of the same, unless what they had was let go meanwhile)
            same = ahead.shared and before is not None and before[0] == ahead
            if begins and not (same and not self.memory.was_let_go(dataset.name)):
                self.memory.drop_ahead(dataset.name)
                dataset.asked[:] = False

            def order() -> NDArray[np.int64]:
                samples = epoch_order(dataset.samples, ahead.seed, ahead.epoch, ahead.shuffled)[
                    ahead.position :
                ]
                mine: NDArray[np.bool_] = placement.nodes_of(samples) == placement.place_of(self._node)
                return samples[mine]

            preload = Preload(self.fetcher, self.memory, dataset, order, shared=ahead.shared)
            self._preloads[dataset.name] = ahead, preload

    def _came(self, connection: Wire, request: Came) -> None:
        dataset = self._datasets.get(request.dataset)
        if dataset is None:  # (no reason to end the connection: it is asked again several times a second)
            self._reply(connection, Arrived(0, b"", False))
            return
        with self._lock:
            _, preload = self._preloads.get(dataset.name, (None, None))
        # (asked before what has come is looked at: whoever hears that no more comes has heard of all)
        reads = preload is not None and preload.reads
        count, samples, room = self.memory.came(dataset.name, request.since, MOST_CAME)
        more = len(samples) == 8 * MOST_CAME or (reads and room)
        self._reply(connection, Arrived(count, samples, more))

    # -- who else there is ---------------------------------------------------------------------------------------

    def see(self, view: View) -> int:
        """Other servers have come or gone. The number of the view that it has from now on: that of an earlier manager
        may be higher."""
        with self._changed:
            if view.number <= self._view.number:
                return self._view.number
            moved, self._view = moves(self._view, view), view
            self._changed.notify_all()
            under_way = [ahead for ahead, _ in self._preloads.values()] if moved else []
        for ahead in under_way:  # what others had may be this node's to read by now
            with contextlib.suppress(ProtocolError):  # (it was forgotten just now)
                self._preload(ahead, begins=False)
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
                DatasetStatus(one.label, one.samples, held[one.name][1], held[one.name][2])
                for one in self._datasets.values()
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
        for _, preload in self._preloads.values():
            preload.stop()
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._here.shut()
        self._elsewhere.shut()
        self.fetcher.close()
