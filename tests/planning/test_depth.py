"""Depth follows unevenness, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Depth, deepen

SECONDS = st.floats(0, 1e3)


@given(st.integers(1, 64), st.integers(1, 64), SECONDS, SECONDS, SECONDS, st.integers(1, 64))
def test_depth_never_shrinks_nor_jumps_nor_passes_its_limit(ahead, most, elapsed, waited, idle, hands):
    deeper = deepen(ahead, most, elapsed=elapsed, waited=waited, idle=idle, hands=hands)
    assert ahead <= deeper <= ahead + 1
    assert deeper == ahead or deeper <= most


def test_busy_hands_and_a_fed_loop_stay_as_they_are():
    assert deepen(2, 8, elapsed=10, waited=9, idle=0.1, hands=2) == 2, "bound by preparing"
    assert deepen(2, 8, elapsed=10, waited=0.1, idle=15, hands=2) == 2, "bound by the loop"
    assert deepen(2, 8, elapsed=10, waited=2, idle=6, hands=2) == 3, "uneven"
    assert deepen(8, 8, elapsed=10, waited=2, idle=6, hands=2) == 8


def test_who_starves_in_company_keeps_little_ahead():
    times = {"elapsed": 10, "idle": 6, "hands": 2}
    assert deepen(4, 8, waited=9, company=1, cpus=2, **times) == 2
    assert deepen(1, 8, waited=9, company=1, cpus=2, **times) == 2, "others have left"
    assert deepen(2, 8, waited=9, company=1, cpus=2, **times) == 2
    assert deepen(4, 8, waited=9, company=2, cpus=2, **times) == 1, "more jobs than CPUs"
    assert deepen(1, 8, waited=9, company=2, cpus=2, **times) == 1
    assert deepen(4, 8, waited=9, **times) == 5, "alone it costs nobody anything"
    assert deepen(4, 8, waited=3, company=1, cpus=2, **times) == 5, "uneven, not starving"


def looks(depth: Depth, batches: int, ahead: int, begin: int = 0) -> list[int]:
    """Depth after each of some batches; the loop waits a third of its time, and a hand is idle as long."""
    found = []
    for at in range(begin + 1, begin + batches + 1):
        ahead = depth.taken(ahead, outstanding=ahead, now=at, waited=at / 3, idle=at / 3)
        found.append(ahead)
    return found


def test_the_first_batches_are_left_out_and_then_every_eighth_is_a_look():
    found = looks(Depth(4, hands=1, cpus=2), 40, 2)
    assert found == [2] * 15 + [3] * 8 + [4] * 17


def test_what_was_left_out_does_not_count():
    depth = Depth(4, hands=2, cpus=2)
    assert looks(depth, 15, 2) == [2] * 15
    depth.leave_out()
    assert looks(depth, 10, 2, begin=15) == [2] * 9 + [3], "a batch for each hand, then a look's eight"


def test_where_nothing_is_left_to_be_ordered_waits_do_not_count():
    """But where others share what is prepared, fewer are in the making for other reasons."""
    for company, expected in ((0, 2), (1, 3)):
        depth, ahead = Depth(4, hands=1, cpus=2), 2
        for at in range(1, 17):
            ahead = depth.taken(ahead, outstanding=0, now=at, waited=at / 3, idle=at / 3, company=company)
        assert ahead == expected
