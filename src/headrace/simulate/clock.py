"""Virtual time: what happens when, one thing after the other."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[..., None]


class Clock:
    """Calls that are due at moments of virtual time. Those of one moment happen in the order they were made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stopped = False
        self._calls: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, moment: float, call: Call, *arguments: Any) -> None:
        """Call at a moment, which must not be past."""
        self._serial += 1
        heapq.heappush(self._calls, (moment, self._serial, call, arguments))

    def after(self, seconds: float, call: Call, *arguments: Any) -> None:
        """Call so many seconds from now."""
        self.at(self.now + seconds, call, *arguments)

    def stop(self) -> None:
        """End ``run`` after the present call."""
        self.stopped = True

    def run(self, look: Callable[[], None] | None = None, every: int = 2048) -> None:
        """Make all calls, until there are none or ``stop``. ``look`` is called between every so many of them."""
        calls, pop = self._calls, heapq.heappop
        while calls and not self.stopped:
            for _ in range(every):
                if not calls or self.stopped:
                    break
                self.now, _, call, arguments = pop(calls)
                call(*arguments)
            if look is not None:
                look()
