"""A worker's pipeline for row orders: one thread claims and fetches, others prepare.

Where storage is slower than preparing, several threads fetch, each an order of its own, and one at a time claims
(``Gate``). Orders are prepared as they are complete. The main thread prepares too, so user code runs where it expects
to. How many threads prepare is the host's to say (``Threads``); whether user code can use more than one is measured
here and reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.coordinate.messages import FILLED, Command, Failed, Order, OrderDone, Stop, Threads
from headrace.core.memory import thread_room
from headrace.engine.ahead import AheadCopies
from headrace.engine.fetching import Fetched
from headrace.engine.gate import Gate
from headrace.engine.gil import GilProbe
from headrace.engine.link import Link
from headrace.engine.queues import Closed, TimedQueue
from headrace.engine.reader import unavailable
from headrace.engine.rows import RowStages
from headrace.engine.seat import Seat, Turn
from headrace.engine.share import SharedStore
from headrace.engine.store import Store
from headrace.engine.worker import RemoteError
from headrace.planning import IdlePause, fetched_ahead
from headrace.planning.helping import Few
from headrace.planning.idling import SOON
from headrace.planning.window import ORDERS
from headrace.recipes.program import Program

_MEASURE = 0.5
"""Seconds of user code over which its hold on the interpreter lock is measured."""
_PARKED = 0.05
"""Seconds after which a thread that is not needed looks again."""


class RowPipeline:
    """Runs row orders until told to stop."""

    def __init__(
        self,
        link: Link,
        stages: RowStages,
        compile_program: Callable[[], Program],
        threads: int,
        measure: bool,
        store: Store | None = None,
        gate: Gate | None = None,
        seat: Seat | None = None,
        ahead: AheadCopies | None = None,
    ) -> None:
        """``measure``: there is user code; find out whether it holds the interpreter lock. ``store``: where
        idle time is offered, if it is wanted there. ``gate``: that of the stages. ``seat``: the rank's among those
        who prepare on this machine. ``ahead``: what is copied while there is no order."""
        self._link, self._ahead = link, ahead
        self._stages = stages
        self._compile = compile_program
        self._wanted = threads
        self._measure = measure
        self._seat = seat
        self._numbers = {0}
        """Of the threads that prepare; the first is the main thread's."""
        self._queue: TimedQueue[Fetched] = TimedQueue(fetched_ahead(threads))
        self._lock = threading.Lock()
        self._gate = Gate() if gate is None else gate
        self._gate.on_room = self._fetch_more
        self._fetchers = 0
        self._most_fetchers = ORDERS
        self._few = Few()
        self._handing = threading.Lock()
        self._under_way = 0
        """Orders that were claimed and are not finished."""
        self._ended = threading.Condition()
        self._layout = b""
        """How rows lie, as the last order said: fills come from elsewhere and cannot know."""
        self._shared = store if isinstance(store, SharedStore) else None
        if self._shared is not None:
            self._shared.on_fill = self._fill
        if ahead is not None:
            link.pause = IdlePause(SOON)
            ahead.report = lambda spent: link.send(OrderDone(FILLED, [], spent=spent))
        self._fills = self._shared is not None or ahead is not None
        """There may be something to do between orders."""

    def on_command(self, command: Command) -> None:
        """More or fewer preparing threads; fewer take effect as orders end. Or the end."""
        if isinstance(command, Threads):
            self._wanted = command.count
            self._queue.resize(fetched_ahead(command.count))
            self._staff()
        elif isinstance(command, Stop):
            # Nobody sleeps out a pause, or waits for storage.
            self._gate.stop()
            self._queue.close()

    def _staff(self) -> None:
        with self._lock:
            while len(self._numbers) < self._wanted and thread_room(1):
                number = min(set(range(len(self._numbers) + 1)) - self._numbers)
                try:
                    threading.Thread(
                        target=self._extra, args=(number,), name="headrace-prepare", daemon=True
                    ).start()
                except RuntimeError:  # no more may be started; those that are there do the work
                    break
                self._numbers.add(number)

    def serve(self) -> None:
        """Work until stopped; call from the worker's main thread."""
        self._fetchers = 1
        threading.Thread(target=self._fetch, name="headrace-claim", daemon=True).start()
        self._staff()
        self._prepare(0)
        if self._ahead is not None:
            self._ahead.close()

    def _extra(self, number: int) -> None:
        try:
            self._prepare(number)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A thread cannot go on, so neither can the worker: its orders would never be finished."""
        where = f"in DataLoader worker process {self._link.worker}"
        self._link.send(Failed(RemoteError(error, where).dumps()))

    def _leaves(self, number: int, turn: Turn | None) -> bool:
        """Whether a thread is one too many. It waits here as long as it is only so for now."""
        if number == 0:
            return False
        while self._seat is not None and turn is not None and not self._seat.may_prepare(number):
            if self._gate.stopped or len(self._numbers) > self._wanted:
                break
            turn.rest()
            time.sleep(_PARKED)
        with self._lock:
            if len(self._numbers) > max(1, self._wanted):
                self._numbers.discard(number)
                return True
        return False

    def _fetch_more(self) -> None:
        """There is room for another order, and all threads that fetch are busy with theirs."""
        with self._lock:
            if self._fetchers >= self._most_fetchers or not thread_room(1):
                return
            try:
                threading.Thread(target=self._fetch, name="headrace-claim", daemon=True).start()
            except RuntimeError:
                self._most_fetchers = self._fetchers
            else:
                self._fetchers += 1

    def _fetch(self) -> None:
        room = 0.0
        try:
            while self._gate.enter():
                claim = self._link.claim(
                    self._idle if self._fills else None, self._has_enough, self._few.skip
                )
                if claim is None:
                    break
                begun = time.monotonic()
                order = self._stages.load(claim)
                self._layout = order.layout
                if self._ahead is not None:
                    self._ahead.claimed(order)
                    self._link.pause.given()
                if order.alone:
                    self._finish_all()
                    self._link.board.mark_alone(claim)
                with self._ended:
                    self._under_way += 1
                if order.alone:
                    self._gate.begin()
                else:
                    self._gate.begin_and_leave()  # others may claim, if this takes long
                try:
                    fetched = self._stages.fetch(order, claim)
                    # Of the order before: this one's is not known before it is gone.
                    fetched.spent.wait_room = room
                    fetched.begun = begun
                    room = self._hand_on(fetched)
                finally:
                    self._gate.end(enters=True)
                if order.alone:
                    self._finish_all()
                    self._gate.leave()
        except Closed:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            self._gate.stop()
            self._queue.close()

    def _has_enough(self, seconds: float) -> bool:
        """Whether others may have the next order, if there are any; waits for so long at most until not. (An order
        may be done in a thousandth of a second: whoever slept meanwhile would have nothing to do.)"""
        with self._ended:
            return not self._ended.wait_for(
                lambda: not self._few.enough(self._under_way, self._wanted), seconds
            )

    def _hand_on(self, fetched: Fetched) -> float:
        """To those who prepare; the seconds for which there was no room there, counted once however many wait."""
        if self._queue.offer(fetched):
            return 0.0
        with self._gate.handing(), self._handing:
            return self._queue.put(fetched)

    def _look(self) -> None:
        """Those who prepare have waited for a while: others may come sooner than what is being read."""
        self._gate.starving()
        own = self._gate.oldest_own()
        if own is not None:
            seconds = time.monotonic() - own.begun
            if seconds > self._stages.patience and not self._gate.stopped:
                self._gate.stop()
                self._fail(unavailable(own.name(), seconds))

    def _idle(self) -> None:
        """There was no order for a while: others may have something to do."""
        if self._under_way:
            return
        if self._shared is not None:
            self._shared.idle()
        if self._ahead is not None:
            self._ahead.idle()

    def _fill(self, order: Order) -> None:
        """Prepare something into the shared cache."""
        self._link.pause.given()
        order.layout = self._layout
        with self._ended:
            self._under_way += 1
        try:
            with self._gate.order():
                self._hand_on(self._stages.fetch(order, None))
        except (Closed, RuntimeError):
            self._finish_one()
            assert self._shared is not None  # this worker is ending; others will fill
            self._shared.finished(order, OrderDone(FILLED, []))

    def _finish_all(self) -> None:
        """Wait until every order that was claimed here is finished."""
        with self._ended:
            self._ended.wait_for(lambda: self._under_way == 0)

    def _finish_one(self) -> None:
        with self._ended:
            self._under_way -= 1
            self._ended.notify_all()

    def _prepare(self, number: int) -> None:
        program = self._compile()
        measured: GilProbe | None = GilProbe() if self._measure else None
        turn = None if self._seat is None else self._seat.turn(lambda: self._gate.stopped)
        rest = None if turn is None else turn.rest
        while not self._leaves(number, turn):
            try:
                fetched, waited = self._queue.get(self._look, rest)
            except Closed:
                break
            if turn is not None:
                fetched.spent.wait_turn = turn.begin(fetched.order.sequence)
            # Waiting longer than the fetch took was waiting for an order, which is no fault of storage.
            fetched.spent.wait_fetch = min(waited, fetched.took)
            fetched.spent.wait_order = waited - fetched.spent.wait_fetch
            begun = time.monotonic()
            done = self._stages.prepare(fetched, program, measured)
            if fetched.claim is not None:  # (and no fill, for which nobody waits)
                now = time.monotonic()
                self._few.saw(fetched.took, now - begun, now - fetched.begun)
                rows = len(fetched.order.indices) // 8
                self._link.board.made((done.spent.cpu + done.spent.fetch_cpu) / max(1, rows))
            if turn is not None:
                following = self._queue.peek()
                turn.pass_on(None if following is None else following.order.sequence)
            if measured is not None and measured.seconds > _MEASURE:
                done.spent.gil_held = measured.held
                measured = None
            done.took = fetched.took
            if fetched.order.fill:
                done = OrderDone(FILLED, [], spent=done.spent)
            self._link.send(done)
            self._finish_one()
        if rest is not None:
            rest()
