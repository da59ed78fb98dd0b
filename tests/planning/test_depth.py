"""Depth follows unevenness, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import deepen

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
