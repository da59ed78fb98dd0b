"""Decoded samples in the memory of all nodes, by key: decoded once by the cluster, and read by all.

It is a tier as others are (``cache/keyed.py``). A key lies on the node that rendezvous hashing says, where there is
room beside what nodes hold of datasets. Who does not answer has nothing, and is given nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.cache.keyed import Piece
from headrace.channel.wire import Buffer
from headrace.cluster.asking import Make, Request, Take, ask_nodes, given, lengths_of
from headrace.cluster.members import TROUBLE, Members, members_of
from headrace.cluster.messages import (
    KEY,
    MOST_PUT,
    MOST_SAMPLES,
    Drop,
    Find,
    Node,
    Noted,
    Put,
    Reply,
    Took,
    View,
    encode,
)
from headrace.cluster.pooled import Pool
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.engine.disk_stage import DiskUse
from headrace.planning.rendezvous import key_of, owners
from headrace.recipes.recipe import Recipe

_PATIENCE = 2.0
"""Seconds for which a server may say nothing: it has nothing to wait for."""
_TAKEN = 5.0
"""Seconds for which it may take in nothing."""
_FULL = 5.0
"""Seconds for which a node that had no room is given nothing."""
_AGAIN = 5.0
"""Seconds after which the node's own server is looked for anew."""
_AT_ONCE = MOST_PUT // 8
"""Bytes that are put at a time."""
_SAMPLE = 256 << 10
"""Bytes of a sample, before one was seen."""
_PLACES = key_of("by key")


@dataclass(frozen=True)
class NodesTier:
    """The memory of all nodes as a tier. It travels to workers."""

    socket: str
    """That of this node's server."""
    rail: str
    group: str
    """What tells the samples that were decoded in one way from all others."""
    budget: int

    @property
    def path(self) -> str:
        """See ``KeyTier``."""
        return "the cluster's memory"

    def open(self) -> OpenNodes:
        """See ``KeyTier``."""
        return OpenNodes(self)


def use_nodes(recipe: Recipe, pool: Pool, memory: int, *, measured: bool) -> DiskUse:
    """How those who prepare rows of a recipe have decoded samples held by nodes: workers of its jobs, and helpers.
    (Encoded ones are there anyway.) ``memory``: of all nodes. ``measured``: only where that pays. Raises OptionError
    for a recipe whose decoded samples cannot be told from another's."""
    key = recipe.share_key(Form.DECODED)
    tier = NodesTier(pool.path, pool.rail, key, memory)
    whole = len(recipe.source)
    return DiskUse(tier, encoded=False, decoded=1.0, decoded_key=key, whole=whole, measured=measured)


