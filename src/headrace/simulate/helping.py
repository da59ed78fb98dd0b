"""Rows that other machines prepare: helpers there, and a rank's agent that gives them orders.

When an order is given away, to whom, and how many bytes may be on their way is decided by the product's own rules
(``Help``, ``choose``, ``Pace``). What agents and helpers do is written anew, to the rules of ``cluster/agent.py``,
``cluster/lines.py`` and ``cluster/helper.py``. That a rank's own workers may leave all orders to helpers is left out,
and so is that a rank is connected to some of many helpers at first (``Reach``): here, it is to all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from headrace.planning.helping import Help, choose
from headrace.planning.pacing import Pace
from headrace.simulate.node import Node
from headrace.simulate.order_cost import pay
from headrace.simulate.workers import READS, Crew, Task

_THREADS = 2
"""Of a helper: one prepares while the other waits for samples, or for its rows to be sent."""
_POLL = 0.004
"""Seconds after which an agent looks at orders that nobody claims."""
_FIRST, _MOST = 4 << 20, 256 << 20
"""Bytes on their way to a rank: at first, and at most."""
_PATIENCE, _TIMES, _REST = 10.0, 20.0, 0.5
"""Seconds for rows to come, at least, or so many times as long as usual; and until a helper is asked again then."""


@dataclass(eq=False)
class Grant:
    """An order that somebody else makes."""

    task: Task
    agent: Agent
    line: Line
    since: float
    nbytes: int
    flight: int
    """Bytes that were on their way with it, and transfers."""
    transfers: int
    came: float = 0.0
    """When the helper had it, and for how long."""
    held: float = 0.0
    void: bool = False
    """The rows were made elsewhere."""


class Helper:
    """A process that prepares for others when its machine has nothing better to do."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._free = _THREADS
        self._grants: deque[Grant] = deque()

    def take(self, grant: Grant) -> None:
        """An order came."""
        grant.came = self.node.clock.now
        self._grants.append(grant)
        self._next()

    def _next(self) -> None:
        while self._grants and self._grants[0].void:
            self._grants.popleft()
        if self._free and self._grants:
            self._free -= 1
            grant = self._grants.popleft()
            task = grant.task
            if len(task.missing):
                self.node.fetch(task.order, task.missing, task.nbytes, READS, self._prepare, grant)
            else:
                self._prepare(grant)

    def _prepare(self, grant: Grant) -> None:
        self.node.processors.add_idle(grant.task.work.seconds * grant.task.luck, self._send, grant)

    def _send(self, grant: Grant) -> None:
        grant.held = self.node.clock.now - grant.came
        pay(grant.task.work, self.node.paid)
        self.node.send(grant.agent.node.number, grant.nbytes, partial(self._sent, grant), idle=True)

    def _sent(self, grant: Grant) -> None:
        self._free += 1
        grant.agent.arrived(grant)
        self._next()


@dataclass(eq=False)
class Line:
    """What an agent knows of a helper."""

    helper: Helper
    pending: list[Grant] = field(default_factory=list)
    usual: float = 0.0
    """Seconds that an order takes, from its grant to its last row."""
    until: float = 0.0
    """It rests until then."""


class Client(Protocol):
    """The rank that is helped."""

    def helped(self, grant: Grant) -> None:
        """Rows came."""
        ...


class Agent:
    """Gives away what a rank's own workers do not get to."""

    def __init__(
        self,
        client: Client,
        crew: Crew,
        node: Node,
        helpers: Sequence[Helper],
        *,
        workers: int,
        row: int,
        paced: bool,
    ) -> None:
        """``helpers``: those of other machines. ``row``: its bytes. ``paced``: bytes on their way are limited."""
        self._client, self._crew, self.node, self._row = client, crew, node, row
        self._lines = [Line(helper) for helper in helpers]
        self._help = Help(workers)
        self._pace = Pace(_FIRST, _MOST) if paced else None
        self._in_flight = self._transfers = 0
        self._looks = False
        self._resting = 0.0
        """When the last line that rests does so no more."""
        self.closed = False
        self.delays: list[tuple[float, float]] = []
        """Of each order: when its rows came, and how long they were on their way."""
        crew.watch = self._look_soon

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self.node.clock.after(_POLL, self._look)

    def _look(self) -> None:
        self._looks = False
        while not self.closed and self._help.wanted(self._crew.backlog):
            line = self._free_line()
            if line is None:
                return
            self._entrust(line)

    def _free_line(self) -> Line | None:
        """The helper that is likely to be done first, if bytes may come."""
        if self._pace is not None and not self._pace.may_go(self._help.rows * self._row, self._in_flight):
            return None
        now = self.node.clock.now
        # (where an agent tries a helper first with an order that it makes itself, here one order is all of it)
        lines = [one for one in self._lines if one.until <= now and (one.usual or not one.pending)]
        place = choose([(len(one.pending), one.usual) for one in lines])
        return None if place is None else lines[place]

    def _entrust(self, line: Line) -> None:
        order = self._crew.give_up()
        count = len(order.indices) // 8
        self._help.saw(order.rows, count)
        task = self._crew.employer.task(order)
        nbytes = count * self._row
        self._in_flight += nbytes
        self._transfers += 1
        grant = Grant(task, self, line, self.node.clock.now, nbytes, self._in_flight, self._transfers)
        line.pending.append(grant)
        self.node.clock.after(max(_PATIENCE, _TIMES * line.usual), self._late, grant)
        self.node.pass_on(line.helper.node.number, line.helper.take, grant)

    def _late(self, grant: Grant) -> None:
        """Rows should have come by now; else all that the helper has is made here."""
        line = grant.line
        if grant not in line.pending or self.closed:
            return
        self._resting = line.until = self.node.clock.now + _REST
        undone, line.pending, line.usual = line.pending, [], 0.0
        for one in undone:
            one.void = True
            self._in_flight -= one.nbytes
            self._transfers -= 1
            task = one.task
            self.node.fetch(task.order, task.missing, task.nbytes, READS, self._make, one)

    def _make(self, grant: Grant) -> None:
        self.node.processors.add(grant.task.work.seconds * grant.task.luck, self._made, grant)

    def _made(self, grant: Grant) -> None:
        pay(grant.task.work, self.node.paid)
        if not self.closed:
            self._client.helped(grant)

    def arrived(self, grant: Grant) -> None:
        """The rows of an order are there."""
        if grant.void:
            return
        now, line = self.node.clock.now, grant.line
        took = now - grant.since
        line.pending.remove(grant)
        line.usual += (0.2 if line.usual else 1.0) * (took - line.usual)
        self._in_flight -= grant.nbytes
        self._transfers -= 1
        delay = max(0.0, took - grant.held)
        self.delays.append((now, delay))
        if self._pace is not None:
            self._pace.arrived(grant.nbytes, delay, grant.flight, grant.transfers, took - delay)
        if not self.closed:
            self._client.helped(grant)
            self._look()
