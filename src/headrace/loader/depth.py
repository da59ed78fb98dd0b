"""As many batches ahead of the loop as are of use."""

from __future__ import annotations

import time

from headrace.core.memory import usable_cpus
from headrace.host.base import Host
from headrace.planning.depth import deepen

_WINDOW = 8
"""Batches between two looks."""
_LARGE = 4 << 20
"""Bytes of a batch of which one more is not to be had for nothing."""


class Depth:
    """Sees who had to wait, and lets more batches be ahead where that helps, or fewer."""

    def __init__(self, host: Host, *, most: int, hands: int) -> None:
        self._host, self.most, self._hands = host, most, hands
        self._cpus = usable_cpus()
        self._count = -_WINDOW
        """Batches since the mark. The very first ones say more about starting up."""
        self._mark = (0.0, 0.0, 0.0)
        self._seen = False

    def begin(self) -> None:
        """An epoch begins, or is about to end: whoever is idle then, or waits for the first batch of the next one,
        would be so at any depth. Each hand says with its next batch how long it was."""
        self._count = min(self._count, -self._hands)

    def taken(self, *, company: int = 0, nbytes: int = 0) -> None:
        """A batch was taken. ``company``: other jobs that share what is prepared. ``nbytes``: its size, where it was
        not known how large batches are: once one is seen to be small, one more may be ahead."""
        host, totals = self._host, self._host.totals
        if 0 < nbytes < _LARGE and not self._seen:
            keep_ahead(host, min(host.ahead + 1, self.most))
        self._seen = self._seen or nbytes > 0
        if not company and host.coordinator.outstanding + 1 < host.ahead:
            self.begin()  # there is nothing left to be ordered
            return
        self._count += 1
        now = (time.perf_counter(), totals.waited, totals.spent.wait_order)
        if self._count == _WINDOW:
            elapsed, waited, idle = (after - before for after, before in zip(now, self._mark, strict=True))
            keep_ahead(
                host,
                deepen(
                    host.ahead,
                    self.most,
                    elapsed=elapsed,
                    waited=waited,
                    idle=idle,
                    hands=self._hands,
                    company=company,
                    cpus=self._cpus,
                ),
            )
            self._count = 0
        if self._count == 0:
            self._mark = now


def keep_ahead(host: Host, ahead: int) -> None:
    """Let so many batches be ahead from now on."""
    host.ahead = ahead
    host.slots.keep = ahead + 1
