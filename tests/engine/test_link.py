"""When a worker without orders says that it has nothing to do."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from headrace.channel.unix import pair
from headrace.engine.board import Claim
from headrace.engine.link import Link
from headrace.planning.idling import IDLE

CLAIM = Claim(0, 1, (0, 64), 0, 8)


class Board:
    """One on which there is no order for some waits."""

    left = shared = False
    taken = 0.0

    def __init__(self, empty: int) -> None:
        self.empty = empty
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        """As ``Board.wait``, in no time."""
        self.waits.append(timeout)
        return len(self.waits) > self.empty

    def claim(self, worker: int, skip: int) -> Claim:
        """The order."""
        return CLAIM


def claim(link: Link, board: Board, idle: Any) -> list[float | None]:
    """For how long each wait was."""
    link.board = board  # type: ignore[assignment]
    assert link.claim(idle) == CLAIM
    return board.waits


def test_a_worker_that_nobody_has_anything_for_asks_less_and_less_often_up_to_a_limit() -> None:
    ours, theirs = pair()
    with closing(ours), closing(theirs):
        link, calls = Link(0, 0, None, None, theirs), []  # type: ignore[arg-type, var-annotated]
        waits = claim(link, Board(5), lambda: calls.append(1))
        assert waits == [IDLE, 2 * IDLE, 4 * IDLE, 4 * IDLE, 4 * IDLE, 4 * IDLE] and len(calls) == 5
        assert claim(link, Board(0), lambda: None) == [4 * IDLE], "the next order does not change that"
        link.pause.given()
        assert claim(link, Board(1), lambda: None) == [IDLE, 2 * IDLE]
        assert claim(link, Board(0), None) == [None], "without a shared host there is nobody to tell"
