"""How many processes and threads: the user's number is obeyed, and CPUs are not oversubscribed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning import Staff, staff

CPUS = st.integers(1, 512)
HELD = st.one_of(st.none(), st.just(-1.0), st.floats(0, 1))


@given(CPUS, st.one_of(st.none(), st.integers(1, 600)), HELD)
def test_no_more_hands_than_cpus_or_than_the_user_asked_for(
    cpus: int, processes: int | None, held: float | None
) -> None:
    got = staff(cpus, processes, held)
    assert got.processes >= 1
    assert got.threads >= 1
    assert got.processes * got.threads <= max(cpus, got.processes)
    if processes is not None:
        assert got.processes == processes
    else:
        assert got.processes <= cpus


@given(CPUS, st.one_of(st.none(), st.integers(1, 64)), st.floats(0.41, 1))
def test_code_that_holds_the_lock_gets_one_thread_per_process(
    cpus: int, processes: int | None, held: float
) -> None:
    assert staff(cpus, processes, held) == Staff(processes or cpus, 1)


@given(CPUS)
def test_native_code_uses_nearly_all_cpus(cpus: int) -> None:
    got = staff(cpus)
    assert got.processes * got.threads > cpus - got.processes
    assert staff(cpus, None, 0.2) == got


@given(CPUS, st.one_of(st.none(), st.integers(1, 64)))
def test_while_nothing_is_known_there_is_one_thread(cpus: int, processes: int | None) -> None:
    assert staff(cpus, processes, -1.0).threads == 1


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [(1, (1, 1)), (2, (2, 1)), (16, (16, 1)), (32, (32, 1)), (48, (24, 2)), (64, (32, 2)), (256, (64, 4))],
)
def test_examples(cpus: int, expected: tuple[int, int]) -> None:
    assert staff(cpus) == expected
