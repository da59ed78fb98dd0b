"""Who receives when several could: a few at a time, and what was asked for first goes first.

Where many send to one at once and all share its cable, everything arrives at the end. One after the other, the first
is there early, and the last no later. Those whose turn it is not are held up by their own connections: little of what
they send is taken in.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """Threads that wait for their turn."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._changed = threading.Condition()
        self._waiting: list[int] = []
        """Numbers of those who wait, the lowest first."""

    @contextlib.contextmanager
    def take(self, number: int) -> Iterator[None]:
        """Wait for a turn, and have it for as long as this lasts. The lowest number is next."""
        with self._changed:
            bisect.insort(self._waiting, number)
            self._changed.wait_for(lambda: self._free > 0 and self._waiting[0] == number)
            self._waiting.remove(number)
            self._free -= 1
            if self._free:
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
