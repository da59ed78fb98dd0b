"""An agent: a worker that has its orders made by helpers on other nodes.

To its host it is a worker like any other: it claims orders from the board, rows stand in the slot when it says so,
and its orders are posted again when it dies. It claims only what its node's own workers do not get to. For each order
it grants room to a helper, which sends rows without being asked again; they are received straight into the slot. Only
what holds a grant writes there: when a connection ends, whatever was granted over it is void, and the agent makes
those rows itself, as any worker would.

A helper of whom nothing is known is tried first, with an order that somebody else makes: it runs when nobody else on
its node does, which may be never, and no batch is to wait for that.
"""

from __future__ import annotations

import itertools
import json
import pickle
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.channel.wire import BODY_LIMIT, Wire
from headrace.cluster.greeting import GREETING
from headrace.cluster.members import TROUBLE, Members, ask, greet, members_of
from headrace.cluster.messages import (
    Grant,
    Helper,
    Land,
    Node,
    Opened,
    Refused,
    Rows,
    Teach,
    decode_reply,
    encode,
)
from headrace.cluster.nixl_rows import NixlReceiving, NoNixl, try_nixl
from headrace.cluster.pooled import Pool
from headrace.cluster.rows import BESIDE, Receiving, WireReceiving
from headrace.cluster.wanting import Wanting
from headrace.coordinate.messages import Command, Order, OrderDone, Stop
from headrace.core import environment
from headrace.core.errors import HostRefused, ProtocolError
from headrace.core.layout import RowLayout
from headrace.engine.board import Claim
from headrace.engine.link import Link
from headrace.engine.task import RecipeTask
from headrace.planning import Spent
from headrace.planning.helping import choose
from headrace.planning.pacing import Pace

_TAKEN = 5.0
"""Seconds for which a helper may take in nothing of a grant."""
_LISTING = 600.0
"""Seconds for a helper to list the dataset and make the recipe ready."""
_PATIENCE, _LEAST, _TIMES = 10.0, 1.5, 10.0
"""Seconds for rows to come: of a trial; and once it is known what they usually take, so many times that, at least the
second. A batch waits for them, and they can be made here."""
_AGAIN, _LONGEST = 5.0, 60.0
"""Seconds after which a helper that failed is tried again; of one that is late again and again, at most."""
_TRIALS = 2
"""Helpers that are tried with one order: where there are a thousand, they would all send at the same time."""
_GOOD = 16
"""Orders in time after which it does not matter that a helper was late before."""
_REFUSED = 60.0
"""And one that cannot prepare these rows."""
_MISTRUST = 60.0
"""Seconds for which rows of a helper's come over the wire after NIXL did not get any through."""
_LEAVING = 1.0
"""Seconds for a thread to let go of what NIXL has."""
_POLL, _IDLE = 0.004, 0.1
"""Seconds between looks at the board: where somebody could help, and where nobody is there to."""
_FIRST, _MOST = 4 << 20, 256 << 20
"""Bytes on their way here: at first, and at most."""


class Assistance(NamedTuple):
    """What an agent is told. It travels to the process."""

    pool: Pool
    recipe: str
    """A digest of the definition."""
    definition: bytes
    key: str
    """A digest of all that makes rows, code of the user's included."""
    decoded: bool
    workers: int
    """Processes of the rank's own."""


@dataclass
class _Pending:
    order: Order
    claim: Claim | None
    """None: a trial. Somebody else makes the order."""
    since: float
    nbytes: int
    flight: int
    """Bytes that were under way with it."""
    transfers: int


@dataclass(eq=False)
class _Line:
    """A connection to a helper. One thread receives; the agent's main thread sends."""

    key: str
    node: Node
    helper: Helper
    wire: Wire | None = None
    receiving: Receiving | None = None
    thread: threading.Thread | None = None
    ready: bool = False
    over: bool = False
    pending: dict[int, _Pending] = field(default_factory=dict)
    usual: float = 0.0
    """Seconds that an order takes, from its grant to its last row; 0: it was not tried yet."""
    done: int = 0
    """Orders of which rows came."""
    late: bool = False

    @property
    def untried(self) -> bool:
        """Whether it could be given a trial."""
        return self.ready and not (self.over or self.usual or self.pending)

    @property
    def patience(self) -> float:
        """Seconds after which an order is not waited for any more."""
        return max(_LEAST, _TIMES * self.usual) if self.usual else _PATIENCE


