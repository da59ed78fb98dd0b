"""When a rank's orders are given to other nodes, and to whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_AHEAD = 2
"""Orders that a helper has at a time: one that it makes, and one to go on with."""


class Help:
    """Whether a rank's own workers need help.

    A loader that keeps up has at most one batch on its board that nobody has begun: the one for which a slot has just
    become free. Where more than that waits, the rank's own workers are behind.
    """

    def __init__(self, workers: int) -> None:
        """``workers``: processes of the rank's own."""
        self._workers = workers
        self._orders = 1
        """Of one batch."""
        self.rows = 16
        """Of one order."""

    def saw(self, rows: int, count: int) -> None:
        """An order of ``count`` of a batch's ``rows`` rows."""
        self.rows = max(1, count)
        self._orders = max(1, -(-rows // self.rows))

    def wanted(self, backlog: int) -> bool:
        """Whether one of so many orders that nobody has claimed should be made elsewhere."""
        return backlog > max(self._orders, self._workers)


def choose(helpers: Sequence[tuple[int, float]]) -> int | None:
    """The helper that an order goes to, by its place; None: all have enough to do.

    ``helpers``: of each, the orders that it has, and the seconds that one takes it (0: not known).
    """
    free = [place for place, (orders, _) in enumerate(helpers) if orders < _AHEAD]
    if not free:
        return None
    return min(free, key=lambda place: ((helpers[place][0] + 1) * helpers[place][1], helpers[place][0]))
