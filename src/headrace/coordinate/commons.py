"""The commons: what a shared host knows and decides. Which job gets which samples, from where, and what is kept.

Events in, replies out: ``handle``. There is no I/O here, no thread, and no clock but the time that comes with each
event, so the same events give the same replies (``event_log``). All that is known is in one ``State``; each decider
beside it answers one question, and checks what it is told before it changes anything.

Each sample of a draw enters at the most prepared form there is for its job. What has to be prepared is prepared by
the job that drew it, and kept as far as that pays for the others; a sample that somebody is preparing is waited for
rather than prepared twice, but never for longer than ``State.patience``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.coordinate.admission import Admission
from headrace.coordinate.budgets import Budgets
from headrace.coordinate.drawing import Drawing
from headrace.coordinate.entering import Entering
from headrace.coordinate.events import (
    HOST,
    Answer,
    Asked,
    Began,
    Buried,
    Came,
    Done,
    Emptied,
    Event,
    Filled,
    GiveBack,
    Gone,
    Named,
    Neared,
    Ticked,
    Tidied,
    WasIdle,
)
from headrace.coordinate.filling import Filling
from headrace.coordinate.finishing import Finishing
from headrace.coordinate.futures import Futures
from headrace.coordinate.instances import Instances
from headrace.coordinate.joining import Joining
from headrace.coordinate.nearby import Nearby
from headrace.coordinate.outlook import Outlook
from headrace.coordinate.passing_on import PassingOn
from headrace.coordinate.protocol import Fill
from headrace.coordinate.state import State
from headrace.coordinate.stretches import Stretches
from headrace.coordinate.universe import Universe
from headrace.coordinate.upkeep import Upkeep
from headrace.coordinate.waiting import Waiting


class Commons:
    """All jobs of a shared host, its cache, and their draws."""

    def __init__(
        self, *, instance: int, nonce: int, span: int, cpus: float = 0.0, universe: Universe | None = None
    ) -> None:
        """``span``: addresses of the cache. ``cpus``: of the machine; 0: the cache is not divided by what pays.

        ``universe``: samples that are known from the start; several hosts on paper may have one in common.
        """
        state = self.state = State(instance=instance, nonce=nonce, span=span, universe=universe)
        state.shared_split.cpus = cpus
        passing_on, self.futures = PassingOn(state), Futures(state)
        entering, admission = Entering(state), Admission(state, passing_on, self.futures)
        instances, budgets = Instances(state), Budgets(state)
        waiting = Waiting(state, entering, admission)
        finishing = Finishing(state, admission, waiting)
        self._nearby = Nearby(state)
        self._joining = Joining(state, instances, finishing, budgets, self.futures, self._nearby)
        outlook = Outlook(state, passing_on, self._nearby)
        stretches = Stretches(state, outlook)
        self._drawing = Drawing(
            state, outlook, entering, admission, waiting, instances, stretches, self.futures
        )
        self._filling = Filling(state, entering, admission, finishing, passing_on, self.futures, self._nearby)
        self._finishing, self._waiting, self._budgets = finishing, waiting, budgets
        self.upkeep = Upkeep(state)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Came: self._came,
            Named: self._named,
            Began: lambda event: self._drawing.begin(event.member, event.begin, event.progress),
            Asked: self._asked,
            Done: self._done,
            Neared: self._neared,
            WasIdle: self._was_idle,
            Gone: self._gone,
            Buried: self._buried,
            Ticked: self._ticked,
            Tidied: self._tidied,
            Emptied: lambda event: self.state.pool.set_budget(0, None),
            Filled: self._filled,
        }

    def handle(self, event: Event, now: float) -> list[Answer]:
        """Something has happened: whom to tell what.

        Raises ProtocolError, and changes nothing, where what a job or a worker says cannot be true.
        """
        state = self.state
        state.now = now
        self._handlers[type(event)](event)
        answers, state.out = state.out, []
        return answers

    def identity_bytes(self, member: int) -> int:
        """Bytes of the identities that a rank has to send."""
        return self._joining.identity_bytes(member)

    def progress_limit(self, member: int) -> int:
        """Bytes of what a rank can know of an epoch, at most."""
        return self._joining.progress_limit(member)

    def has_lost_near(self, dataset: str, now: float) -> bool:
        """Whether what was told of what is near has to be told again."""
        return self._nearby.has_lost(dataset, now)

    def _came(self, event: Came) -> None:
        reply = self._joining.join(event.member, event.token, event.pid, event.join)
        self.state.out.append((event.member, reply))

    def _named(self, event: Named) -> None:
        self.state.out.append((event.member, self._joining.identities(event.member, event.identities)))

    def _asked(self, event: Asked) -> None:
        self._drawing.check(event.member, event.indices, event.most)
        if event.over:
            self._finishing.over(event.member, event.over, event.spent)
            self._drawing.go_on()
        self._drawing.ask(event.member, event.indices, event.most)

    def _done(self, event: Done) -> None:
        self._finishing.finished(event.member, event.finished)
        self._drawing.go_on()

    def _neared(self, event: Neared) -> None:
        self._nearby.hear(event)
        self._drawing.go_on()

    def _was_idle(self, event: WasIdle) -> None:
        order = self._filling.fill(event.member)
        if order is not None:
            self.state.out.append((event.member, Fill(order)))

    def _gone(self, event: Gone) -> None:
        self._joining.gone(event.member)
        self._drawing.go_on()

    def _buried(self, event: Buried) -> None:
        self._joining.buried(event.member)
        self._drawing.go_on()

    def _ticked(self, event: Ticked) -> None:
        self.state.shared_split.workers = event.workers
        self._waiting.lose_patience()
        self._drawing.go_on()
        self._budgets.look()

    def _tidied(self, event: Tidied) -> None:
        self.upkeep.look()
        self._nearby.look()

    def _filled(self, event: Filled) -> None:
        ranges = self.state.pool.loose(event.resident)
        if ranges:
            self.state.out.append((HOST, GiveBack(ranges)))
