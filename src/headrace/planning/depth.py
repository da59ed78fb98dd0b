"""How many batches are kept ahead of the training loop."""

from __future__ import annotations

_WINDOW = 8
"""Batches between two looks."""
_WAITED = 0.05
"""A loop that waits for less than this share of its time is well fed."""
_IDLE = 0.1
"""Hands that have nothing to do for less than this share of theirs are busy: more batches ahead would not help."""
_STARVED = 0.8
"""A loop that waits for more than this share of its time lacks preparing, and no depth evens that out."""
_IN_COMPANY = 2
"""Batches ahead that such a loop keeps where others share what is prepared for it. One is enough where there are more
jobs than CPUs: these have enough to do while it takes its batch."""


def deepen(
    ahead: int,
    most: int,
    *,
    elapsed: float,
    waited: float,
    idle: float,
    hands: int,
    company: int = 0,
    cpus: int = 1,
) -> int:
    """Batches to keep ahead from now on, given how the last ``elapsed`` seconds went.

    ``waited``: seconds for which the loop waited for a batch. ``idle``: seconds for which the ``hands`` that
    prepare had no order, summed over them. Where both happen, there are hands enough, only not when they are
    needed: one more batch ahead evens that out. Where one of them does not, it would only cost memory.
    ``company``: other jobs that share what is prepared, on so many ``cpus``. What is drawn ahead then stays in the
    cache until everybody has had it and takes room from others, so a loop that waits nearly always keeps few.
    """
    if company and waited > _STARVED * elapsed:
        most = 1 if company >= cpus else _IN_COMPANY
        ahead = min(ahead, most)
    uneven = elapsed > 0 and waited > _WAITED * elapsed and idle > _IDLE * elapsed * hands
    return min(max(ahead, most), ahead + 1) if uneven else ahead


class Depth:
    """Looks every few batches at who had to wait, and says how many are to be ahead."""

    def __init__(self, most: int, *, hands: int, cpus: int) -> None:
        self.most, self.hands, self._cpus = most, hands, cpus
        self._count = -_WINDOW
        """Batches since the last look. The very first ones say more about starting up."""
        self._before = (0.0, 0.0, 0.0)

    def leave_out(self) -> None:
        """What was waited for until now says nothing. Each hand says with its next batch how long it was idle."""
        self._count = min(self._count, -self.hands)

    def taken(
        self, ahead: int, *, outstanding: int, now: float, waited: float, idle: float, company: int = 0
    ) -> int:
        """A batch was taken, ``ahead`` being kept until now, of which ``outstanding`` are in the making. ``now``,
        ``waited``, ``idle``: seconds since whenever; else see ``deepen``."""
        if not company and outstanding + 1 < ahead:
            self.leave_out()  # there is nothing left to be ordered
            return ahead
        self._count += 1
        sums = (now, waited, idle)
        if self._count == _WINDOW:
            elapsed, waited, idle = (after - before for after, before in zip(sums, self._before, strict=True))
            ahead = deepen(
                ahead,
                self.most,
                elapsed=elapsed,
                waited=waited,
                idle=idle,
                hands=self.hands,
                company=company,
                cpus=self._cpus,
            )
            self._count = 0
        if self._count == 0:
            self._before = sums
        return ahead
