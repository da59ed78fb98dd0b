"""A worker's link to its host: a channel for events and commands, the board for orders, the arena for bytes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from headrace.cache.arena import Arena
from headrace.channel.channel import REPLY_LIMIT, Channel, send_within, wait
from headrace.coordinate.messages import Command, Event, OrderDone, Stop, decode_command, encoder
from headrace.core.errors import ProtocolError
from headrace.engine.board import Board, Claim
from headrace.planning import IdlePause

LARGEST = 64 * 1024
"""Bytes of one message; larger things go through the arena."""

_PARENT_CHECK = 2.0
_LEFT = 0.02
"""Seconds between looks whether orders are still to be left to others."""


class Link:
    """What a worker holds of its host. Made by the host, handed to the worker as it starts."""

    def __init__(self, worker: int, claimer: int, arena: Arena, board: Board, channel: Channel) -> None:
        self.worker = worker
        self.claimer = claimer
        """Tells a worker from the one that it replaced."""
        self.arena = arena
        self.board = board
        self.channel = channel
        """Threads of the worker send at the same time: one of one machine, as all of a link is."""
        self.parent = os.getpid()
        self.stopped = False
        self.pause = IdlePause()
        """How long ``claim`` waits for an order before it calls ``idle``."""

    def attach(self) -> None:
        """First thing in the worker."""
        self.board.attach()
        # Under forkserver the parent is the fork server, which outlives the job; the link's end must do there.
        self.watches_parent = os.getppid() == self.parent

    def watch(self, on_command: Callable[[Command], None]) -> None:
        """Listen for commands in a thread of its own; leave at once when the host is gone."""
        threading.Thread(target=self._listen, args=(on_command,), name="headrace-link", daemon=True).start()

    def _listen(self, on_command: Callable[[Command], None]) -> None:
        while True:
            if wait(self.channel.fileno(), _PARENT_CHECK):
                try:
                    received = self.channel.receive(REPLY_LIMIT)
                except BlockingIOError:
                    continue
                except (OSError, ProtocolError):
                    received = None
                if received is None:
                    os._exit(1)
                command = decode_command(received[0])
                if isinstance(command, Stop):
                    # Only once everybody knows may the wake-up go round: the last one to learn it starts it,
                    # and each that leaves passes it on.
                    self.stopped = True
                    self.board.wake(1)
                on_command(command)
            elif self.watches_parent and os.getppid() != self.parent:
                os._exit(1)

    def send(self, event: Event) -> None:
        """Tell the host. A host that is gone ends this worker."""
        if isinstance(event, OrderDone) and event.faults:
            event.faults = shortened(event.faults)
        data = encoder.encode(event)
        try:
            # (what is told of a whole batch that was collated grows with its rows)
            send_within(self.channel, None, data, limit=REPLY_LIMIT)
        except ProtocolError:
            raise ValueError(f"a worker's report of {len(data)} bytes is too large for a message") from None
        except OSError:
            os._exit(1)

    def claim(
        self, idle: Callable[[], None] | None = None, has_enough: Callable[[float], bool] = lambda seconds: False,
        skip: Callable[[float], int] | None = None,
    ) -> Claim | None:  # fmt: skip
        """The next order, waiting for one; None once stopped. ``idle`` is called while there is none. If there are
        others who take orders, too: ``has_enough`` says whether this worker leaves it to them, and waits for so long
        at most until it does not; and ``skip`` how many it leaves to them, where they take so many a second."""
        while True:
            while not self.board.wait(None if idle is None else self.pause.seconds):
                assert idle is not None
                self.pause.asked()
                idle()
            if self.stopped:
                self.board.wake(1)  # pass the wake-up on to the next thread or worker that has to stop
                return None
            if self._leaves(has_enough):
                self.board.wake(1)  # (the order may still be there, and others may have nothing to do)
                while not self.stopped and self._leaves(has_enough, _LEFT):
                    pass
                continue
            claim = self.board.claim(self.claimer, 0 if skip is None else skip(self.board.taken))
            if claim is not None:
                return claim

    def _leaves(self, has_enough: Callable[[float], bool], seconds: float = 0.0) -> bool:
        """Whether orders are left to others: all of them, or just now. Waits for so long at most until not."""
        if self.board.left:
            time.sleep(seconds)
            return True
        return self.board.shared and has_enough(seconds)


def shortened(faults: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """Faults cut to what a message holds, however many there are and however much each has to say."""
    room = LARGEST // len(faults)
    return [
        (row, reason[: max(16, room // 4)], trace[-room // 2 :] if room > 64 else "")
        for row, reason, trace in faults
    ]
