"""Splits a job's own cache while the job runs: tells the planner what was measured, and does what it says."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.coordinate.directory import Directory
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import RowLayout
from headrace.core.memory import usable_cpus
from headrace.host.base import Host
from headrace.planning import Means, Measured, Planner, Staff, Terms, split_budget

_EVERY = 1.0
"""Seconds between two looks: long enough to say something, short enough that a shift is soon made up for."""


def means_of(staff: Staff) -> Means:
    """What a loader has to work with."""
    return Means(usable_cpus(), max(1, staff.processes * staff.threads), max(1, staff.processes))


def sums_of(host: Host, delivered: int) -> Measured:
    """All that a host's workers measured so far."""
    spent = host.totals.spent
    return Measured(
        seconds=time.perf_counter(),
        delivered=delivered,
        waited=host.totals.waited,
        loop_cpu=time.process_time(),
        fetched=spent.fetched,
        fetched_bytes=spent.fetched_bytes,
        fetch=spent.fetch,
        fetch_cpu=spent.fetch_cpu,
        reading=spent.reading,
        starved=spent.wait_fetch,
        decoded=spent.decoded,
        decode=spent.decode,
        prepared=spent.prepared,
        augment=spent.augment,
        cpu=spent.cpu,
    )


class Splitter:
    """Looks at a host's sums now and then."""

    def __init__(
        self, host: Host, directory: Directory, samples: int, before: Callable[[float], Terms | None]
    ) -> None:
        """``before``: what was known when the loader began, for a cache of so many bytes."""
        self._host, self._directory = host, directory
        self._budget = sum(directory.budgets.values())
        split = tuple(directory.budgets[form] / self._budget for form in CACHEABLE)
        known = Terms(samples, 1.0, 0.0, 0.0, self._budget, prepare=1.0, augment=1.0)
        self.planner = Planner(known, (split[0], split[1], split[2]), before(self._budget))
        if self.planner.plan.split != split:
            directory.divide(split_budget(self._budget, self.planner.plan.split))
        self._seen = sums_of(host, directory.drawn)

    def look(self, staff: Staff, layout: RowLayout | None) -> None:
        """Divide the cache anew if what was measured since the last time suggests it."""
        if time.perf_counter() - self._seen.seconds < _EVERY:
            return
        now = sums_of(self._host, self._directory.drawn)
        plan = self.planner.look(
            now - self._seen,
            means_of(staff),
            decoded=self._directory.mean(Form.DECODED),
            augmented=layout.nbytes(1) if layout is not None else 0.0,
        )
        self._seen = now
        if plan is not None:
            self._directory.divide(split_budget(self._budget, plan.split))
