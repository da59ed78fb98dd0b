"""A source whose samples come from the cluster's memory: from the node that has them, or that reads them for all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.channel.wire import Buffer
from headrace.cluster.asking import Request, ask_nodes, given
from headrace.cluster.members import TROUBLE, Members, ask, members_of
from headrace.cluster.messages import (
    MOST_SAMPLES,
    Define,
    Given,
    Node,
    Open,
    Opened,
    Reply,
    View,
    Want,
    encode,
)
from headrace.cluster.placement import Placement
from headrace.core.errors import HostRefused, ProtocolError
from headrace.planning.peers import STORAGE, Ways
from headrace.sources.source import Source

_PATIENCE = 12.0
"""Seconds for which a server may say nothing: longer than it waits for storage itself."""
_LEAST, _TIMES = 1.0, 10.0
"""Once it is known what a server usually takes: at least so many seconds, and so many times that. Then storage is
asked instead: a cable may be cut, and batches wait."""
_LISTING = 600.0
"""Seconds for a server to list a dataset."""
_SAMPLE = 64 << 10
"""Bytes of a sample, before one was seen."""
_AGAIN = 5.0
"""Seconds after which the node's own server is looked for anew."""


class Pool(NamedTuple):
    """What is needed to find a dataset in the cluster. It travels to workers."""

    path: str
    """The socket of this node's server."""
    dataset: str
    """The fingerprint."""
    definition: bytes
    limit: int = 0
    """The largest sample that is taken from there, where jobs may set that: others may read larger ones."""
    rail: str = ""
    """The address that connections to other machines come from, with the bits of its network; empty: any."""


class Pooled(NamedTuple):
    """How many samples came from the cluster, their bytes, and how many of them were in memory there."""

    samples: int = 0
    nbytes: int = 0
    kept: int = 0

    def and_also(self, other: Pooled) -> Pooled:
        """Both together."""
        return Pooled(self.samples + other.samples, self.nbytes + other.nbytes, self.kept + other.kept)


