"""Who claims the next order, as a worker's threads come and go."""

from __future__ import annotations

import pytest

from headrace.engine.gate import Gate


@pytest.mark.parametrize(("width", "called"), [(40, 1), (1, 0)], ids=["storage is slow", "storage is fast"])
def test_while_an_order_waits_for_room_another_thread_asks_storage(width: int, called: int) -> None:
    calls = []
    gate = Gate(backlog=lambda: 3)
    gate.on_room = lambda: calls.append(gate)
    assert gate.enter()
    gate.begin_and_leave()
    for _ in range(gate.parts(width)):
        gate.reads(1, width)
    for _ in range(gate.parts(width)):
        gate.reads(-1)
    assert not calls, "its thread is at work"
    with gate.handing():
        assert len(calls) == called
    gate.end()


def test_orders_are_claimed_again_once_requests_no_longer_wait() -> None:
    calls, crowded = [], True
    gate = Gate(crowded=lambda: crowded)
    gate.on_room = lambda: calls.append(gate)
    assert gate.enter()
    gate.begin_and_leave()
    gate.reads(1, 40)
    with gate.waits(lambda: None):
        gate.room()
        assert not calls
        crowded = False
        gate.room()
        assert calls == [gate]
    gate.reads(-1)
    gate.end()
