"""Turns: as many at a time as may be, and of those who wait the lowest number first."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from headrace.cluster.turns import Turns
from tests.loader.helpers import wait_until


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_a_few_at_a_time_and_the_lowest_first(at_once: int) -> None:
    turns = Turns(at_once)
    release = [threading.Event() for _ in range(20)]
    began: list[int] = []
    lock = threading.Lock()

    def take(number: int) -> None:
        with turns.take(number):
            with lock:
                began.append(number)
            release[number].wait(30)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(20)]
    for number in range(at_once):
        threads[number].start()
    assert wait_until(lambda: len(began) == at_once)
    late = list(range(at_once, 20))
    random.Random(at_once).shuffle(late)
    for number in late:
        threads[number].start()
    assert wait_until(lambda: len(turns._waiting) == 20 - at_once)
    for number in range(20):
        assert len(began) == min(20, number + at_once)
        release[number].set()
        assert wait_until(_so_many(began, min(20, number + 1 + at_once)))
    for thread in threads:
        thread.join(30)
    assert began[at_once:] == list(range(at_once, 20))


def _so_many(began: list[int], count: int) -> Callable[[], bool]:
    return lambda: len(began) == count


def test_a_turn_that_fails_is_over() -> None:
    turns = Turns(1)
    for number in range(3):
        with pytest.raises(OSError), turns.take(number):
            raise OSError
    with turns.take(9):
        pass
