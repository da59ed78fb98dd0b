"""A worker's link to its host: a socket for events and commands, the board for orders, the arena for bytes."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Command, Event, OrderDone, Stop, decode_command, encoder
from headrace.core.errors import ProtocolError
from headrace.engine import wire
from headrace.engine.board import Board, Claim

LARGEST = 64 * 1024
"""Bytes of one message; larger things go through the arena."""

_PARENT_CHECK = 2000
IDLE, _LONGEST = 0.03, 0.12
"""Seconds without an order after which a worker says that it has nothing to do; and where nobody had anything for it
the times before, at most."""


class Link:
    """What a worker holds of its host. Made by the host, handed to the worker as it starts."""

    def __init__(self, worker: int, ticket: int, arena: Arena, board: Board, sock: socket.socket) -> None:
        self.worker = worker
        self.ticket = ticket
        """Tells a worker from the one that it replaced."""
        self.arena = arena
        self.board = board
        self.sock = sock
        self.parent = os.getpid()
        self.stopped = False
        self.pause = IDLE
        """Seconds without an order after which ``claim`` calls ``idle``. Each call doubles them."""

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["sock"] = reduction.DupFd(self.sock.fileno())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sock = socket.socket(fileno=state["sock"].detach())

    def attach(self) -> None:
        """First thing in the worker."""
        self.board.attach()
        self.sock.setblocking(True)
        # Under forkserver the parent is the fork server, which outlives the job; the link's end must do there.
        self.watches_parent = os.getppid() == self.parent

    def watch(self, on_command: Callable[[Command], None]) -> None:
        """Listen for commands in a thread of its own; leave at once when the host is gone."""
        threading.Thread(target=self._listen, args=(on_command,), name="headrace-link", daemon=True).start()

    def _listen(self, on_command: Callable[[Command], None]) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while True:
            if poll.poll(_PARENT_CHECK):
                try:
                    data = self.sock.recv(1 << 20)
                except OSError:
                    data = b""
                if not data:
                    os._exit(1)
                command = decode_command(data)
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
            wire.send(self.sock, data, limit=wire.REPLY_LIMIT)
        except ProtocolError:
            raise ValueError(f"a worker's report of {len(data)} bytes is too large for a message") from None
        except OSError:
            os._exit(1)

    def claim(self, idle: Callable[[], None] | None = None) -> Claim | None:
        """The next order, waiting for one; None once stopped. ``idle`` is called while there is none."""
        while True:
            while not self.board.wait(None if idle is None else self.pause):
                assert idle is not None
                self.pause = min(_LONGEST, 2 * self.pause)
                idle()
            if self.stopped:
                self.board.wake(1)  # pass the wake-up on to the next thread or worker that has to stop
                return None
            claim = self.board.claim(self.ticket)
            if claim is not None:
                return claim


def shortened(faults: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    """Faults cut to what a message holds, however many there are and however much each has to say."""
    room = LARGEST // len(faults)
    return [
        (row, reason[: max(16, room // 4)], trace[-room // 2 :] if room > 64 else "")
        for row, reason, trace in faults
    ]
