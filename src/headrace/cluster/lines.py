"""Lines: an agent's connections to helpers on other nodes, what was granted over each, and what comes of it.

A line is there from connecting to its end. One thread of its own connects, teaches, and then receives rows straight
into the slot: nobody else writes there. When a connection ends, whatever was granted over it is void, and the agent
gets it back (``next_void``). Who was late rests before it is connected to again, longer each time. Of many helpers, a
rank is connected to some (``Reach``), and others take the place of those that rest.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cache.arena import Arena
from headrace.channel.wire import BODY_LIMIT, Wire
from headrace.cluster.granted import Granted, Room
from headrace.cluster.greeting import GREETING
from headrace.cluster.members import TROUBLE, Members, ask, greet, members_of
from headrace.cluster.messages import (
    Grant,
    Held,
    Helper,
    Node,
    Opened,
    Refused,
    Rows,
    Teach,
    View,
    decode_reply,
    encode,
)
from headrace.cluster.pooled import Pool
from headrace.cluster.rows import Receiving
from headrace.cluster.transports import Transports
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import HostRefused, ProtocolError
from headrace.core.layout import RowLayout
from headrace.engine.board import Claim
from headrace.planning import Spent
from headrace.planning.helping import Reach, choose, in_order, to_connect

_LOOK = 0.1
"""Seconds between looks at who is there and who is late."""
_TAKEN = 5.0
"""Seconds for which a helper may take in nothing of a grant."""
_LISTING = 600.0
"""Seconds for a helper to list the dataset and make the recipe ready."""
_PATIENCE, _LEAST, _TIMES = 10.0, 1.5, 10.0
"""Seconds for rows to come: of a trial; and once it is known what they usually take, so many times that, at least the
second. A batch waits for them, and they can be made here."""
_AGAIN, _LONGEST = 5.0, 60.0
"""Seconds after which a helper that failed is tried again; of one that is late again and again, at most."""
_TWICE = 8
"""So often it is twice as long, at most. (A helper may be late every minute, for days.)"""
_GOOD = 16
"""Orders in time after which it does not matter that a helper was late before."""
_REFUSED = 60.0
"""And one that cannot prepare these rows."""
_LATEST = 0.05
"""The weight of one order in what receiving a row takes."""
_LEAVING = 1.0
"""Seconds for a thread to let go of what NIXL has."""


class Assistance(NamedTuple):
    """What an agent is told. It travels to the process."""

    pool: Pool
    recipe: str
    """A digest of the definition."""
    definition: bytes
    key: str
    """A digest of all that makes rows, targets and code of the user's included."""
    decoded: bool
    tier: Held
    """Whether decoded samples are held by nodes."""
    workers: int
    """Processes of the rank's own."""
    rank: str
    """Which rank it is, of all there are on all nodes; also for an agent that takes another's place."""

    def teach(self, layout: RowLayout) -> Teach:
        """What helpers are taught."""
        fields = json.dumps(layout.describe()).encode()
        pool = self.pool
        return Teach(
            self.recipe, pool.dataset, pool.definition, self.definition, self.decoded, fields, self.key, self.tier
        )  # fmt: skip


@dataclass(eq=False)
class Line:
    """A connection to a helper. One thread receives; the agent's main thread sends."""

    key: str
    node: Node
    helper: Helper
    wire: Wire | None = None
    receiving: Receiving | None = None
    thread: threading.Thread | None = None
    ready: bool = False
    over: bool = False
    pending: dict[int, Room] = field(default_factory=dict)
    usual: float = 0.0
    """Seconds that an order takes, from its grant to its last row; 0: it was not tried yet."""
    done: int = 0
    """Orders of which rows came."""
    late: bool = False
    wrong: bool = False
    """It found samples bad that are good here."""

    @property
    def untried(self) -> bool:
        """Whether it could be given a trial."""
        return self.ready and not (self.over or self.usual or self.pending)

    @property
    def patience(self) -> float:
        """Seconds after which an order is not waited for any more."""
        return max(_LEAST, _TIMES * self.usual) if self.usual else _PATIENCE


