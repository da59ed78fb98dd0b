"""Channels over TCP, as small as they can be: for processes that share no machine, so nothing but bytes arrives.

A frame is the length of the message, one more than the length of what is beside it (0: nothing is), and both.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading
import time
from collections import deque

from headrace.channel.channel import LIMIT, Attached, Channel, Dial, Memory, Peer, Received, wait
from headrace.core.errors import HostUnavailable, ProtocolError

_HEAD = struct.Struct("<II")
BESIDE_LIMIT = 64 << 20
_PIECE = 1 << 20


class Bytes:
    """See ``Attached``."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, limit: int) -> bytes:
        """See ``Attached``."""
        if len(self._data) > limit:
            raise ProtocolError(f"{len(self._data)} bytes beside a message; the limit is {limit}")
        return self._data

    def memory(self) -> None:
        """See ``Attached``."""

    def close(self) -> None:
        """See ``Attached``."""


class TcpChannel:
    """See ``Channel``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose machine is gone says nothing: it is asked after 2 s, and counts as gone 3 s later.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self.sock = sock
        self._name = "{}:{}".format(*sock.getpeername()[:2])
        self._lock = threading.Lock()
        self._rest: deque[memoryview] = deque()
        """What was sent and has not left."""
        self._head = b""
        self._body = bytearray()
        self._ended = False

    @property
    def peer(self) -> Peer:
        """See ``Channel``."""
        return Peer(0, self._name)

    def fileno(self) -> int:
        """See ``Channel``."""
        return self.sock.fileno()

    def send(self, data: bytes, beside: bytes | Memory | None = None, limit: int = LIMIT) -> None:
        """See ``Channel``."""
        if not data:
            raise ValueError("a message has at least one byte")
        if len(data) > limit:
            raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {limit}")
        with self._lock:
            if not self._flush():
                raise BlockingIOError
            bytes_beside = beside if isinstance(beside, bytes) else None
            count = 0 if bytes_beside is None else len(bytes_beside) + 1
            self._rest.extend(
                memoryview(part) for part in (_HEAD.pack(len(data), count), data, bytes_beside) if part
            )
            self._flush()

    def flush(self) -> bool:
        """See ``Channel``."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        while self._rest:
            try:
                sent = self.sock.sendmsg(list(self._rest)[:8], (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            while sent:
                part = self._rest.popleft()
                if sent < len(part):
                    self._rest.appendleft(part[sent:])
                sent = max(0, sent - len(part))
        return True

    def receive(self, limit: int = LIMIT) -> Received | None:
        """See ``Channel``. Reads no further than to the end of a message, so that what is left can be waited for."""
        if self._ended:
            return None
        try:
            while len(self._head) < _HEAD.size:
                part = self.sock.recv(_HEAD.size - len(self._head))
                if not part:
                    return self._end(bool(self._head))
                self._head += part
            length, beside = _HEAD.unpack(self._head)
            if not length or length > limit or beside > BESIDE_LIMIT:
                self._ended = True
                raise ProtocolError(f"a message of {length} bytes arrived; the limit is {limit}")
            size = length + max(0, beside - 1)
            while len(self._body) < size:
                part = self.sock.recv(min(size - len(self._body), _PIECE))
                if not part:
                    return self._end(True)
                self._body += part
        except ConnectionResetError:
            return self._end(bool(self._head))
        body, self._head, self._body = self._body, b"", bytearray()
        attached: Attached | None = Bytes(bytes(body[length:])) if beside else None
        return bytes(body[:length]), attached

    def _end(self, within: bool) -> None:
        self._ended = True
        if within:
            raise ProtocolError("the connection ended within a message")

    def watch(self) -> int:
        """See ``Channel``."""
        return -1

    def end_peer(self, seconds: float) -> bool:
        """See ``Channel``."""
        return False

    def shut(self) -> None:
        """See ``Channel``."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See ``Channel``."""
        self.sock.close()


class TcpListener:
    """See ``Listener``."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._sock = socket.create_server((host, port))
        self._sock.setblocking(False)
        self.address: tuple[str, int] = self._sock.getsockname()

    def fileno(self) -> int:
        """See ``Listener``."""
        return self._sock.fileno()

    def accept(self) -> TcpChannel | None:
        """See ``Listener``."""
        while True:
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            try:
                return TcpChannel(sock)
            except OSError:  # it is gone already
                sock.close()

    def in_place(self) -> bool:
        """See ``Listener``."""
        return True

    def close(self) -> None:
        """See ``Listener``."""
        self._sock.close()


def connect(address: tuple[str, int], timeout: float) -> TcpChannel:
    """A channel to whoever listens there."""
    return TcpChannel(socket.create_connection(address, timeout))


class TcpWay:
    """A way to a host at an address; see ``Way``. It is started by somebody else."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def find_or_start(self, timeout: float) -> Channel:
        """See ``Way``."""
        deadline = time.monotonic() + timeout
        while (channel := self.connect(timeout)) is None:
            if time.monotonic() > deadline:
                raise HostUnavailable(f"nobody listens at {self._address}")
            time.sleep(0.02)
        return channel

    def connect(self, timeout: float) -> Channel | None:
        """See ``Way``."""
        try:
            return connect(self._address, timeout)
        except OSError:
            return None

    def dial(self) -> Dial:
        """See ``Way``."""
        return functools.partial(connect, self._address)

    def depose(self, channel: Channel) -> bool:
        """See ``Way``."""
        return channel.end_peer(1.0)


def pair() -> tuple[TcpChannel, TcpChannel]:
    """Both ends of a channel."""
    listener = TcpListener()
    left = connect(listener.address, 20)
    assert wait(listener.fileno(), 20)
    right = listener.accept()
    assert right is not None
    listener.close()
    return left, right
