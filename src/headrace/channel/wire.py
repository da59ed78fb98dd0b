"""Streams between machines: frames of a message and bytes beside it, with deadlines, over TLS or a Unix socket.

Channels (``channel``) never wait, and carry descriptors. A wire waits, with a deadline for everything, and carries
megabytes without a copy more than the socket makes: it is for those who move samples.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.core.errors import ProtocolError

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"hrw1"
MESSAGE_LIMIT = 64 << 20
"""Bytes of a message: samples' definitions are the longest."""
BODY_LIMIT = 4 << 30
_AT_ONCE, _RECORD = 128 << 10, 64 << 10
"""Bytes that should have arrived before a receiver is woken; and more than TLS holds back of what has."""
_PIECES = 64
"""Buffers that are handed to the kernel at a time."""

_AT_A_TIME = 256 << 10
"""Bytes that are taken from TLS before a thread that sends may have its turn."""

_SMALL = 1 << 16
"""Bytes that had better be copied than sent by themselves."""

_CALMER = (b"cubic", b"reno")
"""Congestion controls to have instead of BBR; the second one is for everybody to have."""

Buffer = bytes | bytearray | memoryview


def _heed_losses(sock: socket.socket) -> None:
    """Not BBR, the default of some machines: many send to one at a time here, through a queue of a few milliseconds.
    Of losses BBR takes no notice: it keeps such a queue full, every seventh packet is lost, and whoever begins to
    send waits a second for his first to come in."""
    with contextlib.suppress(OSError):
        if not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr"):
            return
    for name in _CALMER:
        with contextlib.suppress(OSError):  # (not there, or not for this user)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return


class _Turns:
    """A lock that nobody takes twice while another waits for it. (Of a ``threading.Lock`` alone, who lets it go and
    asks again at once has it before the other has woken.)"""

    def __init__(self) -> None:
        self._next, self._lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Wire:
    """One end of a connection. One thread at a time sends, and one receives."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._sock, self.name = sock, name
        self._plain, self._local = not isinstance(sock, ssl.SSLSocket), sock.family == socket.AF_UNIX
        self._using = _Turns()
        """Of TLS: a connection's state is for one call at a time, whichever way. (None of them waits.)"""
        self._least = 1
        self.meanwhile: Callable[[], float] | None = None
        """Called again and again by who waits to receive; says after how many seconds it is to be."""
        sock.setblocking(False)
        if not self._local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A machine that is gone says nothing: it is asked after 2 s, and counts as gone 3 s later.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (
                (socket.TCP_KEEPIDLE, 2),
                (socket.TCP_KEEPINTVL, 1),
                (socket.TCP_KEEPCNT, 3),
                (socket.TCP_USER_TIMEOUT, 5000),
            ):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            _heed_losses(sock)

    def fileno(self) -> int:
        """The socket."""
        return self._sock.fileno()

    def send(self, message: bytes, body: Sequence[Buffer] = (), *, seconds: float) -> None:
        """Send a frame. ``seconds``: for which the other end may take in nothing; then it is a TimeoutError."""
        nbytes = sum(len(one) for one in body)
        if len(message) > MESSAGE_LIMIT or nbytes > BODY_LIMIT:
            raise ProtocolError(f"a frame of {len(message)} and {nbytes} bytes")
        head = _HEAD.pack(_MAGIC, len(message), nbytes) + message
        # (what is small travels in one packet; of what is large, TLS would make a packet of the head alone)
        first = len(body) if nbytes <= _SMALL else int(not self._plain and len(body[0]) <= _SMALL)
        pieces = [memoryview(b"".join([head, *body[:first]]))]
        pieces += [memoryview(one).cast("B") for one in body[first:] if len(one)]
        self._send(pieces, seconds)

    def _send(self, pieces: list[memoryview], seconds: float) -> None:
        at = 0
        while at < len(pieces):
            try:
                if self._plain:
                    sent = self._sock.sendmsg(pieces[at : at + _PIECES])
                else:
                    with self._using:
                        sent = self._sock.send(pieces[at])
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(seconds, select.POLLOUT)
                continue
            except ssl.SSLWantReadError:
                self._wait(seconds, select.POLLIN)
                continue
            while at < len(pieces) and sent >= len(pieces[at]):
                sent -= len(pieces[at])
                at += 1
            if sent:
                pieces[at] = pieces[at][sent:]

    def receive(
        self, *, seconds: float | None, limit: int = MESSAGE_LIMIT, body_limit: int = 0
    ) -> tuple[bytes, memoryview]:
        """The next frame. ``seconds``: for which the other end may send nothing. Raises TimeoutError, EOFError at the
        end of the connection, and ProtocolError for what is no frame, or over a limit."""
        message, nbytes = self.receive_message(seconds=seconds, limit=limit, body_limit=body_limit)
        return message, memoryview(self._exactly(nbytes, seconds)).toreadonly()

    def receive_message(
        self, *, seconds: float | None, limit: int = MESSAGE_LIMIT, body_limit: int = 0
    ) -> tuple[bytes, int]:
        """The next frame without what is beside its message; the bytes of that, which have to be received next."""
        head = self._exactly(_HEAD.size, seconds)
        magic, length, nbytes = _HEAD.unpack(head)
        if magic != _MAGIC or length > limit or nbytes > body_limit:
            raise ProtocolError(f"{self.name} sent what is no frame, or one of {length} and {nbytes} bytes")
        return bytes(self._exactly(length, seconds)), nbytes

    def receive_into(self, buffer: Any, *, seconds: float | None) -> None:
        """A part of what is beside a message, straight into memory."""
        view = memoryview(buffer).cast("B")
        self._into(view, len(view), seconds)

    def _exactly(self, nbytes: int, seconds: float | None) -> bytearray:
        out = bytearray(nbytes)
        self._into(memoryview(out), nbytes, seconds)
        return out

    def _into(self, view: memoryview, nbytes: int, seconds: float | None) -> None:
        tls: Any = self._sock
        at, got = 0, 1
        while at < nbytes:
            try:
                if self._plain:
                    got = self._sock.recv_into(view[at:])
                    at += got
                else:
                    # (TLS gives one record of 16 KiB at a time, and much of what it costs may be Python around that)
                    until = min(nbytes, at + _AT_A_TIME)
                    with self._using:
                        while got and at < until:
                            got = tls.read(nbytes - at, view[at:])
                            at += got
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wake_at(nbytes - at)
                self._wait_in(seconds)
                continue
            except ssl.SSLWantWriteError:
                self._wait(seconds, select.POLLOUT)
                continue
            except ValueError:  # (there is no TLS any more)
                raise OSError(errno.EBADF, f"the connection to {self.name} is closed") from None
            if not got:
                raise EOFError(f"{self.name} ended the connection")

    def _wake_at(self, missing: int) -> None:
        """Be woken when much of what is missing has arrived, and not by every packet."""
        if self._local:
            return
        # (some of it may be in TLS's hands already: what is waited for has to be less than what will come)
        least = max(1, min(_AT_ONCE, missing - _RECORD))
        if least != self._least:
            self._least = least
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _wait_in(self, seconds: float | None) -> None:
        """Wait for something to receive."""
        if self.meanwhile is None:
            self._wait(seconds, select.POLLIN)
            return
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            pause = self.meanwhile()
            last = until is not None and time.monotonic() + pause >= until
            try:
                self._wait(pause, select.POLLIN)
                return
            except TimeoutError:
                if last:
                    raise

    def _wait(self, seconds: float | None, events: int) -> None:
        fd = self._sock.fileno()
        if fd < 0:
            raise EOFError(f"the connection to {self.name} was let go meanwhile")
        poll = select.poll()
        poll.register(fd, events)
        if not poll.poll(None if seconds is None else max(1, int(seconds * 1000))):
            raise TimeoutError(f"{self.name} did not answer for {seconds:g} s")

    def ended(self) -> bool:
        """Of a connection that waits for nothing: whether it is good for nothing any more, since the other end has
        ended it, or speaks without being asked."""
        fd = self._sock.fileno()
        poll = select.poll()
        poll.register(max(0, fd), select.POLLIN | select.POLLRDHUP)
        return fd < 0 or bool(poll.poll(0))

    def shut(self) -> None:
        """End the connection for both sides; who waits for it wakes up. Any thread may."""
        with contextlib.suppress(OSError):
            # (of the socket itself: TLS would say goodbye, and the other end may hang)
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let it go."""
        with (
            self._using
        ):  # (in the middle of it, TLS is gone and the socket is not: what is sent then is plain)
            self._sock.close()


# -- connecting ------------------------------------------------------------------------------------------------


def connect_unix(path: str, seconds: float) -> Wire:
    """To somebody on this machine, of the same user."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(path)
        check_user(sock, path)
        return Wire(sock, path)
    except BaseException:
        sock.close()
        raise


