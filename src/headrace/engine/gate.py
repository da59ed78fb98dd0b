"""Which of a worker's fetching threads claims the next order, and when: what they are busy with is counted here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.planning import window
from headrace.planning.window import Claims, may_claim


class OwnRead(NamedTuple):
    """A read by the thread that claimed the order, which nobody else can end."""

    begun: float
    name: Callable[[], str]


class Gate:
    """Lets one thread at a time claim orders, as long as ``may_claim`` has it. Used by all threads of a worker."""

    def __init__(
        self,
        most: Callable[[], int] | None = None,
        exactly: int = 0,
        backlog: Callable[[], int] | None = None,
        crowded: Callable[[], bool] | None = None,
    ) -> None:
        """``most``: says how many reads this worker may have under way; 0: as many as are of use. ``exactly``: so
        many it has in any case, if not 0. ``backlog``: orders that are there for this worker to claim. ``crowded``:
        says whether requests wait for their turn at storage; when that is over, ``room`` is called."""
        self._most, self._exactly, self._backlog, self._crowded = most, exactly, backlog, crowded
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._orders = self._working = self._handing = self._reading = 0
        self._width = self._each = 1
        self._claiming = False
        self._waiting = 0
        """Threads that wait for their turn."""
        self._granted = False
        """Another order is to be claimed whatever is under way: somebody starves."""
        self._called = False
        """Another thread was asked for, and is not here yet."""
        self._claimed = time.monotonic()
        self._own: dict[int, OwnRead] = {}
        self._wakers: set[Callable[[], None]] = set()
        self.stopped = False
        self.on_room: Callable[[], None] | None = None
        """Called when an order could be claimed and no thread waits for its turn to do it."""

    # -- claiming ---------------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Wait for the turn to claim an order; False: no more are to be claimed."""
        with self._lock:
            self._waiting += 1
            self._called = False
            while not self.stopped and not self._open():
                self._turn.wait()
            self._waiting -= 1
            self._claiming = not self.stopped
            return self._claiming

    def leave(self) -> None:
        """An order is claimed, or none will be: the next one may."""
        with self._lock:
            self._pass_turn()

    def _pass_turn(self) -> None:
        self._claiming = self._granted = False
        self._claimed = time.monotonic()
        if self._waiting and self._open():
            self._turn.notify()

    def _open(self, starved: float = 0.0) -> bool:
        if self._claiming:
            return False
        return self._granted or may_claim(
            Claims(
                self._orders,
                self._working,
                self._handing,
                self._reading,
                self._width,
                self._each,
                starved,
                self._crowded is not None and self._crowded(),
            )
        )

    def _look(self, *, starving: bool = False) -> None:
        """Something has changed: have another order claimed if one may be."""
        call = None
        with self._turn:
            if not self._open(time.monotonic() - self._claimed if starving else 0.0) or self.stopped:
                return
            self._granted |= starving
            if self._waiting:
                self._turn.notify()
            elif not self._called:
                self._called, call = True, self.on_room
        if call is not None:
            call()

    def room(self) -> None:
        """Requests no longer wait for their turn."""
        self._look()

    def starving(self) -> None:
        """Somebody has waited for bytes for a while."""
        self._look(starving=True)

    # -- what threads are busy with ---------------------------------------------------------------------------

    def begin(self) -> None:
        """An order is fetched, and handed on, until ``end``."""
        with self._lock:
            self._orders += 1
            self._working += 1

    def begin_and_leave(self) -> None:
        """``begin`` and ``leave`` at once, as with most orders."""
        with self._lock:
            self._orders += 1
            self._working += 1
            self._pass_turn()

    def end(self, *, enters: bool = False) -> None:
        """What ``begin`` has begun is over. ``enters``: this thread is the next to look for its turn."""
        with self._lock:
            self._orders -= 1
            self._working -= 1
            if self._waiting and not enters and self._open():
                self._turn.notify()

    @contextmanager
    def order(self) -> Iterator[None]:
        """From ``begin`` to ``end``."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def handing(self) -> Iterator[None]:
        """An order that is fetched waits for room."""
        with self._lock:
            self._handing += 1
        self._look()
        try:
            yield
        finally:
            with self._lock:
                self._handing -= 1

    @contextmanager
    def waits(self, wake: Callable[[], None]) -> Iterator[None]:
        """A thread waits for others to read. ``wake`` ends that when all is to be stopped."""
        with self._lock:
            self._working -= 1
            self._wakers.add(wake)
        self._look()
        try:
            yield
        finally:
            with self._lock:
                self._working += 1
                self._wakers.discard(wake)

    def reads(self, more: int, width: int | None = None) -> None:
        """So many reads are begun, or if negative, over. ``width``: how many are wanted at once."""
        with self._lock:
            self._reading += more
            if width is not None:
                self._width = width
        if more < 0:
            self._look()

    @contextmanager
    def reads_itself(self, name: Callable[[], str]) -> Iterator[None]:
        """This thread reads what ``name`` calls by its name."""
        me = threading.get_ident()
        self._own[me] = OwnRead(time.monotonic(), name)
        try:
            yield
        finally:
            del self._own[me]

    def oldest_own(self) -> OwnRead | None:
        """The read that a fetching thread has been in for longest."""
        return min(list(self._own.values()), key=lambda own: own.begun, default=None)

    def allowed(self) -> int:
        """Reads that this worker may have under way; 0: as many as are of use."""
        return self._exactly or (0 if self._most is None else self._most())

    def narrowed(self, width: int) -> int:
        """Reads at once, of so many that would be of use."""
        return self._exactly or min(width, self.allowed() or window.UNTOLD)

    def parts(self, width: int) -> int:
        """In how many reads at once an order is read, of so many that are wanted in all."""
        self._each = window.parts(width, 0 if self._backlog is None else self._backlog())
        return self._each

    def stop(self) -> None:
        """No more orders are claimed, and whoever waits for storage stops waiting."""
        with self._turn:
            self.stopped = True
            self._turn.notify_all()
            wakers = list(self._wakers)
        for wake in wakers:
            wake()
