"""A circuit breaker: whether somebody who failed is asked again. Pure."""

from __future__ import annotations


class Breaker:
    """Lets requests through until one fails; then none for a time, then one to see whether it is well again.

    The time is twice as long after each failure in a row, up to a limit.
    """

    def __init__(self, least: float = 1.0, most: float = 30.0) -> None:
        self._least, self._most = least, most
        self._rest = 0.0
        self._until = 0.0
        self._trying = False

    def may_ask(self, now: float) -> bool:
        """Whether a request may be made. After a failure, one at a time may."""
        if not self._rest:
            return True
        if self._trying or now < self._until:
            return False
        self._trying = True
        return True

    def went_well(self) -> None:
        """A request was answered."""
        self._rest, self._trying = 0.0, False

    def failed(self, now: float) -> bool:
        """A request was not; whether it is the first after all was well."""
        first = not self._rest
        self._rest = min(self._most, 2 * self._rest) if self._rest else self._least
        self._until, self._trying = now + self._rest, False
        return first
