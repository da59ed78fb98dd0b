"""Numbers that do not swing."""

import pytest

from headrace.planning.threads.steady import Mover, Steady


def test_to_turn_takes_two_looks() -> None:
    mover = Mover()
    mover.put(4)
    assert mover.allowed(6) == 6 and mover.put(6) == 6
    assert mover.allowed(5) == 6, "the other way"
    assert mover.allowed(7) == 7, "the same way"
    assert mover.allowed(5) == 6 and mover.allowed(5) == 5, "twice in a row"
    mover.put(5)
    assert mover.allowed(6) == 5
    assert mover.allowed(5) == 5 and mover.allowed(6) == 5, "not in a row"


def test_a_step_is_a_doubling_or_a_third_less() -> None:
    mover = Mover()
    for now, goal, step in [
        (4, 100, 8),
        (9, 1, 6),
        (10, 1, 7),
        (2, 1, 1),
        (1, 1, 1),
        (1, 9, 2),
        (5, 6, 6),
        (5, 4, 4),
    ]:
        mover.put(now)
        assert mover.bounded(goal) == step, (now, goal)


def test_one_far_measurement_is_left_out_and_two_are_believed() -> None:
    mean = Steady()
    assert mean.feed(1.0) == 1.0
    assert mean.feed(1.2) == pytest.approx(1.06)
    assert mean.feed(9.0) == pytest.approx(1.06)
    assert mean.feed(1.06) == pytest.approx(1.06)
    assert mean.feed(9.0) == pytest.approx(1.06)
    assert mean.feed(0.1) == pytest.approx(1.06), "they do not agree"
    assert mean.feed(0.0) == pytest.approx(0.0), "these do"
    assert mean.feed(5.0) == 0.0
    assert mean.feed(6.0) == 5.5
