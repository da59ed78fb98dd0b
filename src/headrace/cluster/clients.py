"""Who is connected to a server: how many at a time, and who has to go where others come."""

from __future__ import annotations

import threading
import time

from headrace.channel.wire import Wire


class Clients:
    """Connections of one kind. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Wire, float | None] = {}
        """Since when each has asked nothing; None: it is being answered, or has yet to say who it is."""
        self._coming = 0
        """Connections that are not encrypted yet. They count: anybody can make them."""

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def coming(self) -> int:
        """Those that have yet to become one."""
        return self._coming

    def may_come(self, most: int, rest: float) -> bool:
        """Whether there is room for another, which counts from now on. Where there is none, the connection goes that
        has asked nothing for the longest, and for ``rest`` seconds at least: who kept it makes another when it is
        needed."""
        with self._lock:
            if len(self._idle) + self._coming >= most:
                idle = [(since, one) for one, since in self._idle.items() if since is not None]
                since, last = min(idle, key=lambda one: one[0], default=(0.0, None))
                if last is None or time.monotonic() - since < rest:
                    return False
                del self._idle[last]
                last.shut()
            self._coming += 1
            return True

    def came(self, connection: Wire | None) -> None:
        """It is one now; None: it will never be."""
        with self._lock:
            self._coming -= 1
            if connection is not None:
                self._idle[connection] = None

    def asks(self, connection: Wire) -> None:
        """It is being answered."""
        self._set(connection, None)

    def rests(self, connection: Wire) -> None:
        """It has been."""
        self._set(connection, time.monotonic())

    def _set(self, connection: Wire, since: float | None) -> None:
        with self._lock:
            if connection in self._idle:  # (it may have been ended just now)
                self._idle[connection] = since

    def gone(self, connection: Wire) -> None:
        """It is none any more."""
        with self._lock:
            self._idle.pop(connection, None)

    def shut(self) -> None:
        """End all of them."""
        with self._lock:
            for connection in self._idle:
                connection.shut()
