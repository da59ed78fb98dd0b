"""Splits a job's own cache while the job runs: tells the planner what was measured, and does what it says."""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinate.directory import Directory
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import LOOK_EVERY, Means, Measured, Planner, Terms, split_budget


class OwnSplit:
    """Looks at a job's sums now and then."""

    def __init__(
        self, directory: Directory, sums: Measured, before: Terms | None = None, **certain: float
    ) -> None:
        """``sums``: as they are now. ``before``: what was known when the job began. ``certain``: terms that are as
        they are."""
        self._directory, self._seen = directory, sums
        self._budget = sum(directory.budgets.values())
        split = tuple(directory.budgets[form] / self._budget for form in CACHEABLE)
        known = replace(Terms.unknown(directory.size, self._budget), **certain)  # type: ignore[arg-type]
        before = None if before is None else replace(before, **certain)  # type: ignore[arg-type]
        self.planner = Planner(known, (split[0], split[1], split[2]), before)
        if self.planner.plan.split != split:
            directory.set_split(split_budget(self._budget, self.planner.plan.split))

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return now - self._seen.seconds >= LOOK_EVERY

    def look(self, sums: Measured, means: Means, augmented: float) -> None:
        """Split the cache anew if what was measured since the last time suggests it. ``augmented``: bytes; 0: not
        known."""
        plan = self.planner.look(
            sums - self._seen, means, decoded=self._directory.mean(Form.DECODED), augmented=augmented
        )
        self._seen = sums
        if plan is not None:
            self._directory.set_split(split_budget(self._budget, plan.split))
