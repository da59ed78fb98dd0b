"""Whether an agent takes orders, and what workers are told of it: where the board, the clock and deciders meet."""

from __future__ import annotations

import time

from headrace.engine.board import Board
from headrace.planning.helping import Division, Help, Way

_LATELY = 1.0
"""Seconds for which help is taken to be wanted still, and for which workers do as told unless told again."""


class Wanting:
    """What one rank wants of helpers."""

    def __init__(self, board: Board, workers: int) -> None:
        """``workers``: processes of the rank's own."""
        self._board = board
        self.help = Help(workers)
        self._division, self._way, self._told = Division(), Way.BOTH, 0.0
        self._shared = 0.0
        """When workers were last told that others take orders, too."""
        self._taken = 0
        """Orders taken since."""
        self._wanted = 0.0
        """When help was last wanted."""

    def now(self) -> bool:
        """Whether more orders wait than this rank's own workers get to."""
        return self.help.wanted(self._board.backlog())

    def took(self) -> None:
        """An order was claimed, for somebody else to make."""
        self._taken += 1

    def decide(self, *, there: bool, helped: bool, receiving: float = 0.0) -> Way:
        """Who makes this rank's orders, just now; its workers are told. ``there``: there are helpers; ``helped``: and
        some of them have shown what they do; ``receiving``: CPU seconds that a row of theirs takes here."""
        now = time.monotonic()
        if self.now():
            self._wanted = now
        way = self._division.look(
            now,
            self._board.claimed,
            wanted=now - self._wanted < _LATELY,
            helped=helped,
            making=self._board.making,
            receiving=receiving,
        )
        others = way is Way.OTHERS
        if way is not self._way or (others and now > self._told + _LATELY / 2):
            self._board.leave_orders(_LATELY if others else 0.0)
            self._way, self._told = way, now
        if there and now > self._shared + _LATELY / 2:
            # (what a worker has claimed long before it gets to it, batches wait for that others are done with; and it
            # is not seen that help is wanted, which counts where none is given just now, too)
            self._board.share_orders(_LATELY, self._taken / (now - self._shared) if self._shared else 0.0)
            self._shared, self._taken = now, 0
        return way

    def close(self) -> None:
        """Nobody takes orders any more but the workers."""
        self._board.leave_orders(0.0)
        self._board.share_orders(0.0)
