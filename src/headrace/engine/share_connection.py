"""A worker's connection to the shared host: made, kept, and made again when the host was replaced.

It is the worker's own, so that what it publishes is open to all jobs at once, however long its own job is busy
elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import msgspec

from headrace.channel.asking import greet
from headrace.channel.channel import Channel, Dial, receive_within, send_within
from headrace.coordinate.messages import Order, encoder
from headrace.coordinate.protocol import PROTOCOL, Fill, Finished, Hello, Idle, Welcome, decode_reply
from headrace.core.errors import HostUnavailable, ProtocolError

_GREETING = 10.0
"""Seconds for a host to take a worker in."""
_FAREWELL = 2.0
"""Seconds for the thread to end; one that still looks for a host ends a little later."""


class ShareConnection:
    """Reports go out from any thread; what the host says comes in a thread of its own."""

    def __init__(
        self,
        dial: Dial,
        token: str,
        patience: float,
        on_memory: Callable[[Welcome, int | None], None],
        on_fill: Callable[[Order], None],
    ) -> None:
        """``on_memory`` is told of each host that takes this worker in, with a descriptor of its memory, open during
        the call; None if it shares none. ``on_fill``: what it would like to be prepared."""
        self._dial, self._token, self._patience = dial, token, patience
        self._on_memory, self._on_fill = on_memory, on_fill
        self._channel: Channel | None = None
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-share", daemon=True)

    def start(self) -> None:
        """Look for a host from now on."""
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether there is a host."""
        return self._channel is not None

    def _run(self) -> None:
        pause = 0.02
        while not self._closed.is_set():
            channel = self._connect()
            if channel is None:
                self._closed.wait(pause)
                pause = min(0.5, pause * 1.5)
                continue
            pause = 0.02
            with contextlib.suppress(OSError, ProtocolError, msgspec.MsgspecError):
                self._listen(channel)
            with self._sending:
                self._channel = None
            channel.close()

    def _connect(self) -> Channel | None:
        try:
            channel = self._dial(_GREETING)
        except (OSError, ProtocolError):  # there is none, or no descriptor is left, for now
            return None
        try:
            welcome, attached = greet(channel, Hello(PROTOCOL, "worker", os.getpid(), self._token), _GREETING)
            try:
                # First the connection, then the memory: an order that has found its memory is soon to be reported.
                with self._sending:
                    if self._closed.is_set():
                        raise ProtocolError("this worker has left")
                    self._channel = channel
                self._on_memory(welcome, None if attached is None else attached.memory())
            finally:
                if attached is not None:
                    attached.close()
        except (OSError, HostUnavailable, ProtocolError):
            with self._sending:
                self._channel = None
            channel.close()
            return None
        return channel

    def _listen(self, channel: Channel) -> None:
        while True:
            received = receive_within(channel, None)
            if received is None:
                return
            data, attached = received
            if attached is not None:
                attached.close()
            reply = decode_reply(data)
            if isinstance(reply, Fill):
                self._on_fill(reply.order)

    def send(self, event: Finished | Idle) -> None:
        """Tell the host, if there is one. No thread stands still for longer than its patience because a host does."""
        data = encoder.encode(event)
        with self._sending:
            if self._channel is not None:
                try:
                    send_within(self._channel, self._patience, data)
                except OSError:
                    # What it was not told it would wait for: it has to see that this worker is gone.
                    self._channel.shut()
                    self._channel = None

    def close(self) -> None:
        """Leave."""
        self._closed.set()
        with self._sending:
            if self._channel is not None:
                self._channel.shut()
        if self._thread is not threading.current_thread():
            self._thread.join(_FAREWELL)