class PooledSource:
    """See ``Source``: the samples of another, by way of the cluster where that works.

    What no server gives is read from storage, as if there was no cluster. So whatever is wrong with a sample, or with
    storage, is found and said as ever.
    """

    def __init__(self, source: Source, pool: Pool) -> None:
        self._source, self._pool = source, pool
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._placement: Placement | None = None
        self._strangers: dict[str, float] = {}
        """Servers that do not know the dataset, and when they are asked again."""
        self._usual: dict[str, float] = {}
        """Seconds that servers take to answer."""
        self._ways, self._stored = Ways(), 0
        """Which way is the faster one; and how often this node's server had read storage when it last said so."""
        self._missed = 0.0
        self._pooled = Pooled()
        self._ahead: dict[int, dict[int, Any]] = {}
        """What was read ahead, by the threads that asked for it; each may have others read what it needs."""
        self._pid = os.getpid()  # (at last: other threads of a child go by it)

    def __getstate__(self) -> tuple[Source, Pool]:
        return self._source, self._pool

    def __setstate__(self, state: tuple[Source, Pool]) -> None:
        self._source, self._pool = state
        self._start()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)

    @property
    def targets(self) -> NDArray[Any] | list[Any] | None:
        """See ``Source``."""
        return self._source.targets

    @property
    def encoded(self) -> bool:
        """See ``Source``."""
        return self._source.encoded

    def __len__(self) -> int:
        return len(self._source)

    def name(self, index: int) -> str:
        """See ``Source``."""
        return self._source.name(index)

    def identity(self, index: int) -> str:
        """See ``Source``."""
        return self._source.identity(index)

    def fingerprint(self) -> str:
        """See ``Source``."""
        return self._source.fingerprint()

    def take_pooled(self) -> Pooled:
        """What came from the cluster since this was last asked."""
        with self._lock:
            taken, self._pooled = self._pooled, Pooled()
        return taken

    def read_ahead(self, samples: NDArray[np.int64]) -> None:
        """Read what this thread reads next, piece by piece: all at once, each server is asked once."""
        thread = threading.get_ident()
        with self._lock:
            self._ahead.pop(thread, None)
        blobs = self.read_many(samples)
        with self._lock:
            self._ahead[thread] = dict(zip(samples.tolist(), blobs, strict=True))

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[Any]:
        """See ``Source``."""
        if self._pid != os.getpid():  # (of what the parent was at when it forked, nothing is known here)
            self._start()
        samples = np.asarray(indices, np.int64)
        if not self._ahead:
            return self._read(samples)
        out = self._take_ahead(samples.tolist())
        rest = [at for at, blob in enumerate(out) if blob is None]
        if rest:
            for at, blob in zip(rest, self._read(samples[rest]), strict=True):
                out[at] = blob
        return out

    def _take_ahead(self, samples: list[int]) -> list[Any]:
        """What was read ahead of some samples."""
        with self._lock:
            found = [one for one in self._ahead.values() if one]
            return [next((one.pop(sample) for one in found if sample in one), None) for sample in samples]

    def _read(self, samples: NDArray[np.int64]) -> list[Any]:
        out: list[Any] = [None] * len(samples)
        members = self._members()
        if members is not None and len(samples) <= MOST_SAMPLES:
            self._from_pool(members, samples, out)
        rest = [at for at, blob in enumerate(out) if blob is None]
        if rest:
            begun = time.monotonic()
            for at, blob in zip(rest, self._source.read_many(samples[rest]), strict=True):
                out[at] = blob
            got = [out[at] for at in rest if not isinstance(out[at], BaseException)]
            self._measured(STORAGE, len(got), sum(map(len, got)), time.monotonic() - begun)
        return out

    def _measured(self, way: str, samples: int, nbytes: int, seconds: float, kept: int | None = None) -> None:
        with self._lock:
            self._ways.read(way, samples, nbytes, seconds, now=time.monotonic(), kept=kept)

    def _by_node(self, node: Node, samples: int) -> bool:
        """Whether a node is asked, rather than storage."""
        with self._lock:
            return self._ways.by_node(node.incarnation, samples * self._size(), now=time.monotonic())

    def _size(self) -> float:
        """Bytes of a sample, about."""
        return self._ways.size or _SAMPLE

    def _members(self) -> Members | None:
        """The servers; None where this node has none just now."""
        if time.monotonic() < self._missed:
            return None
        try:
            return members_of(self._pool.path, self._pool.rail)
        except TROUBLE:
            self._missed = time.monotonic() + _AGAIN
            return None

    def _placed(self, view: View) -> Placement:
        placement = self._placement
        if placement is None or placement.view.number != view.number:
            if placement is None:
                placement = Placement(view, self._pool.dataset, len(self))
            placement = self._placement = placement.follow(view)
            with self._lock:
                self._ways.only([one.incarnation for one in view.nodes])
                self._usual = _of_these(view, self._usual)
                self._strangers = _of_these(view, self._strangers)
        return placement

    def _from_pool(self, members: Members, samples: NDArray[np.int64], out: list[Any]) -> None:
        """Ask each server for its samples."""
        placement = self._placed(members.view)
        # (orders have few samples: numpy would take longer for each node than the node for all of them)
        by_place: dict[int, list[int]] = {}
        for row, place in enumerate(placement.nodes_of(samples).tolist()):
            by_place.setdefault(place, []).append(row)
        total = Pooled()

        def want(rows: list[int]) -> tuple[bytes, list[Buffer]]:
            return encode(Want(self._pool.dataset, samples[rows].tobytes())), []

        def may(node: Node, rows: list[int]) -> bool:
            if self._strangers.get(node.incarnation, 0.0) > time.monotonic():
                return False
            return node.id == members.node or self._by_node(node, len(rows))

        def take(request: Request, reply: Reply, body: memoryview) -> int:
            nonlocal total
            if isinstance(reply, Opened):
                self._introduce(members, request.node)
                return 0
            found = given(reply, request.rows, body)
            assert isinstance(reply, Given)
            for row, blob in zip(request.rows, found, strict=True):
                # (whether a sample is too large for this job, its own source says)
                out[row] = None if blob is not None and 0 < self._pool.limit < len(blob) else blob
            got = sum(blob is not None for blob in found)
            came = Pooled(got, len(body), min(reply.kept, got))
            total = total.and_also(came)
            self._learn(members, request, reply, came)
            # (what a server had to read first says nothing of the network)
            return len(body) if came.kept == got else 0

        nodes = placement.view.nodes
        ask_nodes(
            members,
            [(nodes[place], rows) for place, rows in sorted(by_place.items()) if place >= 0],
            want,
            take,
            size=self._size,
            patience=self._patience,
            taken=_PATIENCE,
            may=may,
        )
        with self._lock:
            self._pooled = self._pooled.and_also(total)

    def _patience(self, node: Node) -> float:
        """Seconds for which a server may say nothing."""
        usual = self._usual.get(node.incarnation)
        return _PATIENCE if usual is None else min(_PATIENCE, max(_LEAST, _TIMES * usual))

    def _learn(self, members: Members, request: Request, reply: Given, came: Pooled) -> None:
        """What an answer says of how fast its server is, and storage."""
        server, took = request.node.incarnation, time.monotonic() - request.begun
        if request.node.id != members.node:
            self._measured(server, came.samples, came.nbytes, took, came.kept)
        elif reply.stored[0] != self._stored:
            # (what storage takes this node is known to who reads from it anyway)
            self._stored = reply.stored[0]
            self._measured(STORAGE, *reply.stored[1:])
        usual = self._usual.get(server, took)
        self._usual[server] = usual + 0.2 * (took - usual)

    def _introduce(self, members: Members, node: Node) -> None:
        """Tell a server that came later of the dataset; meanwhile its samples are read from storage."""
        with self._lock:
            if self._strangers.get(node.incarnation, 0.0) > time.monotonic():
                return
            self._strangers[node.incarnation] = time.monotonic() + _LISTING
        threading.Thread(
            target=self._define, args=(members, node), name="headrace-define", daemon=True
        ).start()

    def _define(self, members: Members, node: Node) -> None:
        try:
            define(members, node, self._pool)
            self._strangers.pop(node.incarnation, None)
        except HostRefused:
            pass  # (it was said when the loader began, or will be when the next one does)
        except TROUBLE:
            self._strangers[node.incarnation] = time.monotonic() + _AGAIN


def _of_these(view: View, known: dict[str, float]) -> dict[str, float]:
    """What is known of servers that are there. (Those of a node that is started again and again are many.)"""
    return {one.incarnation: known[one.incarnation] for one in view.nodes if one.incarnation in known}


def define(members: Members, node: Node, pool: Pool) -> None:
    """Have a server open a dataset. Raises HostRefused if it cannot, and others of ``TROUBLE``."""
    with members.lent(node) as connection:
        # (of a list of files it has megabytes, and a job's processes all come with the same)
        reply, _ = ask(connection, Open(pool.dataset, pool.limit), _PATIENCE)
        if isinstance(reply, Opened) and reply.known:
            return
        reply, _ = ask(connection, Define(pool.dataset, pool.definition), _LISTING)
        if not isinstance(reply, Opened):
            raise ProtocolError(f"{connection.name} answered with {type(reply).__name__}")
