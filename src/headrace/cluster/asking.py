"""Requests to many nodes at once, and their answers in turn, as far as what they answer has room on its way here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from headrace.channel.wire import Buffer, Wire
from headrace.cluster.members import TROUBLE, Members, answer
from headrace.cluster.messages import Given, Node, Reply
from headrace.cluster.window import Asked
from headrace.core.errors import ProtocolError


class Request(NamedTuple):
    """What was asked of a server."""

    node: Node
    connection: Wire
    rows: list[int]
    begun: float
    room: Asked | None
    """In the window; None: it is on this node."""


Make = Callable[[list[int]], tuple[bytes, list[Buffer]]]
"""The request for some rows, and what is beside it."""
Take = Callable[[Request, Reply, memoryview], int]
"""Takes an answer; its bytes, where they tell something of the network. May raise one of ``TROUBLE``."""


def ask_nodes(
    members: Members,
    parts: Iterable[tuple[Node, list[int]]],
    make: Make,
    take: Take,
    *,
    size: Callable[[], float],
    patience: Callable[[Node], float],
    taken: float,
    may: Callable[[Node, list[int]], bool] = lambda node, rows: True,
) -> None:
    """A request to each node for its part of some rows. Who does not answer as it should is left alone from then on.

    ``size``: bytes of an answer for each row; ``patience``: seconds for which a node may say nothing; ``taken``: for
    which it may take in nothing; ``may``: nodes that are asked.
    """
    under_way: deque[Request] = deque()
    try:
        for node, rows in parts:
            if not members.is_well(node) or not may(node, rows):
                continue
            room = None
            if node.id != members.node:
                # (who waits for room takes in what it has asked for meanwhile: others may wait for that)
                while (room := members.window.ask(int(len(rows) * size()), wait=not under_way)) is None:
                    _take(members, under_way.popleft(), take, patience)
            connection = None
            try:
                connection = _send(members, node, *make(rows), taken)
            finally:  # (Ctrl-C, too: the window is the process's)
                if connection is None and room is not None:
                    members.window.answered(room)
            if connection is not None:
                under_way.append(Request(node, connection, rows, time.monotonic(), room))
        while under_way:
            _take(members, under_way.popleft(), take, patience)
    finally:
        for request in under_way:
            members.drop(request.node, request.connection)
            if request.room is not None:
                members.window.answered(request.room)


def _send(members: Members, node: Node, message: bytes, body: list[Buffer], seconds: float) -> Wire | None:
    for _ in range(2):  # (a connection that was kept may have ended meanwhile)
        try:
            connection = members.borrow(node)
        except TROUBLE:
            break
        try:
            connection.send(message, body, seconds=seconds)
            return connection
        except TROUBLE:
            members.drop(node, connection)
        except BaseException:
            members.drop(node, connection)
            raise
    members.trouble(node)
    return None


def _take(members: Members, request: Request, take: Take, patience: Callable[[Node], float]) -> None:
    node, connection, nbytes = request.node, request.connection, 0
    try:
        nbytes = take(request, *answer(connection, patience(node)))
    except TROUBLE:
        members.drop(node, connection)
        members.trouble(node)
    except BaseException:
        members.drop(node, connection)
        raise
    else:
        members.give_back(node, connection)
    finally:
        if request.room is not None:
            members.window.answered(request.room, nbytes)


def lengths_of(reply: Reply, rows: list[int]) -> list[int]:
    """What a server says of the lengths of some rows; -1: it has none."""
    if not isinstance(reply, Given) or len(reply.lengths) != 8 * len(rows):
        raise ProtocolError(f"a server answered with {type(reply).__name__}")
    lengths: list[int] = np.frombuffer(reply.lengths, np.int64).tolist()
    return lengths


def given(reply: Reply, rows: list[int], body: memoryview) -> list[memoryview | None]:
    """What a server gave of some rows; None in the place of one that it has not."""
    lengths = lengths_of(reply, rows)
    if min(lengths) < -1 or sum(lengths) + lengths.count(-1) != len(body):
        raise ProtocolError("a server gave other bytes than it said")
    out: list[memoryview | None] = []
    at = 0
    for length in lengths:
        out.append(body[at : at + length] if length >= 0 else None)
        at += max(0, length)
    return out
