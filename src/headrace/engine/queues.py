"""A bounded queue that measures how long putting and getting block: waiting is the signal."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK, _LOOK_LATER = 0.1, 1.0
"""Seconds after which one who waits looks around, at first and later."""


class Closed(Exception):
    """The queue was closed; nothing more comes or goes."""


class TimedQueue(Generic[T]):
    """First in, first out, at most ``limit`` items. ``waited_put`` and ``waited_get`` are seconds spent blocked."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self.waited_put = 0.0
        self.waited_get = 0.0

    def resize(self, limit: int) -> None:
        """Hold more or fewer items from now on."""
        with self._changed:
            self.limit = limit
            self._changed.notify_all()

    def offer(self, item: T) -> bool:
        """Append an item if there is room now; whether there was."""
        with self._lock:
            if self._closed:
                raise Closed
            if len(self._items) >= self.limit:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def peek(self) -> T | None:
        """The oldest item, if there is one; it stays."""
        with self._lock:
            return self._items[0] if self._items else None

    def put(self, item: T) -> float:
        """Append an item, waiting for room; returns the seconds waited."""
        waited = 0.0
        with self._changed:
            if len(self._items) >= self.limit and not self._closed:
                begun = time.perf_counter()
                while len(self._items) >= self.limit and not self._closed:
                    self._changed.wait()
                waited = time.perf_counter() - begun
                self.waited_put += waited
            if self._closed:
                raise Closed
            self._items.append(item)
            self._changed.notify_all()
        return waited

    def get(
        self, look: Callable[[], None] | None = None, rest: Callable[[], None] | None = None
    ) -> tuple[T, float]:
        """The oldest item and the seconds waited for it. ``rest`` is called if it has to be waited for, and ``look``
        now and then while there is none."""
        waited = 0.0
        with self._lock:
            if not self._items and not self._closed:
                begun = time.perf_counter()
                if rest is not None:
                    self._lock.release()
                    try:
                        rest()
                    finally:
                        self._lock.acquire()
                pause = _LOOK
                while not self._items and not self._closed:
                    if not self._changed.wait(None if look is None else pause) and look is not None:
                        pause = min(2 * pause, _LOOK_LATER)
                        self._lock.release()
                        try:
                            look()
                        finally:
                            self._lock.acquire()
                waited = time.perf_counter() - begun
                self.waited_get += waited
            if not self._items:
                raise Closed
            item = self._items.popleft()
            self._changed.notify_all()
        return item, waited

    def close(self) -> None:
        """Wake everybody up; ``put`` fails from now on, ``get`` once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
