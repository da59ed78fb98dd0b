"""What an agent tells workers by way of the board."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace.cache.arena import Arena
from headrace.cluster import wanting
from headrace.cluster.wanting import Wanting
from headrace.engine.board import Board


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
    assert not one.decide(there=False, helped=False)
    assert not board.shared, "nobody else is there"
    one.decide(there=True, helped=True)
    assert board.shared and board.taken == 0.0
    for _ in range(30):
        one.took()
    clock += 0.6
    one.decide(there=True, helped=True)
    assert board.taken == pytest.approx(50, abs=0.1)
    clock += 0.4
    assert not one.decide(there=False, helped=False)
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
