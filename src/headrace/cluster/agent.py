"""An agent: a worker that has its orders made by helpers on other nodes.

To its host it is a worker like any other: it claims orders from the board, rows stand in the slot when it says so,
and its orders are posted again when it dies. It claims only what its node's own workers do not get to. For each order
it grants room to a helper, which sends rows without being asked again (``lines``). What comes back void the agent
makes itself, as any worker would.

A helper of whom nothing is known is tried first, with an order that somebody else makes: it runs when nobody else on
its node does, which may be never, and no batch is to wait for that.
"""

from __future__ import annotations

import pickle

from headrace.cluster.lines import Assistance, Line, Lines
from headrace.cluster.wanting import Wanting
from headrace.coordinate.messages import Command, Order, OrderDone, Stop
from headrace.engine.board import Claim
from headrace.engine.link import Link
from headrace.engine.task import RecipeTask
from headrace.planning.helping import Way

_TRIALS = 2
"""Helpers that are tried with one order: where there are a thousand, they would all send at the same time."""
_POLL, _IDLE = 0.004, 0.1
"""Seconds between looks at the board: where somebody could help, and where nobody is there to."""


def make_agent(assistance: Assistance, link: Link, task: RecipeTask) -> Agent:
    """What the agent's process does."""
    return Agent(link, task, assistance)


class Agent:
    """See ``Runner``."""

    def __init__(self, link: Link, task: RecipeTask, assistance: Assistance) -> None:
        self._link = link
        self._stages = task.stages(link.arena, link.board)
        self._program = task.compile()
        self._wanting = Wanting(link.board, assistance.workers)
        self._lines = Lines(assistance, link.arena, self._done, self._wanting.now)
        self._stopped = False
        if task.layout is not None:
            self._lines.lay_out(task.layout)

    def on_command(self, command: Command) -> None:
        """See ``Runner``."""
        if isinstance(command, Stop):
            self._stopped = True
            self._lines.wake()

    def serve(self) -> None:
        """See ``Runner``."""
        while not self._stopped:
            self._lines.look_around()
            void = self._lines.next_void()
            if void is not None:
                self._make(*void)
                continue
            line = self._lines.best(self._wanting.help.rows)
            ready = self._lines.ready()
            helped = any(one.usual for one in ready)
            way = self._wanting.decide(there=bool(ready), helped=helped, receiving=self._lines.receiving)
            to_try = not helped and any(one.untried for one in ready)
            if (self._lines.layout is None or to_try) and self._wanting.now():
                self._make_first()
                continue
            if line is None or way is Way.OWN or not (way is Way.OTHERS or self._wanting.now()):
                self._lines.wait(_POLL if self._lines.any else _IDLE)
                continue
            claim = self._link.board.claim(self._link.claimer)
            if claim is not None:
                self._wanting.took()
                self._entrust(line, claim)
            else:  # (what is there has been claimed by workers that reached farther)
                self._lines.wait(_POLL)
        self._wanting.close()
        self._lines.close()
        self._stages.close()

    def _make_first(self) -> None:
        """Make an order: to see how rows look, since where code of the user's makes them, orders say so; and to try
        helpers with it."""
        claim = self._link.board.claim(self._link.claimer)
        if claim is None:
            self._lines.wait(_POLL)
            return
        self._wanting.took()
        order = self._stages.load(claim)
        if order.layout:
            self._lines.lay_out(pickle.loads(order.layout))
        if order.alone:
            self._link.board.mark_alone(claim)
        else:
            self._try_with(order)
        self._make(order, claim)

    def _entrust(self, line: Line, claim: Claim) -> None:
        """Have a helper make an order."""
        order = self._stages.load(claim)
        self._wanting.help.saw(order.rows, len(order.indices) // 8)
        if order.alone:
            # It may be what killed a worker: nothing is to be lost with it.
            while self._lines.busy() and not self._stopped:
                self._lines.wait(_IDLE)
                self._lines.look_around()
            self._link.board.mark_alone(claim)
            self._make(order, claim)
            return
        self._lines.grant(line, order, claim)
        self._try_with(order)

    def _try_with(self, order: Order) -> None:
        """Have those helpers make an order of whom nothing is known. What they send is of no use but for that."""
        for line in [one for one in self._lines.ready() if one.untried][:_TRIALS]:
            self._lines.grant(line, order, None)

    def _make(self, order: Order, claim: Claim) -> None:
        """Make the rows here."""
        done = self._stages.prepare(self._stages.fetch(order, claim), self._program)
        self._lines.was_made(done)
        self._link.send(done)

    def _done(self, order: Order, done: OrderDone) -> None:
        """A helper made them, and they stand in the slot."""
        self._stages.store.finished(order, done)
        self._link.send(done)