def check_user(sock: socket.socket, what: str) -> None:
    """Whoever is at the other end of a Unix socket has to be the same user."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        raise ProtocolError(f"{what} belongs to user {uid}")


def connect_tls(address: tuple[str, int], fingerprint: str, seconds: float) -> Wire:
    """To another machine, whose certificate has to be the one that is expected: its SHA-256."""
    deadline = time.monotonic() + seconds
    sock = socket.create_connection(address, timeout=seconds)
    return start_tls(sock, fingerprint, f"{address[0]}:{address[1]}", deadline - time.monotonic())


def start_tls(sock: socket.socket, fingerprint: str, name: str, seconds: float) -> Wire:
    """The wire to somebody to whom a socket is connected. Raises ProtocolError where it is somebody else, and OSError
    where nothing shows who it is: there was no answer, or the connection ended."""
    try:
        sock.settimeout(max(0.1, seconds))
        wrapped = _client_context().wrap_socket(sock, server_hostname=None)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            raise ProtocolError(f"{name} does not speak TLS as it should: {error}") from None
        raise
    try:
        found = fingerprint_of(wrapped.getpeercert(binary_form=True) or b"")
        if found != fingerprint:
            raise ProtocolError(f"{name} has another certificate than it should have")
        return Wire(wrapped, name)
    except BaseException:
        wrapped.close()
        raise


def fingerprint_of(certificate: bytes) -> str:
    """The SHA-256 of a certificate in its binary form."""
    return hashlib.sha256(certificate).hexdigest()


def _client_context() -> ssl.SSLContext:
    # No authority has signed it: who is expected there is known by its fingerprint.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_context(certificate: str, private_key: str) -> ssl.SSLContext:
    """For who listens. Both are paths of PEM files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, private_key)
    return context


def accept_tls(sock: socket.socket, context: ssl.SSLContext, name: str, seconds: float) -> Wire:
    """The wire to somebody who has connected. Raises OSError where there is none."""
    sock.settimeout(seconds)
    wrapped: Any = context.wrap_socket(sock, server_side=True)
    return Wire(wrapped, name)
