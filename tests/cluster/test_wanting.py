"""What an agent tells workers by way of the board."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.cache.arena import Arena
from headrace.cluster import wanting
from headrace.cluster.wanting import Wanting
from headrace.engine.board import Board
from headrace.planning.helping import Way


@pytest.fixture
def board() -> Iterator[Board]:
    arena = Arena()
    made = Board(arena)
    yield made
    made.close()
    arena.close()


def test_workers_hear_how_many_orders_others_take_for_as_long_as_there_are_others(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(1e9 * clock))
    one = Wanting(board, workers=1)
    assert one.decide(there=False, helped=False) is Way.BOTH
    assert not board.shared, "nobody else is there"
    one.decide(there=True, helped=True)
    assert board.shared and board.taken == 0.0
    for _ in range(30):
        one.took()
    clock += 0.6
    one.decide(there=True, helped=True)
    assert board.taken == pytest.approx(50, abs=0.1)
    clock += 0.4
    assert one.decide(there=False, helped=False) is Way.BOTH
    assert board.shared, "who has just gone may come again"
    clock += 2 * wanting._LATELY
    assert not board.shared and board.taken == 0.0


def test_help_is_wanted_where_more_waits_than_a_batch_and_nobody_is_told_at_the_end(board: Board) -> None:
    one = Wanting(board, workers=1)
    one.help.saw(32, 16)
    for order in range(3):
        assert not one.now()
        board.post(order, (0, 64), 0, 8)
    assert one.now()
    one.decide(there=True, helped=True)
    assert board.shared
    one.close()
    assert not board.shared and not board.left


def test_none_of_the_orders_is_given_away_where_workers_claim_more_without(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where to receive a row takes as much of this node as to make it, and they have more claimed without help."""
    clock, rows = 1000.0, {Way.BOTH: 10, Way.OWN: 30, Way.OTHERS: 0}
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(1e9 * clock))
    one, way, order = Wanting(board, workers=1), Way.BOTH, 0
    for _ in range(2):
        board.made(2e-4)
    assert board.making == pytest.approx(2e-4, rel=0.01)
    for _ in range(400):
        for _ in range(4):
            board.post(order, (0, 64), 0, 8, rows=rows[way])
            order += 1
        while board.backlog() > 3:
            board.claim(0)
        way = one.decide(there=True, helped=True, receiving=2e-4)
        assert board.shared and not board.left, "what waits shows whether help is wanted"
        clock += 0.05
    assert way is Way.OWN
    assert one.decide(there=True, helped=True, receiving=1e-5) is Way.BOTH, "it has become cheap"
