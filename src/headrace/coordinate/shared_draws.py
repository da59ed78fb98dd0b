"""The batches of one epoch from a shared host, as a coordinator asks for them."""

from __future__ import annotations

from typing import Protocol

from headrace.coordinate.coordinator import LATER, Draws, Later
from headrace.core.bits import Bits
from headrace.sampling import Draw, KnownOrder


class Client(Protocol):
    """Who asks the host: ``DrawClient``, or a connection around one."""

    def begin(
        self, epoch: int, *, explicit: bool, given: Bits | None = None, known: KnownOrder | None = None
    ) -> None: ...
    @property
    def wants(self) -> int: ...
    def ask(self, own: Draw | None = None) -> None: ...
    def take(self) -> Draw | None: ...
    @property
    def over(self) -> bool: ...


class SharedDraws:
    """The batches of one epoch, as the shared host draws them; or the job's own, looked up there."""

    def __init__(
        self, client: Client, *, seed: int, epoch: int, given: Bits | None = None, own: Draws | None = None
    ) -> None:
        """``given``: samples that were delivered before. ``own``: the job's own draws, if the order is given."""
        self._client, self.seed = client, seed
        self._epoch, self._given, self.own = epoch, given, own
        self._begun = self._ended = False
        self._first: Draw | None = None
        """The first of the job's own, which says what will follow."""
        self._asked = self._taken = 0

    def draw(self) -> Draw | Later | None:
        """See ``Draws``."""
        client = self._client
        if not self._begun:
            self._begun = True
            self._first = self._own()
            known = None if self._first is None else self._first.known
            client.begin(self._epoch, explicit=self.own is not None, given=self._given, known=known)
        for _ in range(0 if self._ended else client.wants):
            self._ask()
        found = client.take()
        if found is not None:
            self._taken += 1
            return found
        if client.over or (self._ended and self._taken == self._asked):
            return None
        return LATER

    def _ask(self) -> None:
        if self.own is None:
            self._client.ask()
            return
        drawn, self._first = self._first or self._own(), None
        if drawn is not None:
            self._asked += 1
            self._client.ask(drawn)

    def _own(self) -> Draw | None:
        """The next of the job's own draws; None: there is none, or the host draws."""
        if self.own is None or self._ended:
            return None
        drawn = self.own.draw()
        self._ended = drawn is None
        assert drawn is None or isinstance(drawn, Draw)
        return drawn
