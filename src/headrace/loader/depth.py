"""As many batches ahead of the loop as are of use."""

from __future__ import annotations

import time

from headrace.core.memory import usable_cpus
from headrace.host.base import Host
from headrace.planning import Depth

_LARGE = 4 << 20
"""Bytes of a batch of which one more is not to be had for nothing."""


class HostDepth:
    """Lets more batches of a host be ahead where that is seen to help, or fewer."""

    def __init__(self, host: Host, *, most: int, hands: int) -> None:
        self._host = host
        self._extra = 0
        self._depth = Depth(most, hands=hands, cpus=usable_cpus())
        self._seen = False

    def hands_are(self, workers: int) -> None:
        """So many workers make a batch each from now on: each is to have one, and up to one more."""
        if workers != self._depth.hands:
            self._depth.hands, self._depth.most = workers, max(self._depth.most, 2 * workers)
            keep_ahead(self._host, max(self._host.ahead, workers))

    @property
    def most(self) -> int:
        """Batches ahead, at most."""
        return self._depth.most

    def begin(self) -> None:
        """An epoch begins, or is about to end: whoever is idle then, or waits for the first batch of the next one,
        would be so at any depth."""
        self._depth.leave_out()

    def taken(self, *, company: int = 0, nbytes: int = 0, extra: int = 0) -> None:
        """A batch was taken. ``company``: other jobs that share what is prepared. ``nbytes``: its size, where it was
        not known how large batches are: once one is seen to be small, one more may be ahead. ``extra``: so many
        are to be ahead beside those that are found to be of use."""
        host, totals = self._host, self._host.totals
        if 0 < nbytes < _LARGE and not self._seen:
            keep_ahead(host, min(host.ahead + 1, self.most))
        self._seen = self._seen or nbytes > 0
        ahead = self._depth.taken(
            host.ahead - self._extra,
            outstanding=host.coordinator.outstanding,
            now=time.perf_counter(),
            waited=totals.waited,
            idle=totals.spent.wait_order,
            company=company,
        )
        self._extra = extra
        if ahead + extra != host.ahead:
            keep_ahead(host, ahead + extra)


def keep_ahead(host: Host, ahead: int) -> None:
    """Let so many batches be ahead from now on."""
    host.ahead = ahead
    host.slots.keep = ahead + 1
