"""Work in threads and in processes: what is counted, and what happens when something goes wrong."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.processes import in_processes
from headrace.measure.timed_threads import run_threads, thread_counts
from tests.descriptors import none_left_open


@given(st.integers(1, 1000))
def test_thread_counts_go_from_one_to_the_most(most: int) -> None:
    found = thread_counts(most)
    assert found[0] == 1 and found[-1] == most
    assert found == sorted(set(found))
    assert all(after <= 2 * before for before, after in itertools.pairwise(found))


def test_everything_that_was_done_counts() -> None:
    def nap() -> int:
        time.sleep(0.002)
        return 3

    throughput = run_threads([nap, nap], 0.1)
    assert throughput.done % 3 == 0 and throughput.done >= 6
    assert 0 < throughput.rate <= 2 * 3 / 0.002
    assert throughput.cpu < 0.002 / 3  # it slept, and only processor time counts


def test_each_is_called_at_least_once_and_may_run_out() -> None:
    called: list[int] = []
    assert run_threads([lambda: called.append(1) or 1] * 3, 0.0).done == 3  # type: ignore[func-returns-value]
    left = iter([1, 1, 1, 1])
    assert run_threads([lambda: next(left, None)] * 2, 60.0).done == 4
    nothing = run_threads([lambda: None], 60.0)
    assert (nothing.done, nothing.rate, nothing.cpu) == (0, 0, 0.0)


def test_an_error_ends_all_threads_and_is_raised() -> None:
    def fail() -> int:
        raise ValueError("no more")

    def go_on() -> int:
        time.sleep(0.001)
        return 1

    with pytest.raises(ValueError, match="no more"):
        run_threads([go_on, fail], 60.0)
    assert "headrace-measure" not in [thread.name for thread in threading.enumerate()]


def _children() -> str:
    with open(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children") as file:
        return file.read()


def test_processes_are_added_up() -> None:
    before = _children()

    def works(number: int) -> list[object]:
        return [lambda: time.sleep(0.001) or number + 1] * 2

    throughput = in_processes(2, works, 0.1)  # type: ignore[arg-type]
    assert throughput is not None
    assert throughput.done >= 2 * (1 + 2)
    assert 0 < throughput.rate <= 2 * (1 + 2) / 0.001
    assert _children() == before


@pytest.mark.parametrize("how", ["hangs at the start", "hangs", "fails", "dies"])
def test_a_process_that_does_not_come_back_is_no_result(how: str) -> None:
    before = _children()
    calls = 0

    def work() -> int:
        nonlocal calls
        calls += 1
        if how == "hangs" and calls > 1:
            time.sleep(60)
        if how == "dies" and calls > 1:
            os._exit(0)
        return 1

    def works(number: int) -> list[object]:
        if number == 1 and how == "fails":
            raise ValueError("nothing to do")
        if number == 1 and how == "hangs at the start":
            time.sleep(60)
        return [work if number == 1 else lambda: time.sleep(0.001) or 1]

    with none_left_open():
        assert in_processes(2, works, 0.05, grace=0.5) is None  # type: ignore[arg-type]
    assert _children() == before


def test_an_interrupt_leaves_no_process() -> None:
    before = _children()
    calls = 0

    def interrupt() -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.01)
        return 1

    with none_left_open(), pytest.raises(KeyboardInterrupt):
        in_processes(2, lambda number: [interrupt], 30.0)
    assert _children() == before
