"""How much this process has asked of other nodes at a time: answers that come all at once would fill the queue before
it, and what does not fit there is lost and sent again much later."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from headrace.core import environment
from headrace.planning.pacing import Pace

_FIRST, _LEAST, _MOST = 1 << 20, 128 << 10, 64 << 20
"""Bytes that may be on their way: at first, at least, and at most."""


@dataclass(eq=False)
class Asked:
    """A request that is under way."""

    nbytes: int
    """Bytes that are expected."""
    since: float
    flight: int
    """Bytes that were under way with it, and how many requests."""
    requests: int


class Window:
    """What is under way to one process. Threads share it."""

    def __init__(self) -> None:
        paced = environment.paced()
        self._pace = Pace(_LEAST if paced else _MOST, _MOST, _FIRST)
        self._changed = threading.Condition()
        self._flight = self._requests = 0

    def ask(self, nbytes: int, *, wait: bool) -> Asked | None:
        """Whether so many bytes may be asked for: the request; None: not now. ``wait``: until they may."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._pace.may_go(nbytes, self._flight))
            elif not self._pace.may_go(nbytes, self._flight):
                return None
            self._flight += nbytes
            self._requests += 1
            return Asked(nbytes, time.monotonic(), self._flight, self._requests)

    def answered(self, asked: Asked, nbytes: int = 0) -> None:
        """A request is over. ``nbytes``: what came, all of it from memory; 0: it tells nothing of the network."""
        with self._changed:
            self._flight -= asked.nbytes
            self._requests -= 1
            if nbytes:
                self._pace.arrived(nbytes, time.monotonic() - asked.since, asked.flight, asked.requests)
            self._changed.notify_all()