def make_agent(assistance: Assistance, link: Link, task: RecipeTask) -> Agent:
    """What the agent's process does."""
    return Agent(link, task, assistance)


class Agent:
    """See ``Runner``."""

    def __init__(self, link: Link, task: RecipeTask, assistance: Assistance) -> None:
        self._link, self._assistance = link, assistance
        self._layout: RowLayout | None = None
        self._row = 0
        self._stages = task.stages(link.arena, link.board)
        self._program = task.compile()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._trying = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._rests: dict[str, float] = {}
        self._late: dict[str, int] = {}
        """By helper: how often it was late, one time after the other."""
        self._mistrusted: dict[str, float] = {}
        """By helper: until when nothing is to be written by it."""
        self._no_nixl: str | None = None
        """Why there is no NIXL here, empty if there is; None: it was not tried."""
        self._undone: list[tuple[Order, Claim]] = []
        self._numbers = itertools.count(1)
        self._pace = Pace(_FIRST if environment.paced() else _MOST, _MOST)
        self._in_flight = 0
        self._stopped = False
        self._said: set[str] = set()
        self._wanting = Wanting(link.board, assistance.workers)
        self._looked = 0.0
        if task.layout is not None:
            self._lay_out(task.layout)

    def _lay_out(self, layout: RowLayout) -> None:
        self._layout, self._row = layout, sum(one.nbytes for one in layout.fields)

    def on_command(self, command: Command) -> None:
        """See ``Runner``."""
        if isinstance(command, Stop):
            with self._changed:
                self._stopped = True
                self._changed.notify_all()

    def serve(self) -> None:
        """See ``Runner``."""
        while not self._stopped:
            self._look_around()
            order = self._next_undone()
            if order is not None:
                self._make(*order)
                continue
            line = self._free_line()
            with self._lock:
                lines = [one for one in self._lines.values() if one.ready and not one.over]
            helped = any(one.usual for one in lines)
            yields = self._wanting.decide(there=bool(lines), helped=helped)
            to_try = not helped and any(one.untried for one in lines)
            if (self._layout is None or to_try) and self._wanting.now():
                self._make_first()
                continue
            if line is None or not (yields or self._wanting.now()):
                with self._changed:
                    self._changed.wait(_POLL if self._lines else _IDLE)
                continue
            claim = self._link.board.claim(self._link.claimer)
            if claim is not None:
                self._wanting.took()
                self._entrust(line, claim)
            else:  # (what is there has been claimed by workers that reached farther)
                with self._changed:
                    self._changed.wait(_POLL)
        self._wanting.close()
        lines = list(self._lines.values())
        for line in lines:
            if line.wire is not None:
                line.wire.shut()
        for line in lines:  # (what NIXL has has to be let go before this process ends)
            if line.thread is not None:
                line.thread.join(_LEAVING)
        self._stages.close()

    def _make_first(self) -> None:
        """Make an order: to see how rows look, since where code of the user's makes them, orders say so; and to try
        helpers with it."""
        claim = self._link.board.claim(self._link.claimer)
        if claim is None:
            with self._changed:
                self._changed.wait(_POLL)
            return
        self._wanting.took()
        order = self._stages.load(claim)
        if order.layout:
            self._lay_out(pickle.loads(order.layout))
        if order.alone:
            self._link.board.mark_alone(claim)
        else:
            self._try_with(order)
        self._make(order, claim)

    # -- orders ----------------------------------------------------------------------------------------------------

    def _entrust(self, line: _Line, claim: Claim) -> None:
        """Have a helper make an order."""
        order = self._stages.load(claim)
        count = len(order.indices) // 8
        self._wanting.help.saw(order.rows, count)
        if order.alone:
            # It may be what killed a worker: nothing is to be lost with it.
            while any(one.pending for one in self._lines.values()) and not self._stopped:
                with self._changed:
                    self._changed.wait(_IDLE)
                self._look_around()
            self._link.board.mark_alone(claim)
            self._make(order, claim)
            return
        if not self._grant(line, order, claim):
            with self._lock:
                self._undone.append((order, claim))
        self._try_with(order)

    def _try_with(self, order: Order) -> None:
        """Have those helpers make an order of whom nothing is known. What they send is of no use but for that."""
        with self._lock:
            untried = [one for one in self._lines.values() if one.untried]
        for line in untried[:_TRIALS]:
            self._grant(line, order, None)

    def _grant(self, line: _Line, order: Order, claim: Claim | None) -> bool:
        """Room for an order's rows; whether the helper is still there. ``claim``: None where it is a trial."""
        number, nbytes = next(self._numbers), len(order.indices) // 8 * self._row
        place, land = self._room(line, number, nbytes)
        grant = Grant(
            number, self._assistance.recipe, order.seed, order.epoch, order.step, order.indices, order.words, place
        )  # fmt: skip
        with self._lock:
            if line.over or line.wire is None:
                return False
            if claim is None:
                nbytes = 0  # (it may never come: others are not to wait for its room)
            transfers = 1 + sum(len(one.pending) for one in self._lines.values())
            self._in_flight += nbytes
            line.pending[number] = _Pending(
                order, claim, time.monotonic(), nbytes, self._in_flight, transfers
            )
            connection = line.wire
        try:
            if land is not None:
                connection.send(encode(land), seconds=_TAKEN)
            connection.send(encode(grant), seconds=_TAKEN)
        except TROUBLE:
            connection.shut()  # (the thread that receives gives back what was granted)
        return True

    def _room(self, line: _Line, number: int, nbytes: int) -> tuple[int, Land | None]:
        """Where a helper is to put rows."""
        if line.receiving is None:
            return BESIDE, None
        try:
            return line.receiving.room(number, nbytes)
        except NoNixl as error:
            self._do_without(str(error))
            return BESIDE, None

    def _do_without(self, why: str) -> None:
        """There is no NIXL here: say so once."""
        if not self._no_nixl:
            self._no_nixl = why
            warnings.warn(f"rows from other nodes come over TLS: {why}", RuntimeWarning, stacklevel=2)

    def _receiving(self, line: _Line, connection: Wire) -> Receiving:
        """How a helper's rows are received."""
        if line.helper.nixl and self._mistrusted.get(line.key, 0.0) <= time.monotonic():
            with self._trying:
                if self._no_nixl is None:
                    self._no_nixl = ""
                    if missing := try_nixl():
                        self._do_without(missing)
            if not self._no_nixl:
                return NixlReceiving(connection)
        return WireReceiving(connection)

    def _next_undone(self) -> tuple[Order, Claim] | None:
        with self._lock:
            return self._undone.pop(0) if self._undone else None

    def _make(self, order: Order, claim: Claim) -> None:
        """Make the rows here."""
        done = self._stages.prepare(self._stages.fetch(order, claim), self._program)
        self._link.send(done)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _free_line(self) -> _Line | None:
        """The helper that is likely to be done first, if bytes may come."""
        with self._lock:
            if not self._pace.may_go(self._wanting.help.rows * self._row, self._in_flight):
                return None
            lines = [one for one in self._lines.values() if one.usual and not one.over]
            place = choose([(len(one.pending), one.usual) for one in lines])
            return None if place is None else lines[place]

    def _look_around(self) -> None:
        """Connect to helpers that have come; wait no more for those that are gone or do not answer."""
        now = time.monotonic()
        if now < self._looked + _IDLE:
            return
        self._looked = now
        members = self._members() if self._layout is not None else None
        if members is None:
            return
        wanted: dict[str, tuple[Node, Helper]] = {}
        for node in members.view.nodes:
            if node.id != members.node:
                wanted.update({f"{node.host}:{one.port}": (node, one) for one in node.helpers})
        with self._lock:
            for key, line in self._lines.items():
                late = [one for one in line.pending.values() if now - one.since > line.patience]
                if line.wire is not None and (key not in wanted or late):
                    line.late = bool(late)
                    line.wire.shut()
            new = [key for key in wanted if key not in self._lines and self._rests.get(key, 0.0) <= now]
            for key in new:
                line = self._lines[key] = _Line(key, *wanted[key])
                line.thread = threading.Thread(
                    target=self._attend, args=(line, members), name="headrace-agent", daemon=True
                )
                line.thread.start()

    def _members(self) -> Members | None:
        try:
            return members_of(self._assistance.pool.path, self._assistance.pool.rail)
        except TROUBLE:
            return None

    def _attend(self, line: _Line, members: Members) -> None:
        """A helper's thread: from connecting to the end."""
        told, layout = self._assistance, self._layout
        assert layout is not None
        rest = _AGAIN
        try:
            helper = line.helper
            connection = members.dialer.connect(line.node, helper.port, helper.certificate, GREETING)
            with self._lock:
                line.wire = connection
            greet(connection, members.token)
            fields = json.dumps(layout.describe()).encode()
            teach = Teach(
                told.recipe, told.pool.dataset, told.pool.definition, told.definition, told.decoded, fields, told.key
            )  # fmt: skip
            try:
                reply, _ = ask(connection, teach, _LISTING)
            except HostRefused as error:
                rest = _REFUSED
                self._tell(line.node, str(error))
                raise
            if not isinstance(reply, Opened) or reply.samples != self._row:
                raise ProtocolError(f"{connection.name} makes other rows")
            receiving = self._receiving(line, connection)
            with self._changed:
                line.receiving, line.ready = receiving, True
                self._changed.notify_all()
            rest = 0.5
            while True:
                self._receive(line, connection, receiving)
        except TROUBLE:
            pass
        finally:
            with self._changed:
                line.over = True
                self._undone += [
                    (one.order, one.claim) for one in line.pending.values() if one.claim is not None
                ]
                self._in_flight -= sum(one.nbytes for one in line.pending.values())
                line.pending.clear()
                self._lines.pop(line.key, None)
                if line.late:
                    times = 0 if line.done >= _GOOD else self._late.get(line.key, 0)
                    self._late[line.key] = times + 1
                    rest = min(_LONGEST, _AGAIN * 2**times)
                self._rests[line.key] = time.monotonic() + rest
                if (
                    isinstance(line.receiving, NixlReceiving)
                    and line.receiving.tried
                    and not line.receiving.proved
                ):
                    self._mistrusted[line.key] = time.monotonic() + _MISTRUST
                self._changed.notify_all()
            if line.receiving is not None:
                line.receiving.close()
            elif line.wire is not None:
                line.wire.close()

    def _tell(self, node: Node, reason: str) -> None:
        """A helper prepares no rows: say why, once, however many say it."""
        if reason not in self._said:
            self._said.add(reason)
            text = f"node {node.id} ({node.host}) prepares no rows for this job: {reason}"
            warnings.warn(text, stacklevel=2)

    def _receive(self, line: _Line, connection: Wire, receiving: Receiving) -> None:
        """The rows of one grant, into the slot that they are granted."""
        message, nbytes = connection.receive_message(seconds=None, body_limit=BODY_LIMIT)
        reply = decode_reply(message)
        if isinstance(reply, Refused):
            raise ProtocolError(reply.reason)
        # (it stays among the pending ones until all is here: whoever dies meanwhile, the rows are made again)
        pending = line.pending.get(reply.number) if isinstance(reply, Rows) else None
        if not isinstance(reply, Rows) or pending is None:
            raise ProtocolError(f"{connection.name} sent rows that nobody granted room for")
        order = pending.order
        assert self._layout is not None
        into = (
            _rows_of(self._layout, self._link, order) if pending.claim is not None else self._nowhere(order)
        )
        receiving.take(reply.number, nbytes, into, _PATIENCE)
        count = len(order.indices) // 8
        faults = [(row, reason, trace) for row, reason, trace in reply.faults if 0 <= row < count]
        now = time.monotonic()
        took = now - pending.since
        with self._changed:
            del line.pending[reply.number]
            self._in_flight -= pending.nbytes
            line.usual += (0.2 if line.usual else 1.0) * (took - line.usual)
            line.done += 1
            if pending.claim is not None:
                on_the_way = max(0.0, took - reply.held)
                self._pace.arrived(pending.nbytes, on_the_way, pending.flight, pending.transfers)
            self._changed.notify_all()
        if pending.claim is None:
            return
        done = OrderDone(order.id, faults, spent=Spent(helped=count))
        self._stages.store.finished(order, done)
        self._link.send(done)

    def _nowhere(self, order: Order) -> list[memoryview]:
        """Memory for the rows of a trial."""
        assert self._layout is not None
        count = len(order.indices) // 8
        return [memoryview(bytearray(count * one.nbytes)) for one in self._layout.fields]


def _rows_of(layout: RowLayout, link: Link, order: Order) -> list[memoryview]:
    """Where the rows of an order stand, field by field."""
    buffer = memoryview(link.arena.map(order.slot_offset, order.slot_bytes))
    stop = order.start + len(order.indices) // 8
    out = []
    for one, offset in zip(layout.fields, layout.offsets(order.rows), strict=True):
        out.append(buffer[offset + order.start * one.nbytes : offset + stop * one.nbytes])
    return out
