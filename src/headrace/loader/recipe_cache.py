"""A recipe's own cache, seen from the loop: divided as measurements suggest, and a warning where it is no use."""

from __future__ import annotations

import time
import warnings

from headrace.coordinate.directory import Directory
from headrace.coordinate.own_split import OwnSplit
from headrace.core.layout import RowLayout
from headrace.core.sizes import show_size
from headrace.engine.disk_stage import DiskUse
from headrace.host.base import Host
from headrace.loader.learning import Learning
from headrace.loader.sums import host_sums, means_of
from headrace.planning import Measured, Staff


class RecipeCache:
    """The cache of one session."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._warned = False
        self.own_split: OwnSplit | None = None
        """Divides it; None: as it is divided, it stays."""

    def plan(self, directory: Directory, learning: Learning, staff: Staff, disk: DiskUse | None) -> None:
        """Divide it by what is measured from now on, and by what was known before. ``disk``: the tier below it."""
        before = learning.terms(sum(directory.budgets.values()), staff)
        below = {} if disk is None else {"disk": disk.tier.budget, "disk_decoded": disk.decoded}
        self.own_split = OwnSplit(directory, self._sums(), before, **below)

    def check(self) -> None:
        """Between epochs, how large samples are is known: say once if the cache has no room for any."""
        directory = self._host.coordinator.directory
        needed = directory.too_small_for() if isinstance(directory, Directory) else 0
        if needed and not self._warned:
            self._warned = True
            warnings.warn(
                f"cache= is {show_size(sum(directory.budgets.values()))}, and a sample takes {show_size(needed)}, so "
                "nothing is cached; write a size such as '8GiB', or a share of the memory such as 0.25",
                stacklevel=4,
            )

    def look(self, staff: Staff, layout: RowLayout | None) -> None:
        """Now and then: divide the cache by what was measured."""
        own_split = self.own_split
        if own_split is not None and own_split.is_due(time.perf_counter()):
            augmented = layout.nbytes(1) if layout is not None else 0.0
            own_split.look(self._sums(), means_of(staff), augmented)

    def _sums(self) -> Measured:
        host = self._host
        return host_sums(host, sum(host.coordinator.directory.hits.values()), host.totals.waited)
