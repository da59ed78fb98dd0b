"""Preparing threads of a worker, where not all of them may be started."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.coordinate.messages import Threads
from headrace.engine import pipeline
from headrace.engine.pipeline import RowPipeline


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
