"""All requests of this process to one bucket: how many at once, and threads that make several for one call."""

from __future__ import annotations

import atexit
import heapq
import itertools
import os
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headrace.core.errors import NotNow
from headrace.core.memory import thread_room
from headrace.planning.congestion import Congestion, crowded
from headrace.planning.window import WIDEST
from headrace.sources.crowding import Crowd, tell

Out = TypeVar("Out")
_LINGER = 10.0
"""Seconds for which a thread waits for something to do."""
_LONG = 1.0
"""Seconds after which who waits looks for itself, in any case."""
_EXIT = 2.0
"""Seconds for which requests under way are waited for when the program ends."""


Turn = tuple[bool, int]
"""Who goes first: lower ones do."""


class _Waiting:
    """A request that waits for its turn."""

    __slots__ = ("_closed", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._closed = threading.Lock()
        self._closed.acquire()

    def __lt__(self, other: _Waiting) -> bool:
        return self.turn < other.turn

    def go(self) -> None:
        """It is its turn."""
        self._closed.release()

    def wait(self, pause: float) -> bool:
        """Whether its turn has come; False: nothing is let in for a while, and that is over."""
        return self._closed.acquire(timeout=pause if pause > 0 else _LONG)


class _Call:
    """Several requests that somebody waits for."""

    __slots__ = ("begun", "count", "do", "error", "left", "over", "turn")

    def __init__(self, turn: Turn, count: int, do: Callable[[int, Turn], None]) -> None:
        self.turn, self.count, self.do = turn, count, do
        self.begun, self.left = 0, count
        self.over = threading.Event()
        self.error: BaseException | None = None


class Traffic:
    """The requests to one bucket. ``Congestion`` decides how many there are; whoever wants one more waits here.

    The engine asks for as many as keep up with preparing, and this is what it gets: its threads wait for their turn
    like any others. Those of the call that came first go first: so orders are done one after the other, and not all
    at the same time, late. A call for one object alone is before all others, as somebody waits for what was refused.

    Threads that make requests for calls of several belong to none of them: each takes the next one of the oldest call
    that has any left. There are as many as there may be requests.
    """

    def __init__(self, most: int = WIDEST) -> None:
        self._lock = threading.Lock()
        self._congestion = Congestion(most)
        self._luck = random.Random().random  # (the user's own random numbers stay as they are)
        self._under_way = 0
        self._queue: list[_Waiting] = []
        self._calls = itertools.count()
        self._open: list[_Call] = []
        """Calls with requests that nobody has begun, the oldest first."""
        self._not_begun = 0
        """Requests of these calls that nobody has begun."""
        self._helpers = 0
        self._not_before = 0.0
        self._crowd = Crowd()
        _all.add(self)

    @property
    def limit(self) -> int:
        """Requests that may be under way now."""
        return self._congestion.limit

    @property
    def usual(self) -> float:
        """Seconds that an answer takes."""
        return self._congestion.usual

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The lock, and word to others of whether requests wait, as it may have changed."""
        with self._lock:
            yield
            room = self._crowd.is_now(crowded(len(self._queue) + self._not_begun, self._congestion.limit))
        if room:
            tell()

    def call(self, count: int) -> Turn:
        """The turn of a call that makes so many requests."""
        return (count > 1, next(self._calls))

    def request(self, turn: Turn, make: Callable[[], Out]) -> Out:
        """Make one request when its turn has come. ``NotNow`` from it is a refusal, all else an answer."""
        begun = self._enter(turn)
        refused = True
        try:
            out = make()
            refused = False
            return out
        except Exception as error:
            refused = isinstance(error, NotNow)
            raise
        finally:
            self._leave(begun, refused)

    def _enter(self, turn: Turn) -> float:
        if _ending:
            raise NotNow("the program ends")
        with self._held():
            now = time.monotonic()
            if not self._queue and self._room(now):
                self._under_way += 1
                return now
            mine = _Waiting(turn)
            heapq.heappush(self._queue, mine)
        try:
            while not mine.wait(self._not_before - time.monotonic()):
                with self._held():
                    self._admit(time.monotonic())
        except BaseException:  # (Ctrl-C)
            self._withdraw(mine)
            raise
        return time.monotonic()

    def _withdraw(self, mine: _Waiting) -> None:
        with self._held():
            if mine in self._queue:
                self._queue.remove(mine)
                heapq.heapify(self._queue)
            else:
                self._under_way -= 1
                self._admit(time.monotonic())

    def _room(self, now: float) -> bool:
        return self._under_way < self._congestion.limit and now >= self._not_before

    def _admit(self, now: float) -> None:
        """Let in who waits, as many as may be."""
        while self._queue and self._room(now):
            self._under_way += 1
            heapq.heappop(self._queue).go()

    def _leave(self, begun: float, refused: bool) -> None:
        with self._held():
            now = time.monotonic()
            if refused:
                self._congestion.refused(now, begun, self._luck())
                self._not_before = now + self._congestion.pause(self._luck())
            else:
                self._congestion.answered(now, now - begun, self._under_way)
                self._not_before = 0.0
            self._under_way -= 1
            self._admit(now)

    def each(self, count: int, do: Callable[[int, Turn], None]) -> None:
        """Call ``do`` with 0 to ``count - 1``, in this thread and in others beside it, and with the turn that its
        requests have. What it raises is raised here, and nothing is begun after it."""
        with self._held():
            call = _Call(self.call(count), count, do)
            self._open.append(call)
            self._not_begun += count
        try:
            self._recruit()
            while call.error is None and (number := self._next(call)) >= 0:
                self._do(call, number)
            if call.error is None:
                call.over.wait()
            if call.error is not None:
                raise call.error
        except BaseException:  # (Ctrl-C)
            with self._held():
                self._close(call)
            raise

    def _next(self, call: _Call) -> int:
        """The next of a call that nobody has begun; -1: there is none."""
        with self._held():
            if call not in self._open:
                return -1
            return self._begin(call)

    def _begin(self, call: _Call) -> int:
        call.begun += 1
        self._not_begun -= 1
        if call.begun == call.count:
            self._close(call)
        return call.begun - 1

    def _close(self, call: _Call) -> None:
        if call in self._open:
            self._open.remove(call)
            self._not_begun -= call.count - call.begun

    def _do(self, call: _Call, number: int) -> None:
        try:
            call.do(number, call.turn)
        except BaseException as error:  # to be raised where it is waited for
            call.error = error
        with self._lock:
            call.left -= 1
            if not call.left or call.error is not None:
                call.over.set()

    def _recruit(self) -> None:
        """As many threads as there may be requests, if there is something to do for them."""
        with self._lock:
            more = max(0, min(self._congestion.limit, self._not_begun) - self._helpers)
            self._helpers += more
        while more and _hands.submit(self._help):
            more -= 1
        if more:
            with self._lock:
                self._helpers -= more

    def _help(self) -> None:
        while True:
            with self._held():
                if not self._open or self._helpers > self._congestion.limit:
                    self._helpers -= 1
                    return
                call = self._open[0]
                number = self._begin(call)
                few = self._helpers < self._congestion.limit
            if few:
                self._recruit()
            self._do(call, number)

    def end(self, until: float) -> None:
        """Wait for what is under way; nothing new is begun."""
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
