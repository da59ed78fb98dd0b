"""How a recipe's batches are cut into orders, and how many of them are ahead of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Any

from headrace.core import environment
from headrace.core.layout import RowLayout, aligned
from headrace.core.memory import available_memory
from headrace.core.sparse import PAGE
from headrace.host.base import Host
from headrace.host.embedded import ProcessHost
from headrace.loader.depth import HostDepth, keep_ahead
from headrace.loader.place import find_place, ranks_here
from headrace.loader.sharing import Sharing
from headrace.loader.spec import LoaderSpec
from headrace.loader.staffing import Staffing
from headrace.planning import (
    Bridge,
    Spent,
    Staff,
    ahead_at_first,
    most_ahead,
    rows_among,
    rows_among_now,
    rows_per_order,
    rows_worth_while,
)

_SPARE = 16
"""Of the memory that is free, one part in so many may hold batches that wait, over all ranks."""
_LOOK = 16
"""Batches after which it is looked at how long samples take."""


class RecipeOrders:
    """Orders and depth as a session begins."""

    def __init__(
        self,
        spec: LoaderSpec,
        staffing: Staffing,
        sharing: Sharing | None,
        helpers: Callable[[], int] = int,
    ) -> None:
        """``helpers``: how many there are on other nodes, who make orders when hands are short here."""
        self.size, self.helpers = spec.batches.size, helpers
        size, hands, chosen = self.size, staffing.hands, spec.work.ahead
        shared: dict[str, Any] = {} if sharing is None else {"shared": True, "ranks": sharing.world_size}
        self.shared = shared
        collates = spec.data.collator is not None
        self.rows = None if collates else self.cut(hands, helpers())
        """Of an order; None: it is a whole batch, as one worker collates it."""
        self.tunes = chosen is None and self.rows is not None
        """More are ahead where that is seen to help."""
        self.follows_hands = chosen is None and self.rows is None
        """Each hand has a batch of its own."""
        if chosen is not None:
            self.ahead = chosen
        elif self.rows is None:
            self.ahead = max(1, staffing.workers + hands)
        else:
            # (helpers need something to do: what is on the board shows whether they are wanted)
            self.ahead = max(1, ahead_at_first(size, hands + helpers(), self.rows, **shared))

    def cut(self, hands: int, helpers: int, seconds: float = 0.0) -> int:
        """Rows of an order, at first. ``helpers``: those who make orders, too; ``seconds``: see ``rows_among``."""
        return (
            rows_among(self.size, hands, helpers, seconds)
            if helpers
            else rows_per_order(self.size, hands, **self.shared)
        )


class RecipeDepth(HostDepth):
    """The depth of a recipe's session: as wanted, as the staff needs it, or as it is seen to be of use."""

    def __init__(self, host: Host, orders: RecipeOrders, staffing: Staffing, budget: int) -> None:
        """``budget``: bytes for augmented samples. One job never gets the same augmented sample twice, so what it can
        keep of that form are batches that are ready before it asks: the budget is depth."""
        super().__init__(host, most=most_ahead(staffing.workers, orders.ahead), hands=staffing.hands)
        self._orders, self._budget = orders, budget
        self._bridge = None if environment.fixed_staff() else Bridge()
        self._room = 0
        """Batches that memory can be spared for."""
        self._nbytes = 0
        self._batches = 0
        self._before = Spent()
        """What had been spent when orders were last looked at."""
        self._helpers = orders.helpers()
        if orders.tunes:
            host.spare = 1

    def laid_out(self, layout: RowLayout) -> None:
        """It is known how large batches are: as many more may be ready as the budget holds."""
        if isinstance(self._host, ProcessHost):
            spare = available_memory() // _SPARE // ranks_here(find_place()[1])
            self._nbytes = aligned(layout.nbytes(self._orders.size), PAGE)
            self._room = spare // self._nbytes
            more = self._budget // self._nbytes
            keep_ahead(self._host, self._host.ahead + more)

    def staffed(self, staff: Staff) -> None:
        """There are other hands than before."""
        if self._orders.follows_hands:
            keep_ahead(self._host, max(self._host.ahead, staff.processes * (1 + staff.threads)))

    def pause(self) -> None:
        """An epoch begins, and nobody knows what the loop did before."""
        if self._bridge is not None:
            self._bridge.leave_out()

    @property
    def slow(self) -> float:
        """Seconds that slow batches take to be fetched; see ``Bridge``."""
        return 0.0 if self._bridge is None else self._bridge.slow

    def taken(
        self,
        *,
        company: int = 0,
        nbytes: int = 0,
        extra: int = 0,
        took: float = 0.0,
        elsewhere: Callable[[], float] = float,
    ) -> None:
        """See ``HostDepth``. ``took``: seconds that fetching the batch took. ``elsewhere``: see ``Bridge``."""
        if not self._orders.tunes:
            return
        self._size_orders(company)
        if self._bridge is not None and self._room:
            bridged = self._bridge.taken(time.perf_counter(), took, self._room, elsewhere)
            extra = 0 if company else bridged  # (in company what is ahead keeps memory that all share)
        super().taken(company=company, nbytes=nbytes, extra=extra)

    def _size_orders(self, company: int) -> None:
        """Make orders larger where what they cost besides is much of what they take, as far as memory allows; and
        of another size where others make some, too.

        (With others not as long as something has to be decoded: what is drawn ahead keeps memory that all share.)
        """
        self._batches += 1
        if not self._room or self._batches % _LOOK:
            return
        host, orders, spent, last = self._host, self._orders, self._host.totals.spent, self._before
        cpu, decoded, helped = spent.cpu - last.cpu, spent.decoded - last.decoded, spent.helped - last.helped
        elsewhere = (spent.helped_cpu - last.helped_cpu) / helped if helped else 0.0
        self._before = copy(spent)
        before = host.coordinator.rows_per_order
        if before is None:
            return
        rows, hands, helpers = before, self._depth.hands, orders.helpers() if helped else 0
        if helpers != self._helpers:
            rows = orders.cut(hands, helpers, elsewhere)
        elif helpers:
            rows = rows_among_now(orders.size, hands, helpers, elsewhere, rows)
        self._helpers = helpers
        if cpu > 0 and not helpers and not (company and decoded):
            rows = rows_worth_while(orders.size, hands, rows, cpu / (_LOOK * orders.size), self._nbytes)
        ahead = ahead_at_first(orders.size, hands + helpers, rows, **orders.shared)
        if rows == before or ahead > self._room:
            return
        host.coordinator.rows_per_order = rows
        self._depth.most = max(self._depth.most, ahead)
        if ahead > host.ahead - self._extra:
            keep_ahead(host, ahead + self._extra)
