"""Threads of a worker: where not all of them may be started, and where one does not come back."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.coordinate.messages import Failed, OrderDone, Stop, Threads
from headrace.core.errors import StorageUnavailable
from headrace.engine import pipeline
from headrace.engine.gate import Gate
from headrace.engine.pipeline import RowPipeline
from headrace.engine.queues import Closed
from headrace.engine.worker import rebuild
from headrace.planning import Spent
from headrace.planning.window import ORDERS


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline whose threads only say that they were started."""
    nothing: Any = None
    one: Any = RowPipeline(nothing, nothing, nothing, threads=1, measure=False)
    one.started = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: one.started.append(thread))
    return one


def test_as_many_threads_as_are_wanted(made: Any) -> None:
    made.on_command(Threads(4))
    assert len(made.started) == 3, "and the main thread"


def test_no_more_threads_than_there_are_addresses_for(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "thread_room", lambda most: min(most, 2 - len(made.started)))
    made.on_command(Threads(4))
    assert len(made.started) == 2
    monkeypatch.undo()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: made.started.append(thread))
    made.on_command(Threads(4))
    assert len(made.started) == 3, "once there are"


def test_a_thread_that_may_not_be_started_is_done_without(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    made.on_command(Threads(4))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: made.started.append(thread))
    made.on_command(Threads(2))
    assert len(made.started) == 1, "none was counted that is not there"


def test_no_more_threads_fetch_than_orders_may_be_fetched(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2 * ORDERS):
        made._fetch_more()
    assert len(made.started) == ORDERS
    made.started.clear()
    made._fetchers = 1

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    made._fetch_more()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: made.started.append(thread))
    made._fetch_more()
    assert not made.started, "it is not tried with every order"


def test_a_read_of_its_own_that_never_ends_is_noticed() -> None:
    """By those who wait for it: the thread that reads cannot."""
    sent: list[Any] = []
    gate, nothing = Gate(), None
    link: Any = SimpleNamespace(send=sent.append, worker=3)
    stages: Any = SimpleNamespace(patience=0.05)
    one = RowPipeline(link, stages, nothing, threads=1, measure=False, gate=gate)  # type: ignore[arg-type]
    one._most_fetchers = 0
    one._look()
    assert not sent
    with gate.reads_itself(lambda: "sample 7 (a file)"):
        while not sent:
            one._look()
        one._look()
    (failed,) = sent
    assert isinstance(failed, Failed), "it is told once"
    error = rebuild(failed.error)
    assert isinstance(error, StorageUnavailable)
    assert "storage did not give sample 7 (a file) for 0 s: it does not answer" in str(error)


def test_a_stop_ends_what_waits(made: Any) -> None:
    made.on_command(Stop())
    assert not made._gate.enter()
    with pytest.raises(Closed):
        made._queue.get()


def test_a_thread_that_is_not_needed_for_now_keeps_no_permit():
    """With one that it kept, processors would stand idle for as long."""
    said = []

    class Seat:
        shares_turns = True

        def may_prepare(self, number):
            return len(said) >= 2

    class Turn:
        def rest(self):
            said.append("rests")

    pipeline = RowPipeline(None, None, lambda: None, 2, measure=False, seat=Seat())
    assert not pipeline._leaves(0, Turn()) and not said, "the main thread always prepares"
    pipeline._numbers.add(1)
    assert not pipeline._leaves(1, Turn()) and said == ["rests", "rests"]
    pipeline._wanted = 1
    assert pipeline._leaves(1, Turn()) and pipeline._numbers == {0}


def test_who_had_enough_goes_on_as_soon_as_an_order_is_done() -> None:
    """Orders may take a thousandth of a second: whoever slept until the next look would be idle most of the time."""
    one = RowPipeline(None, None, lambda: None, 1, measure=False)  # type: ignore[arg-type,return-value]
    assert not one._has_enough(0.0)
    one._under_way = 2
    assert one._has_enough(0.0) and one._has_enough(0.01), "as long as none is done"
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(one._has_enough(600.0)))
    waiting.start()
    one._finish_one()
    waiting.join(60)
    assert found == [False]


def test_what_is_filled_in_for_others_says_nothing_of_how_long_orders_take() -> None:
    """Nobody claims it, so nobody knows when it was begun."""

    class Few:
        def __init__(self) -> None:
            self.seen: list[tuple[float, float, float]] = []

        def saw(self, *seconds: float) -> None:
            self.seen.append(seconds)  # type: ignore[arg-type]

    def fetched(fill: bool) -> Any:
        order = SimpleNamespace(fill=fill, sequence=0, indices=bytes(8 * 4))
        claim = None if fill else "a claim"
        begun = 0.0 if fill else time.monotonic() - 2.0
        return SimpleNamespace(order=order, claim=claim, took=0.5, begun=begun, spent=Spent())

    told: list[float] = []
    link: Any = SimpleNamespace(send=lambda done: None, board=SimpleNamespace(made=told.append))
    spent = Spent(cpu=0.5, fetch_cpu=0.3)
    stages: Any = SimpleNamespace(prepare=lambda fetched, program, measured: OrderDone(1, [], spent=spent))
    one = RowPipeline(link, stages, lambda: None, 1, measure=False)  # type: ignore[arg-type, return-value]
    few: Any = Few()
    one._few, one._under_way = few, 2
    one._queue.resize(2)
    assert one._queue.offer(fetched(fill=True)) and one._queue.offer(fetched(fill=False))
    one._queue.close()
    one._prepare(0)
    ((fetching, _, whole),) = few.seen
    assert fetching == 0.5 and 2.0 <= whole < 60.0
    assert told == [0.2], "of a processor, for each of four rows"
