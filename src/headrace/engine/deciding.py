"""Who decides how a machine is divided between its ranks: a thread in one of their workers, now and then.

Each rank writes what it needs into its row of the roster. A first worker of some rank reads them all, decides, and
writes down what each may use. So no training loop spends its time on that, and it goes on while a loop pauses.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time

from headrace.core.memory import thread_room
from headrace.engine.said import Said
from headrace.engine.seat import Seat
from headrace.planning.threads import Node, StaffController

EVERY = 0.25
"""Seconds between two decisions."""
_READS, _READS_PER_CPU = 256, 32
"""Reads at once on a machine, at most."""
_TO_SPARE = 2.0
"""Each rank may have so many times the reads that it is found to need: at times it needs more at once. (Far more
would be no use to anybody, and threads that come and go take time from those who prepare, and from the loops.)"""
_HUNGRY = 0.25
"""A loop that waits for so much of the time that it trains is given all the reads that there are."""
_LEAST = 8
"""And so many in any case: needs are means, and some reads that take a hundred times as long may come together."""


class Decider:
    """Decides for all ranks of a machine, whenever it is this process's turn."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._controller = StaffController()

    def start(self) -> None:
        """Decide from now on, in a thread of its own."""
        if thread_room(1):
            with contextlib.suppress(
                RuntimeError
            ):  # no more may be started: others decide, or it stays as it is
                threading.Thread(target=self._run, name="headrace-decide", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(EVERY)
            if self._seat.decides(EVERY):
                self.decide()

    def decide(self) -> None:
        """Decide now."""
        seat = self._seat
        seat.roster.bury()
        said = {row: Said(*one[: len(Said._fields)]) for row, one in seat.said().items()}
        if not said:
            return
        needs = {row: one.needs() for row, one in said.items()}
        most = max(_READS, _READS_PER_CPU * seat.cpus)
        kept = min(seat.cpus - 1, math.floor(sum(one.loop_cpus for one in said.values())))
        decision = self._controller.decide(needs, Node(seat.cpus, kept, most))
        wanted = sum(budget.reads for budget in decision.budgets.values())
        all_of_them = max(1.0, most / wanted)
        least = min(_LEAST, most // len(needs))

        def reads(row: int, count: int) -> int:
            # Whose loop waits may need many more than was known a moment ago: storage has become slow.
            hungry = needs[row].waited > _HUNGRY * needs[row].train_seconds
            return max(least, int(count * (all_of_them if hungry else min(_TO_SPARE, all_of_them))))

        seat.set_reads({row: reads(row, one.reads) for row, one in decision.budgets.items()})
        # (who is alone here is limited by that alone)
        alone = len(needs) == 1
        seat.set_prepare({row: 0 if alone else one.prepare for row, one in decision.budgets.items()})
        seat.set_limit(decision.prepare_limit)
