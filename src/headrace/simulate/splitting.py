"""How a simulated job's own cache is split: the product's planner, told what simulated workers measure."""

from __future__ import annotations

from headrace.coordinate.directory import Directory
from headrace.coordinate.messages import Spent
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sparse import PAGE
from headrace.planning import Means, Measured, Planner, Terms, split_budget

_EVERY = 1.0
"""Seconds between two looks, as in the product."""


class Splitting:
    """Looks at a rank's sums now and then."""

    def __init__(self, directory: Directory, means: Means, augmented: float) -> None:
        """``augmented``: bytes of an augmented sample."""
        self._directory, self._means, self._augmented = directory, means, augmented
        self._budget = sum(directory.budgets.values())
        known = Terms(
            directory.size, 1.0, 0.0, 0.0, self._budget, prepare=1.0, augment=1.0, overhead=PAGE / 2
        )
        split = tuple(directory.budgets[form] / self._budget for form in CACHEABLE)
        self._planner = Planner(known, (split[0], split[1], split[2]))
        self._spent = Spent()
        self._before = Measured()

    def add(self, spent: Spent) -> None:
        """A worker is done with an order."""
        for name in self._spent.__struct_fields__:
            setattr(self._spent, name, getattr(self._spent, name) + getattr(spent, name))

    def look(self, now: float, waited: float) -> None:
        """Divide the cache anew if what was measured since the last time suggests it. ``waited``: by the loop."""
        if now - self._before.seconds < _EVERY:
            return
        spent = self._spent
        sums = Measured(
            seconds=now,
            delivered=self._directory.drawn,
            waited=waited,
            fetched=spent.fetched,
            fetched_bytes=spent.fetched_bytes,
            fetch=spent.fetch,
            fetch_cpu=spent.fetch_cpu,
            starved=spent.wait_fetch,
            decoded=spent.decoded,
            decode=spent.decode,
            prepared=spent.prepared,
            augment=spent.augment,
            cpu=spent.cpu,
        )
        plan = self._planner.look(
            sums - self._before,
            self._means,
            decoded=self._directory.mean(Form.DECODED),
            augmented=self._augmented,
        )
        self._before = sums
        if plan is not None:
            self._directory.divide(split_budget(self._budget, plan.split))
