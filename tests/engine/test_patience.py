"""Reads that do not give an answer at once: tried again, by other threads, and not for longer than one should."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.core.errors import StorageUnavailable
from headrace.engine.gate import Gate
from headrace.engine.queues import Closed
from headrace.engine.read_threads import Job, ReadThreads
from headrace.engine.reader import Reader
from headrace.planning.window import ORDERS, WIDEST
from headrace.sources.temporary import doubtful, not_now
from tests.engine.test_queues import started, until


class Moody:
    """A source that answers a sample as it is told, depending on how often it was asked for it."""

    def __init__(self, answer: Callable[[int, int], Any], *, raises: bool = False) -> None:
        self._answer, self._raises = answer, raises
        self._lock = threading.Lock()
        self.asked: Counter[int] = Counter()

    def read_many(self, indices: Any) -> list[Any]:
        found = []
        for index in map(int, indices):
            with self._lock:
                self.asked[index] += 1
                times = self.asked[index]
            found.append(self._answer(index, times))
            if self._raises and isinstance(found[-1], BaseException):
                raise found[-1]
        return found

    def name(self, index: int) -> str:
        return f"moody:{index}"


def blob(index: int) -> bytes:
    return b"%d" % index


def reader(source: Moody, *, watched: bool = True) -> Any:
    return Reader(source, Gate() if watched else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("watched", [False, True], ids=["inline", "in a worker"])
@pytest.mark.parametrize("raises", [False, True], ids=["answered", "raised"])
def test_what_is_refused_is_asked_for_again(watched: bool, raises: bool) -> None:
    def twice(index: int, times: int) -> Any:
        return hr.NotNow("busy", retry_after=0.01) if index % 4 == 0 and times < 3 else blob(index)

    source = Moody(twice, raises=raises)
    made = reader(source, watched=watched)
    for start in range(0, 48, 16):
        blobs, _ = made.read(np.arange(start, start + 16))
        assert blobs == [blob(index) for index in range(start, start + 16)]
    assert all(source.asked[index] == 3 for index in range(0, 48, 4))
    if not raises:
        assert all(source.asked[index] == 1 for index in range(1, 48, 4)), (
            "what was given is not asked for again"
        )


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (FileNotFoundError(errno.ENOENT, "no such file"), 1),
        (PermissionError(errno.EACCES, "not yours"), 1),
        (ValueError("no picture"), 1),
        (ConnectionError("of no kind that is known"), 1),
        (OSError(errno.EIO, "a broken sector, or a lost server"), 4),
    ],
    ids=["no path", "no right", "no sample", "no kind", "doubtful"],
)
def test_what_is_the_sample_s_own_fault_is_no_question_of_time(error: Exception, asked: int) -> None:
    source = Moody(lambda index, times: error if index == 3 else blob(index))
    blobs, _ = reader(source).read(np.arange(8))
    assert blobs[3] is error and blobs[:3] + blobs[4:] == [blob(at) for at in range(8) if at != 3]
    assert source.asked == {**dict.fromkeys(range(8), 1), 3: asked}


@pytest.mark.parametrize(
    "number", [errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EAGAIN, errno.ENOTCONN, errno.EINTR]
)
def test_a_server_that_comes_back_gives_its_files(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert not_now(error) and not doubtful(error)
    source = Moody(lambda index, times: error if times == 1 else blob(index))
    assert reader(source).read(np.arange(4))[0] == [blob(index) for index in range(4)]


def test_paths_that_lead_nowhere_are_errors_at_once(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"good")
    paths = [tmp_path / "none", tmp_path / "good", tmp_path / "good" / "below", tmp_path]
    for error in hr.files(paths).read_many([0, 2, 3]):
        assert isinstance(error, OSError) and not not_now(error) and not doubtful(error)


def test_an_error_that_comes_once_costs_nothing() -> None:
    source = Moody(lambda index, times: OSError(errno.EIO, "once") if times == 1 else blob(index))
    assert reader(source).read(np.arange(4))[0] == [blob(index) for index in range(4)]


@pytest.mark.parametrize("watched", [False, True], ids=["inline", "in a worker"])
def test_what_never_comes_is_named(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "0.3")
    source = Moody(lambda index, times: hr.NotNow("status 503") if index == 5 else blob(index))
    with pytest.raises(StorageUnavailable, match=r"sample 5 \(moody:5\) for 0 s: NotNow: status 503"):
        reader(source, watched=watched).read(np.arange(8))
    assert source.asked[5] > 1


def test_what_need_not_come_is_not_waited_for() -> None:
    source = Moody(lambda index, times: hr.NotNow(retry_after=3600) if index == 2 else blob(index))
    blobs, _ = reader(source).read(np.arange(4), patient=False)
    assert isinstance(blobs[2], hr.NotNow) and source.asked[2] == 1


def test_whoever_waits_for_storage_can_be_stopped() -> None:
    """In the middle of a pause, and in the middle of a read: else this would not end."""
    gate, hold = Gate(), threading.Event()
    refused = Moody(lambda index, times: hr.NotNow(retry_after=3600))
    silent = Moody(lambda index, times: hold.wait() and blob(index))
    ended: list[type] = []

    def read(source: Moody) -> None:
        try:
            Reader(source, gate).read(np.arange(4))  # type: ignore[arg-type]
        except Closed as error:
            ended.append(type(error))

    threads = [started(read, source) for source in (refused, silent)]
    until(lambda: len(refused.asked) == 4 and silent.asked)
    gate.stop()
    for thread in threads:
        thread.join()
    hold.set()
    assert ended == [Closed, Closed]


def test_a_read_that_hangs_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "20")
    hold = threading.Event()

    def once(index: int, times: int) -> bytes:
        if index == 1 and times == 1:
            hold.wait()
        return blob(index)

    source = Moody(once)
    blobs, _ = reader(source).read(np.arange(4))
    assert blobs == [blob(index) for index in range(4)] and source.asked[1] == 2
    hold.set()


# -- threads that read -----------------------------------------------------------------------------------------


def test_older_orders_are_read_first() -> None:
    threads, hold, done = ReadThreads(), threading.Event(), []
    threads._most = 1

    def job(name: str, wait: bool = False) -> Job:
        def read(made: Job) -> None:
            hold.wait() if wait else None
            done.append(name)
            threads.finish(made)

        return Job(read, [])

    assert threads.submit(5, job("first", wait=True))
    until(lambda: not threads._jobs)
    for turn, name in ((9, "new"), (7, "old"), (8, "between"), (7, "as old")):
        assert threads.submit(turn, job(name))
    hold.set()
    until(lambda: len(done) == 5)
    assert done == ["first", "old", "as old", "between", "new"]


def test_threads_that_hang_are_replaced_up_to_a_point() -> None:
    threads, hold = ReadThreads(), threading.Event()
    threads._most = 2
    jobs: list[Job] = []

    def hang() -> None:
        jobs.append(Job(lambda job: hold.wait() and threads.finish(job), []))  # type: ignore[arg-type,return-value]
        assert threads.submit(0, jobs[-1])

    hang()
    hang()
    hang()
    assert threads._running == 2
    for number in range(2 * WIDEST):
        assert threads.lose(jobs[number]) is (number < WIDEST)
        assert not threads.lose(jobs[number]), "it is lost only once"
        hang()
        assert threads._running == min(3 + number, 2 + WIDEST)
    hold.set()
    until(lambda: threads._lost == 0 and not threads._jobs)
    until(lambda: threads._running <= 2)


def test_threads_end_with_their_reader() -> None:
    source = Moody(lambda index, times: hr.NotNow() if times == 1 else blob(index))
    made = reader(source, watched=False)
    made.read(np.arange(8))
    threads = made.threads
    assert threads._running
    gone = weakref.ref(made)
    del made
    until(lambda: gone() is None and not threads._running)


# -- the turn to claim -----------------------------------------------------------------------------------------


def test_one_order_at_a_time_where_nobody_waits_for_storage() -> None:
    gate, asked = Gate(), []
    gate.on_room = lambda: asked.append(1)
    for _ in range(3):
        assert gate.enter()
        with gate.order():
            gate.leave()
        assert not asked


def test_another_thread_is_asked_for_when_all_wait_for_storage_and_once() -> None:
    gate, asked = Gate(), []
    gate.on_room = lambda: asked.append(1)
    assert gate.enter()
    with gate.order():
        gate.leave()
        gate.reads(2, 4)
        for _ in range(3):
            with gate.waits(lambda: None):
                assert len(asked) == 1
        with gate.waits(lambda: None):
            assert gate.enter(), "it has come"
            with gate.order():
                gate.leave()
                gate.reads(2)
                with gate.waits(lambda: None):
                    assert len(asked) == 1, "four reads are enough"
                    gate.reads(-1)
                    assert len(asked) == 2, "and three are not"


def test_who_starves_gets_no_more_orders_than_there_may_be() -> None:
    gate, asked = Gate(), []
    gate.on_room = lambda: asked.append(1)
    orders = []
    while len(orders) < ORDERS:
        assert gate.enter()
        orders.append(gate.order())
        orders[-1].__enter__()
        gate.leave()
        before = len(asked)
        gate.starving()
        assert len(asked) == before, "not before a while has passed"
        gate._claimed -= 1.0
        gate.starving()
        assert len(asked) == before + (len(orders) < ORDERS)
    gate.stop()
    assert not gate.enter()
