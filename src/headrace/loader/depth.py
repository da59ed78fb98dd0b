"""As many batches ahead of the loop as are of use."""

from __future__ import annotations

import time

from headrace.core.memory import usable_cpus
from headrace.host.base import Host
from headrace.planning.depth import deepen

_WINDOW = 8
"""Batches between two looks."""


class Depth:
    """Sees who had to wait, and lets more batches be ahead where that helps, or fewer."""

    def __init__(self, host: Host, *, most: int, hands: int) -> None:
        self._host, self.most, self._hands = host, most, hands
        self._cpus = usable_cpus()
        self._taken = 0
        self._mark = (0.0, 0.0, 0.0)

    def taken(self, *, company: int = 0) -> None:
        """A batch was taken. ``company``: other jobs that share what is prepared."""
        self._taken += 1
        if self._taken % _WINDOW:
            return
        host, totals = self._host, self._host.totals
        now = (time.perf_counter(), totals.waited, totals.spent.wait_order)
        if self._taken > _WINDOW:  # the first batches say more about starting up
            elapsed, waited, idle = (after - before for after, before in zip(now, self._mark, strict=True))
            host.ahead = deepen(
                host.ahead,
                self.most,
                elapsed=elapsed,
                waited=waited,
                idle=idle,
                hands=self._hands,
                company=company,
                cpus=self._cpus,
            )
            host.slots.keep = host.ahead + 1
        self._mark = now