class Lines:
    """All of an agent's. Its main thread calls; each line has one more."""

    def __init__(
        self,
        assistance: Assistance,
        arena: Arena,
        done: Callable[[Order, OrderDone], None],
        wanted: Callable[[], bool],
    ) -> None:
        """``arena``: where slots are. ``done``: told of orders whose rows have come. ``wanted``: whether help is."""
        self._assistance, self._arena, self._done, self._wanted = assistance, arena, done, wanted
        self._layout: RowLayout | None = None
        self._row = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lines: dict[str, Line] = {}
        self._rests: dict[str, float] = {}
        self._late: dict[str, int] = {}
        """By helper: how often it was late, one time after the other."""
        self._transports = Transports()
        self._numbers = itertools.count(1)
        self._granted = Granted[Line]()
        self.receiving = 0.0
        """CPU seconds that a row takes to be received; 0: none was."""
        self._said: set[str] = set()
        self._looked = 0.0
        self._reach, self._free = Reach(), True
        """How many there may be; and whether there was always one with room for an order since the last look."""
        self._view: View | None = None
        self._helpers: dict[str, tuple[Node, Helper]] = {}
        """Those of the view, in the order in which they are connected to."""

    # -- what the agent asks -------------------------------------------------------------------------------------

    @property
    def layout(self) -> RowLayout | None:
        """How rows look; None: that is not known yet, and helpers cannot be taught."""
        return self._layout

    def lay_out(self, layout: RowLayout) -> None:
        """It is known how rows look."""
        self._layout, self._row = layout, sum(one.nbytes for one in layout.fields)

    @property
    def any(self) -> bool:
        """Whether there are helpers, ready or not."""
        return bool(self._lines)

    def ready(self) -> list[Line]:
        """Those over which orders may be granted."""
        with self._lock:
            return [one for one in self._lines.values() if one.ready and not one.over]

    def busy(self) -> bool:
        """Whether anything is granted."""
        with self._lock:
            return any(one.pending for one in self._lines.values())

    def best(self, rows: int) -> Line | None:
        """The helper that is likely to be done first with an order of so many rows, if bytes may come."""
        with self._lock:
            if not self._granted.may(rows * self._row):
                return None
            lines = [one for one in self._lines.values() if one.usual and not one.over]
            place = choose([(len(one.pending), one.usual) for one in lines])
            self._free &= place is not None
            return None if place is None else lines[place]

    def next_void(self) -> tuple[Order, Claim] | None:
        """An order that was granted and will not come: it is to be made here."""
        with self._lock:
            return self._granted.next_void()

    def was_made(self, done: OrderDone) -> None:
        """An order was made here, after a helper perhaps that found samples bad. If they are good, its node does not
        see the files that are seen here, or not just now, or lacks something: it is left alone for a while."""
        with self._lock:
            found = self._granted.was_made(done)
        if found is None:
            return
        line, said = found
        line.wrong = True
        self._leave_alone(line.node)
        if line.wire is not None:
            line.wire.shut()
        self._tell(line.node, "samples that are good here are bad there", said)

    def wait(self, seconds: float) -> None:
        """Until something has changed here."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Nobody is to wait."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all of them."""
        lines = list(self._lines.values())
        for line in lines:
            if line.wire is not None:
                line.wire.shut()
        for line in lines:  # (what NIXL has has to be let go before this process ends)
            if line.thread is not None:
                line.thread.join(_LEAVING)

    # -- grants --------------------------------------------------------------------------------------------------

    def grant(self, line: Line, order: Order, claim: Claim | None) -> None:
        """Room for an order's rows. ``claim``: None where it is a trial, whose rows are of no use but for that."""
        number, nbytes = next(self._numbers), len(order.indices) // 8 * self._row
        place, land = self._transports.room(line.receiving, number, nbytes)
        grant = Grant(
            number, self._assistance.recipe, order.seed, order.epoch, order.step, order.indices, order.words, place
        )  # fmt: skip
        with self._lock:
            if line.over or line.wire is None:
                self._granted.void(order, claim)
                return
            others = sum(len(one.pending) for one in self._lines.values())
            line.pending[number] = self._granted.grant(order, claim, time.monotonic(), nbytes, others)
            connection = line.wire
        try:
            if land is not None:
                connection.send(encode(land), seconds=_TAKEN)
            connection.send(encode(grant), seconds=_TAKEN)
        except TROUBLE:
            connection.shut()  # (the thread that receives gives back what was granted)

    # -- who there is --------------------------------------------------------------------------------------------

    def look_around(self) -> None:
        """Connect to helpers that have come; wait no more for those that are gone or do not answer."""
        now = time.monotonic()
        if now < self._looked + _LOOK:
            return
        self._looked = now
        members = self._members() if self._layout is not None else None
        if members is None:
            return
        if members.view is not self._view:
            self._view = members.view
            self._helpers = _helpers_of(members.view, members.node, self._assistance.rank)
            with self._lock:  # (others will have other ports)
                self._late = {key: times for key, times in self._late.items() if key in self._helpers}
        wanted = self._wanted()
        with self._lock:
            for key, line in self._lines.items():
                late = [one for one in line.pending.values() if now - one.since > line.patience]
                if line.wire is not None and (key not in self._helpers or late):
                    line.late = bool(late)
                    line.wire.shut()
            self._rests = {key: until for key, until in self._rests.items() if until > now}
            count, coming = len(self._lines), sum(not one.usual for one in self._lines.values())
            many = self._reach.look(now, wanted=wanted, free=self._free, lines=count, coming=coming)
            self._free = True
            for key in to_connect(self._helpers, many, self._lines, self._rests):
                line = self._lines[key] = Line(key, *self._helpers[key])
                line.thread = threading.Thread(
                    target=self._attend, args=(line, members), name="headrace-agent", daemon=True
                )
                try:
                    line.thread.start()
                except RuntimeError:  # (no more may be started just now)
                    del self._lines[key]
                    self._rests[key] = now + _AGAIN

    def _members(self) -> Members | None:
        try:
            return members_of(self._assistance.pool.path, self._assistance.pool.rail)
        except TROUBLE:
            return None

    # -- a line's thread -----------------------------------------------------------------------------------------

    def _attend(self, line: Line, members: Members) -> None:
        """From connecting to the end."""
        layout = self._layout
        assert layout is not None
        rest = _AGAIN
        try:
            helper = line.helper
            connection = members.dialer.connect(line.node, helper.port, helper.certificate, GREETING)
            with self._lock:
                line.wire = connection
            greet(connection, members.token)
            try:
                reply, _ = ask(connection, self._assistance.teach(layout), _LISTING)
            except HostRefused as error:
                rest = _REFUSED
                self._leave_alone(line.node)
                self._tell(line.node, str(error))
                raise
            if not isinstance(reply, Opened) or reply.samples != self._row:
                raise ProtocolError(f"{connection.name} makes other rows")
            receiving = self._transports.receiving(line.key, helper, connection)
            with self._changed:
                line.receiving, line.ready = receiving, True
                self._changed.notify_all()
            rest = 0.5
            while True:
                self._receive(line, connection, receiving, layout)
        except TROUBLE:
            pass
        finally:
            self._end(line, rest)

    def _leave_alone(self, node: Node) -> None:
        """A helper prepares no rows, and nor would the others of its node: they see the same files and have the same
        code. (Each would list the dataset to find that out.)"""
        until = time.monotonic() + _REFUSED
        with self._lock:
            self._rests.update((f"{node.host}:{one.port}", until) for one in node.helpers)

    def _tell(self, node: Node, reason: str, example: str = "") -> None:
        """A helper prepares no rows: say why, once, however many say it."""
        if reason not in self._said:
            self._said.add(reason)
            text = f"node {node.id} ({node.host}) prepares no rows for this job: {reason}"
            text += f" ({example})" if example else ""
            warnings.warn(text, stacklevel=2)

    def _receive(self, line: Line, connection: Wire, receiving: Receiving, layout: RowLayout) -> None:
        """The rows of one grant, into the slot that they are granted."""
        message, nbytes = connection.receive_message(seconds=None, body_limit=BODY_LIMIT)
        reply = decode_reply(message)
        if isinstance(reply, Refused):
            raise ProtocolError(reply.reason)
        # (it stays among the pending ones until all is here: whoever dies meanwhile, the rows are made again)
        room = line.pending.get(reply.number) if isinstance(reply, Rows) else None
        if not isinstance(reply, Rows) or room is None:
            raise ProtocolError(f"{connection.name} sent rows that nobody granted room for")
        begun_cpu = time.thread_time()
        receiving.take(reply.number, nbytes, room.into(layout, self._arena), _PATIENCE)
        cpu_here = time.thread_time() - begun_cpu
        took = time.monotonic() - room.since
        with self._changed:
            del line.pending[reply.number]
            line.usual += (0.2 if line.usual else 1.0) * (took - line.usual)
            line.done += 1
            good = self._granted.arrived(line, room, reply, took)
            each = cpu_here / max(1, room.count)
            self.receiving += (_LATEST if self.receiving else 1.0) * (each - self.receiving)
            self._changed.notify_all()
        if good:
            cpu = reply.cpu if 0.0 < reply.cpu <= took else took  # (it is what somebody says)
            spent = Spent(helped=room.count, helped_cpu=cpu)
            self._done(room.order, OrderDone(room.order.id, [], spent=spent))

    def _end(self, line: Line, rest: float) -> None:
        """Give back what was granted. ``rest``: seconds for which it is left alone."""
        with self._changed:
            line.over = True
            another = self._transports.ended(line.key, line.receiving)
            if line.pending and not line.done and not another:
                rest = max(rest, _AGAIN)  # (it cannot make these rows, and may never)
            self._granted.lost(line.pending.values())
            line.pending.clear()
            self._lines.pop(line.key, None)
            if line.late:
                times = 0 if line.done >= _GOOD else self._late.get(line.key, 0)
                self._late[line.key] = times + 1
                rest = min(_LONGEST, _AGAIN * 2 ** min(times, _TWICE))
            if line.wrong:
                rest = _REFUSED
            self._rests[line.key] = time.monotonic() + rest
            self._changed.notify_all()
        if line.receiving is not None:
            line.receiving.close()
        elif line.wire is not None:
            line.wire.close()


def _helpers_of(view: View, own: str, rank: str) -> dict[str, tuple[Node, Helper]]:
    """The helpers of all other nodes, in the order in which a rank connects to them."""
    found: dict[str, tuple[Node, Helper]] = {}
    nodes: dict[str, list[str]] = {}
    for node in view.nodes:
        if node.id != own:
            here = {f"{node.host}:{one.port}": (node, one) for one in node.helpers}
            nodes[node.id] = list(here)
            found.update(here)
    return {key: found[key] for key in in_order(rank, nodes)}