class OpenNodes:
    """See ``OpenTier``."""

    def __init__(self, tier: NodesTier) -> None:
        self._tier = tier
        self._missed = 0.0
        self._size = float(_SAMPLE)
        self._full: dict[str, float] = {}
        """Nodes that had no room, by their servers' incarnations, and until when they are given nothing."""

    @property
    def budget(self) -> int:
        """See ``OpenTier``."""
        return self._tier.budget

    @property
    def has_room(self) -> bool:
        """See ``OpenTier``."""
        members = self._members()
        return members is not None and any(self._may_put(node) for node in members.view.nodes)

    def _may_put(self, node: Node) -> bool:
        return self._full.get(node.incarnation, 0.0) <= time.monotonic()

    def has_room_ahead(self, nbytes: float) -> bool:
        """See ``OpenTier``. Nothing is copied there ahead of need: nodes read ahead themselves."""
        return False

    def get_many(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """See ``OpenTier``."""
        out: list[memoryview | None] = [None] * len(keys)

        def find(rows: list[int]) -> tuple[bytes, list[Buffer]]:
            return encode(Find(self._tier.group, b"".join(keys[row] for row in rows))), []

        def take(request: Request, reply: Reply, body: memoryview) -> int:
            found = given(reply, request.rows, body)
            for row, content in zip(request.rows, found, strict=True):
                out[row] = content
            if len(body):
                self._size += 0.1 * (len(body) / sum(one is not None for one in found) - self._size)
            return len(body)

        self._ask(keys, find, take, self._size)
        return out

    def has_many(self, keys: Sequence[bytes]) -> list[bool]:
        """See ``OpenTier``. Of a node that does not answer, all counts as being there: nobody need send it."""
        out = [True] * len(keys)

        def find(rows: list[int]) -> tuple[bytes, list[Buffer]]:
            return encode(Find(self._tier.group, b"".join(keys[row] for row in rows), True)), []

        def take(request: Request, reply: Reply, body: memoryview) -> int:
            for row, length in zip(request.rows, lengths_of(reply, request.rows), strict=True):
                out[row] = length >= 0
            return 0

        self._ask(keys, find, take, 8.0)
        return out

    def put_many(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int:
        """See ``OpenTier``."""
        pieces: list[list[Buffer]] = [[memoryview(one).cast("B") for one in sample[1]] for sample in samples]
        sizes = [sum(map(len, one)) for one in pieces]
        rows = [row for row, size in enumerate(sizes) if size <= _AT_ONCE]
        kept = 0
        while rows and self.has_room:
            part: list[int] = []
            nbytes = 0
            while rows and nbytes + sizes[rows[0]] <= _AT_ONCE and len(part) < MOST_SAMPLES:
                nbytes += sizes[rows[0]]
                part.append(rows.pop(0))
            kept += self._put([samples[row][0] for row in part], [pieces[row] for row in part])
        return kept

    def _put(self, keys: list[bytes], pieces: list[list[Buffer]]) -> int:
        kept = 0

        def put(rows: list[int]) -> tuple[bytes, list[Buffer]]:
            lengths = np.array([sum(map(len, pieces[row])) for row in rows], np.int64)
            body = [one for row in rows for one in pieces[row] if len(one)]
            return encode(Put(self._tier.group, b"".join(keys[row] for row in rows), lengths.tobytes())), body

        def take(request: Request, reply: Reply, body: memoryview) -> int:
            nonlocal kept
            if not isinstance(reply, Took):
                raise ProtocolError(f"answered with {type(reply).__name__}")
            kept += reply.count
            if not reply.room:
                now = time.monotonic()
                self._full = {one: until for one, until in self._full.items() if until > now}
                self._full[request.node.incarnation] = now + _FULL
            return 0

        self._ask(keys, put, take, 0.0, self._may_put)
        return kept

    def drop_many(self, keys: Sequence[bytes]) -> None:
        """See ``OpenTier``."""

        def drop(rows: list[int]) -> tuple[bytes, list[Buffer]]:
            return encode(Drop(self._tier.group, b"".join(keys[row] for row in rows))), []

        def take(request: Request, reply: Reply, body: memoryview) -> int:
            if not isinstance(reply, Noted):
                raise ProtocolError(f"answered with {type(reply).__name__}")
            return 0

        self._ask(keys, drop, take, 0.0)

    def put_ahead(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int | None:
        """See ``OpenTier``."""
        return None

    def release(self, numbers: Sequence[int]) -> None:
        """See ``OpenTier``."""

    def close(self) -> None:
        """See ``OpenTier``. Connections are the process's."""

    # -- requests ------------------------------------------------------------------------------------------------

    def _members(self) -> Members | None:
        """The servers; None where this node has none just now."""
        if time.monotonic() < self._missed:
            return None
        try:
            return members_of(self._tier.socket, self._tier.rail)
        except TROUBLE:
            self._missed = time.monotonic() + _AGAIN
            return None

    def _ask(
        self,
        keys: Sequence[bytes],
        make: Make,
        take: Take,
        each: float,
        may: Callable[[Node], bool] = lambda node: True,
    ) -> None:
        """Ask the nodes that have some of the keys. ``each``: bytes of an answer for each key."""
        members = self._members()
        if members is not None and len(keys):
            ask_nodes(
                members,
                _by_node(members.view, keys),
                make,
                take,
                size=lambda: each,
                patience=lambda node: _PATIENCE,
                taken=_TAKEN,
                may=lambda node, rows: may(node),
            )


def _by_node(view: View, keys: Sequence[bytes]) -> list[tuple[Node, list[int]]]:
    """Which of the keys each node has."""
    if not view.nodes:
        return []
    numbers = np.frombuffer(b"".join(keys), np.dtype([("number", "<u8"), ("rest", f"V{KEY - 8}")]))["number"]
    places = owners(
        (numbers >> np.uint64(1)).astype(np.int64),
        _PLACES,
        [key_of(node.id) for node in view.nodes],
        [float(node.memory) for node in view.nodes],
    )
    by_place: dict[int, list[int]] = {}
    for row, place in enumerate(places.tolist()):
        by_place.setdefault(place, []).append(row)
    return [(view.nodes[place], rows) for place, rows in sorted(by_place.items())]
