"""Timed queues: order, limits, waiting that is measured, and closing."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from headrace.engine.queues import Closed, TimedQueue


def until(condition: object) -> None:
    """Wait for something that is bound to happen."""
    while not condition():  # type: ignore[operator]
        time.sleep(0.001)


def started(target: object, *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def waiting(queue: TimedQueue[int]) -> int:
    """Threads that are blocked in the queue."""
    with queue._changed:
        return len(queue._changed._waiters)  # type: ignore[attr-defined]


def test_first_in_first_out_without_waiting() -> None:
    queue: TimedQueue[int] = TimedQueue(10)
    assert [queue.put(item) for item in range(5)] == [0.0] * 5
    assert [queue.get() for _ in range(5)] == [(item, 0.0) for item in range(5)]
    assert queue.waited_put == queue.waited_get == 0.0


def test_getting_waits_and_says_how_long() -> None:
    queue: TimedQueue[int] = TimedQueue(2)
    got: list[tuple[int, float]] = []
    thread = started(lambda: got.append(queue.get()))
    until(lambda: waiting(queue) == 1)
    queue.put(7)
    thread.join()
    ((item, waited),) = got
    assert item == 7
    assert waited > 0
    assert queue.waited_get == waited
    assert queue.waited_put == 0.0


def test_who_waits_for_long_looks_around() -> None:
    """Outside of the lock: what it sees may lead to an item."""
    queue: TimedQueue[int] = TimedQueue(2)
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 2:
            queue.put(5)

    item, waited = queue.get(look)
    assert item == 5 and waited > 0 and looks == [0, 1]
    queue.put(6)
    assert queue.get(look) == (6, 0.0) and looks == [0, 1], "not where there is something"


def test_putting_waits_for_room_and_says_how_long() -> None:
    queue: TimedQueue[int] = TimedQueue(1)
    queue.put(1)
    waited: list[float] = []
    thread = started(lambda: waited.append(queue.put(2)))
    until(lambda: waiting(queue) == 1)
    assert queue.get() == (1, 0.0)
    thread.join()
    assert waited[0] > 0
    assert queue.waited_put == waited[0]
    assert queue.waited_get == 0.0
    assert queue.get() == (2, 0.0)


def test_closing_refuses_items_and_hands_out_the_rest() -> None:
    queue: TimedQueue[int] = TimedQueue(3)
    queue.put(1)
    queue.put(2)
    queue.close()
    queue.close()
    with pytest.raises(Closed):
        queue.put(3)
    assert [queue.get()[0] for _ in range(2)] == [1, 2]
    with pytest.raises(Closed):
        queue.get()


def test_closing_wakes_everybody() -> None:
    empty: TimedQueue[int] = TimedQueue(1)
    full: TimedQueue[int] = TimedQueue(1)
    full.put(0)
    ended: list[str] = []

    def act(name: str, queue: TimedQueue[int]) -> None:
        try:
            queue.get() if name == "get" else queue.put(1)
        except Closed:
            ended.append(name)

    threads = [started(act, name, queue) for name, queue in (("get", empty), ("put", full)) for _ in range(3)]
    until(lambda: waiting(empty) == waiting(full) == 3)
    empty.close()
    full.close()
    for thread in threads:
        thread.join()
    assert Counter(ended) == {"get": 3, "put": 3}
    assert full.get() == (0, 0.0), "what nobody could put is not there"
    with pytest.raises(Closed):
        full.get()
    assert full.waited_put > 0
    assert empty.waited_get > 0


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_many_threads_lose_and_repeat_nothing(limit: int) -> None:
    queue: TimedQueue[tuple[int, int]] = TimedQueue(limit)
    got: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    longest = 0

    def produce(name: int) -> None:
        nonlocal longest
        for number in range(300):
            queue.put((name, number))
            longest = max(longest, len(queue._items))

    def consume(into: list[tuple[int, int]]) -> None:
        try:
            while True:
                into.append(queue.get()[0])
        except Closed:
            pass

    consumers = [started(consume, into) for into in got]
    producers = [started(produce, name) for name in range(4)]
    for thread in producers:
        thread.join()
    queue.close()
    for thread in consumers:
        thread.join()
    assert longest <= limit
    items = [item for into in got for item in into]
    assert Counter(items) == Counter((name, number) for name in range(4) for number in range(300))
    for into in got:
        for name in range(4):
            numbers = [number for who, number in into if who == name]
            assert numbers == sorted(numbers), "one producer's items reach one consumer in their order"
