"""Splits a job's own cache while the job runs: tells the planner what was measured, and does what it says."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.coordinate.directory import Directory
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import RowLayout
from headrace.core.sparse import PAGE
from headrace.host.base import Host
from headrace.loader.sums import host_sums, means_of
from headrace.planning import Measured, Planner, Staff, Terms, split_budget

_EVERY = 1.0
"""Seconds between two looks: long enough to say something, short enough that a shift is soon made up for."""


class Splitter:
    """Looks at a host's sums now and then."""

    def __init__(
        self, host: Host, directory: Directory, samples: int, before: Callable[[float], Terms | None]
    ) -> None:
        """``before``: what was known when the loader began, for a cache of so many bytes."""
        self._host, self._directory = host, directory
        self._budget = sum(directory.budgets.values())
        split = tuple(directory.budgets[form] / self._budget for form in CACHEABLE)
        known = Terms(samples, 1.0, 0.0, 0.0, self._budget, prepare=1.0, augment=1.0, overhead=PAGE / 2)
        self.planner = Planner(known, (split[0], split[1], split[2]), before(self._budget))
        if self.planner.plan.split != split:
            directory.divide(split_budget(self._budget, self.planner.plan.split))
        self._seen = self._sums()

    def _sums(self) -> Measured:
        return host_sums(self._host, self._directory.drawn, self._host.totals.waited)

    def look(self, staff: Staff, layout: RowLayout | None) -> None:
        """Divide the cache anew if what was measured since the last time suggests it."""
        if time.perf_counter() - self._seen.seconds < _EVERY:
            return
        now = self._sums()
        plan = self.planner.look(
            now - self._seen,
            means_of(staff),
            decoded=self._directory.mean(Form.DECODED),
            augmented=layout.nbytes(1) if layout is not None else 0.0,
        )
        self._seen = now
        if plan is not None:
            self._directory.divide(split_budget(self._budget, plan.split))
