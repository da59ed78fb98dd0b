"""How many bytes per second storage gives, told from how fetching and preparing wait for each other."""

from __future__ import annotations

import math

from headrace.planning.measured import Means, Measured

ENOUGH = 64
"""Samples that have to be fetched before anything is believed."""
_STARVED = 0.1
"""Hands that wait for bytes for more than this part of their time may have all that storage gives."""
_BUSY = 0.8
"""And they have, if fetching went on for this part of the time: else it was orders that were waited for as well."""
_HOPE = 1.02
"""By so much more storage may give at each look after it was last seen to give all it can."""
_FORGET = 0.5
"""What was known so far counts as much when storage is seen again to give all it can."""


def gave_all(measured: Measured, hands: int, fetchers: int) -> bool:
    """Whether storage gave all it can: preparing waited for bytes, and fetching hardly ever paused.

    The second is no less needed than the first. Where the loop sets the pace, there is an order now and then: whoever
    takes it waits for its bytes, and storage, which is idle between two of them, still gives far less than it could.
    """
    return (
        measured.wait_fetch > _STARVED * measured.seconds * hands
        and measured.fetch > _BUSY * measured.seconds * fetchers
    )


class Supply:
    """Takes note of one look after the other."""

    def __init__(self, rate: float = math.inf) -> None:
        """``rate``: what is believed before anything was seen. Nothing more: the first look that says something
        takes its place, however far off it was."""
        self.rate = rate
        """Bytes per second, as far as one can tell."""
        self.seen = False
        """Whether ``rate`` was seen here."""
        self._fetching = Measured()
        """Sums over looks at which little was fetched."""
        self._all = math.inf
        """Bytes per second when preparing last waited for them."""

    def note(self, measured: Measured, means: Means) -> Measured | None:
        """Take in what was measured since the last time. Gives the sums over a time in which storage gave all it can.

        Where storage gives all it can, what comes is what it gives. Where it does not, that much is certain, and what
        it would be if fetching never paused is a guess, which may go beyond what was once seen to be all.
        """
        self._fetching = self._fetching.faded(1.0, measured) if measured.fetched else Measured()
        if self._fetching.fetched < ENOUGH:
            return None
        measured, self._fetching = self._fetching, Measured()
        seen = max(measured.fetched_bytes, 1) / measured.seconds  # (samples may be empty)
        self.seen = True
        if gave_all(measured, means.hands, means.fetchers):
            self._all = seen if math.isinf(self._all) else (1 - _FORGET) * seen + _FORGET * self._all
            self.rate = self._all
            return measured
        self._all *= _HOPE
        guess = means.fetchers * measured.fetched_bytes / max(measured.fetch, 1e-9)
        self.rate = max(seen, min(self._all, guess))
        return None
