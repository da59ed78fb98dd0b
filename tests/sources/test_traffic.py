"""Requests that wait for their turn: never more at once than may be, the oldest call's first."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from headrace.core.errors import NotNow
from headrace.sources import crowding
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


class Told:
    def __init__(self) -> None:
        self.times = 0

    def room(self) -> None:
        assert not crowding.crowded()
        self.times += 1


def test_whoever_would_ask_for_more_is_told_when_none_wait() -> None:
    watched, told, other = Watched(2), Told(), Told()
    crowding.on_room(told)
    crowding.on_room(other)
    del other  # (who is gone is not told)
    assert not crowding.crowded()

    def do(number: int, turn: Any) -> None:
        watched.traffic.request(turn, lambda: watched._make(number))

    call = threading.Thread(target=watched.traffic.each, args=(40, do))
    call.start()
    watched.wait_for(2)
    watched.end(*range(20))
    watched.wait_for(22)
    assert crowding.crowded() and told.times == 0
    watched.end(*range(20, 40))
    call.join(30)
    assert not crowding.crowded() and told.times >= 1
    assert watched.traffic._not_begun == 0


def test_a_bucket_that_is_forgotten_leaves_no_crowd() -> None:
    made = Traffic(1)
    with made._held():
        made._not_begun = 5
    assert crowding.crowded()
    del made
    gc.collect()
    assert not crowding.crowded()


@pytest.mark.parametrize("where", ["here", "in a helper's thread"])
def test_what_a_request_raises_is_raised_where_it_is_waited_for(where: str) -> None:
    """It was taken for done: the sample was there, with nothing in it, and the thread was not counted any more."""
    made, here = Traffic(4), threading.get_ident()

    class Panic(BaseException):
        """As what the library's own code raises, where that fails."""

    def one(number: int, turn: Any) -> None:
        threading.Event().wait(0.001)
        if (threading.get_ident() == here) == (where == "here"):
            raise Panic

    with pytest.raises(Panic):
        made.each(100, one)
    assert not made._open and made._not_begun == 0
    made.each(100, lambda number, turn: None)
    for _ in range(1000):
        if not made._helpers:
            break
        threading.Event().wait(0.01)
    assert not made._helpers and not crowding.crowded()
