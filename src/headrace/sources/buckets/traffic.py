"""All requests of this process to one bucket: how many at once, and threads that make several for one call."""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from headrace.core.errors import NotNow
from headrace.core.memory import thread_room
from headrace.planning.congestion import Congestion
from headrace.planning.window import WIDEST

Out = TypeVar("Out")
_LINGER = 10.0
"""Seconds for which a thread waits for something to do."""
_EXIT = 2.0
"""Seconds for which requests under way are waited for when the program ends."""


class Traffic:
    """The requests to one bucket. ``Congestion`` decides how many there are; whoever wants one more waits here.

    The engine asks for as many as keep up with preparing, and this is what it gets: its threads wait for their turn
    like any others.
    """

    def __init__(self, most: int = WIDEST) -> None:
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._congestion = Congestion(most)
        self._luck = random.Random().random  # (the user's own random numbers stay as they are)
        self._under_way = self._waiting = 0
        self._not_before = 0.0
        self.refusals = self.requests = 0
        _all.add(self)

    @property
    def limit(self) -> int:
        """Requests that may be under way now."""
        return self._congestion.limit

    @property
    def usual(self) -> float:
        """Seconds that an answer takes."""
        return self._congestion.usual

    def spare(self) -> int:
        """Requests that could be begun at once."""
        return max(0, self._congestion.limit - self._under_way - self._waiting)

    def request(self, make: Callable[[], Out]) -> Out:
        """Make one request when its turn has come. ``NotNow`` from it is a refusal, all else an answer."""
        begun = self._enter()
        refused = True
        try:
            out = make()
            refused = isinstance(out, NotNow)
            return out
        except NotNow:
            raise
        except Exception:
            refused = False
            raise
        finally:
            self._leave(begun, refused)

    def _enter(self) -> float:
        with self._lock:
            while True:
                now = time.monotonic()
                wait = self._not_before - now
                if _ending:
                    raise NotNow("the program ends")
                full = self._under_way >= self._congestion.limit
                if not full and wait <= 0:
                    break
                self._waiting += 1
                try:
                    self._room.wait(None if full else wait)
                finally:
                    self._waiting -= 1
            self._under_way += 1
            self.requests += 1
            return now

    def _leave(self, begun: float, refused: bool) -> None:
        with self._lock:
            now = time.monotonic()
            if refused:
                self.refusals += 1
                self._congestion.refused(now, begun, self._luck())
                self._not_before = now + self._congestion.pause(self._luck())
            else:
                self._congestion.answered(now, now - begun, self._under_way)
                self._not_before = 0.0
            self._under_way -= 1
            if self._waiting:
                self._room.notify(max(1, self._congestion.limit - self._under_way))

    def end(self, until: float) -> None:
        """Wait for what is under way; nothing new is begun."""
        with self._lock:
            self._room.notify_all()
        while self._under_way and time.monotonic() < until:
            time.sleep(0.01)


class _Hands:
    """Threads that make requests, started when they are needed. Daemons: none of them keeps a process alive."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = self._idle = 0

    def submit(self, job: Callable[[], None]) -> bool:
        """Have a job done; False: no thread is free, and none can be started."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._running < WIDEST and thread_room(1):
                try:
                    threading.Thread(target=self._run, name="headrace-bucket", daemon=True).start()
                except RuntimeError:
                    return False
                self._running += 1
            else:
                return False
        self._jobs.put(job)
        return True

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_LINGER)
            except queue.Empty:
                with self._lock:
                    if self._idle:  # else a job is on its way to this thread
                        self._idle -= 1
                        self._running -= 1
                        return
                continue
            job()
            del job
            with self._lock:
                self._idle += 1


def each(count: int, spare: int, do: Callable[[int], None]) -> None:
    """Call ``do`` with 0 to ``count - 1``, in this thread and in so many others beside it. It must not raise."""
    helpers = min(count - 1, spare)
    numbers = itertools.count()
    left, over = helpers, threading.Event()
    lock = threading.Lock()

    def work() -> None:
        while (number := next(numbers)) < count:
            do(number)

    def help_out() -> None:
        nonlocal left
        try:
            work()
        finally:
            with lock:
                left -= 1
                if not left:
                    over.set()

    for _ in range(helpers):
        if not _hands.submit(help_out):
            with lock:
                left -= 1
                if not left:
                    over.set()
    work()
    if helpers:
        over.wait()


def watch(thread: threading.Thread) -> None:
    """A thread that is in the library is waited for when the program ends."""
    _watched.add(thread)


_hands = _Hands()
_watched: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_all: weakref.WeakSet[Traffic] = weakref.WeakSet()
_ending = False


def _in_child() -> None:
    """Threads and what they hold stay with the parent."""
    global _hands, _all, _watched
    _hands, _all, _watched = _Hands(), weakref.WeakSet(), weakref.WeakSet()


def _at_exit() -> None:
    # No thread should come back from the library to an interpreter that is being taken apart.
    global _ending
    _ending = True
    until = time.monotonic() + _EXIT
    for traffic in list(_all):
        traffic.end(until)
    for thread in list(_watched):
        if thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
