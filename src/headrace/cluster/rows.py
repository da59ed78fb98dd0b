"""How rows come from a helper to the rank that has granted it room: over the wire, or written by NIXL.

Each connection has one end that sends and one that receives. ``Receiving`` and ``Sending`` are what agents and
helpers see of them; ``nixl_rows`` has the other pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.channel.wire import Wire
from headrace.cluster.messages import Land
from headrace.core.errors import ProtocolError

TLS, NIXL = "tls", "nixl"
BESIDE = -1
"""The place of rows that come beside the message that tells of them."""


class Receiving(Protocol):
    """The end at the rank. One thread makes room; another, which is the only one that writes into slots, takes."""

    def room(self, number: int, nbytes: int) -> tuple[int, Land | None]:
        """Where rows of a grant of this number are to be put; and what the other end has to be told before, if it
        has."""
        ...

    def take(self, number: int, beside: int, into: Sequence[memoryview], seconds: float) -> None:
        """Have the rows of a grant, of which a message with so many bytes ``beside`` it has told, in the slot. Raises
        ProtocolError for rows that were not granted so, and what a wire raises."""
        ...

    def close(self) -> None:
        """From here on nothing arrives any more. The thread that takes calls it, and nobody else afterwards."""
        ...


class Sending(Protocol):
    """The end at the helper. One thread at a time uses it."""

    def send(self, number: int, place: int, message: bytes, rows: Sequence[Any], seconds: float) -> None:
        """Rows of a grant, field by field, and the message that tells of them. They are there when it arrives."""
        ...

    def close(self) -> None:
        """Nothing is sent any more."""
        ...


class WireReceiving:
    """See ``Receiving``: rows come beside their message, and are received straight into the slot."""

    def __init__(self, connection: Wire) -> None:
        self._connection = connection

    def room(self, number: int, nbytes: int) -> tuple[int, Land | None]:
        """See ``Receiving``."""
        return BESIDE, None

    def take(self, number: int, beside: int, into: Sequence[memoryview], seconds: float) -> None:
        """See ``Receiving``."""
        if beside != sum(map(len, into)):
            raise ProtocolError(f"{self._connection.name} sent rows of {beside} bytes")
        for view in into:
            self._connection.receive_into(view, seconds=seconds)

    def close(self) -> None:
        """See ``Receiving``."""
        self._connection.close()


class WireSending:
    """See ``Sending``."""

    def __init__(self, connection: Wire) -> None:
        self._connection = connection

    def send(self, number: int, place: int, message: bytes, rows: Sequence[Any], seconds: float) -> None:
        """See ``Sending``."""
        if place != BESIDE:
            raise ProtocolError("room was granted in no known memory")
        self._connection.send(message, [memoryview(one).cast("B") for one in rows], seconds=seconds)

    def close(self) -> None:
        """See ``Sending``."""
        self._connection.close()
