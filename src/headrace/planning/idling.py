"""What a worker goes by between orders: how many it fetches ahead, and when it says that it has nothing to do."""

from __future__ import annotations

IDLE, LONGEST = 0.03, 0.12
"""Seconds without an order after which a worker says so; and where nobody had anything for it the times before, at
most."""
SOON = 0.002
"""The same for a worker that has something of its own to do then, and asks nobody."""


def fetched_ahead(threads: int) -> int:
    """Orders that a worker may have fetched before one of its preparing threads takes them."""
    return max(1, threads)


class IdlePause:
    """For how long a worker waits for an order before it asks others for something to do."""

    def __init__(self, first: float = IDLE) -> None:
        self.seconds = self._first = first

    def asked(self) -> None:
        """It has asked: the next time it waits for longer."""
        self.seconds = min(LONGEST, 2 * self.seconds)

    def given(self) -> None:
        """There was something, and there may be more."""
        self.seconds = self._first
