"""Requests that wait for their turn: never more at once than may be, the oldest call's first."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.core.errors import NotNow
from headrace.sources.buckets import traffic
from headrace.sources.buckets.traffic import Traffic


class Watched:
    """Requests that end when they are told to."""

    def __init__(self, most: int) -> None:
        self.traffic = Traffic(most)
        self.changed = threading.Condition()
        self.begun: list[Any] = []
        self.may_end: set[Any] = set()

    def ask(self, name: Any, turn: Any) -> threading.Thread:
        thread = threading.Thread(target=self.traffic.request, args=(turn, lambda: self._make(name)))
        thread.start()
        return thread

    def _make(self, name: Any) -> None:
        with self.changed:
            self.begun.append(name)
            self.changed.notify_all()
            self.changed.wait_for(lambda: name in self.may_end)

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, 30)

    def end(self, *names: Any) -> None:
        with self.changed:
            self.may_end |= set(names)
            self.changed.notify_all()


def waiting(watched: Watched, count: int) -> None:
    while len(watched.traffic._queue) < count:
        threading.Event().wait(0.001)


def test_the_oldest_call_goes_first_and_one_that_was_refused_before_all() -> None:
    watched = Watched(1)
    older, newer = watched.traffic.call(8), watched.traffic.call(8)
    threads = [watched.ask("first", watched.traffic.call(8))]
    watched.wait_for(1)
    for at, (name, turn) in enumerate(
        [("newer", newer), ("older", older), ("alone", watched.traffic.call(1))]
    ):
        threads.append(watched.ask(name, turn))
        waiting(watched, at + 1)
    for name in ("first", "alone", "older", "newer"):
        watched.end(name)
        watched.wait_for(min(4, len(watched.may_end) + 1))
    for thread in threads:
        thread.join()
    assert watched.begun == ["first", "alone", "older", "newer"]


def test_there_are_never_more_than_may_be() -> None:
    made = Traffic(3)
    lock, now, most = threading.Lock(), 0, 0

    def one(number: int, turn: Any) -> None:
        def make() -> None:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            threading.Event().wait(0.001)
            with lock:
                now -= 1
            if number % 7 == 0:
                raise NotNow

        try:
            made.request(turn, make)
        except NotNow:
            done.append(-number)
        else:
            done.append(number)

    done: list[int] = []
    made.each(60, one)
    assert sorted(map(abs, done)) == list(range(60)) and most <= 3
    assert made._under_way == 0 and not made._queue


def test_who_is_interrupted_leaves_no_place_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(1)
    thread = watched.ask("first", watched.traffic.call(1))
    watched.wait_for(1)

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(traffic._Waiting, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            watched.traffic.request(watched.traffic.call(1), lambda: None)
    watched.end("first")
    thread.join()
    assert watched.traffic.request(watched.traffic.call(1), lambda: 5) == 5
    assert watched.traffic._under_way == 0 and not watched.traffic._queue


def test_what_is_asked_first_is_there_first_however_busy_it_was_then() -> None:
    """A call that came while all places were taken had few threads for as long as it lasted, and later ones many."""
    made, order = Traffic(8), []
    held, started = threading.Event(), threading.Semaphore(0)

    def hold(number: int, turn: Any) -> None:
        made.request(turn, lambda: (started.release(), held.wait(30)))

    def one(name: str) -> Any:
        def do(number: int, turn: Any) -> None:
            made.request(turn, lambda: threading.Event().wait(0.002))
            order.append(name)

        return do

    first = threading.Thread(target=made.each, args=(8, hold))
    first.start()
    for _ in range(8):
        assert started.acquire(timeout=30)
    calls = []
    for name in ("older", "newer"):
        calls.append(threading.Thread(target=made.each, args=(40, one(name))))
        calls[-1].start()
        while not any(waiting.turn[1] == len(calls) for waiting in made._queue):
            threading.Event().wait(0.001)
    held.set()
    for thread in (first, *calls):
        thread.join(30)
    assert order.count("older") == order.count("newer") == 40
    assert order[:40].count("newer") <= 10, "hardly one before all of the older call's"
    assert not made._open and not made._queue and not made._under_way
    deadline = threading.Event()
    for _ in range(1000):
        if not made._helpers:
            break
        deadline.wait(0.01)
    assert not made._helpers
