"""Channels between processes of one user and machine: Unix sockets of sequenced packets, one for each message.

A message arrives whole or not at all, and descriptors travel with it. What is longer than ``INLINE`` bytes, and what
is beside a message, travels in a sealed memfd, because the kernel needs one contiguous piece of memory for a packet,
and by default refuses those over some hundred KiB. Callers do not see the difference.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import reduction
from typing import Any

from headrace.channel.channel import LIMIT, Memory, Peer, Received, wait
from headrace.channel.sealed import as_memfd, from_memfd
from headrace.core.errors import ProtocolError

INLINE = 64 * 1024
"""Bytes of a message that travel in the packet itself."""
MAX_FDS = 16
"""Descriptors that one message may carry."""
BUFFER = 2 << 20
"""Bytes that should fit into a socket's buffer, so that a peer that is busy for a moment holds up nobody."""
_PAIR_BUFFER = 1 << 20
"""The same between a host and a worker of its own."""
_AGAIN = 0.01
"""Seconds between two tries to connect to somebody whose queue is full."""

# Plain numbers, since messages are many and operators of enumerations slow.
_CLOEXEC, _TRUNC, _CTRUNC, _NOSIGNAL = (
    int(flag) for flag in (socket.MSG_CMSG_CLOEXEC, socket.MSG_TRUNC, socket.MSG_CTRUNC, socket.MSG_NOSIGNAL)
)
_LOST = _TRUNC | _CTRUNC
_SOCKET, _RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
_ANCILLARY = socket.CMSG_LEN((MAX_FDS + 1) * array.array("i").itemsize)
_CREDENTIALS = struct.Struct("3i")


class OtherUser(ProtocolError):
    """Whoever listens there is another user's."""

    def __init__(self, uid: int) -> None:
        super().__init__(f"it belongs to user {uid}")
        self.uid = uid


class UnixChannel:
    """See ``Channel``. Any number of threads may send."""

    def __init__(self, sock: socket.socket, buffer: memoryview | None = None) -> None:
        """``buffer``: ``INLINE`` bytes by way of which messages are received, which is faster than to make so many
        for each; channels that are received from in turn may share it."""
        sock.setblocking(False)
        self.sock = sock
        self._buffer = buffer
        self._watched = -1

    def __reduce__(self) -> tuple[Callable[[Any], UnixChannel], tuple[Any]]:
        """To be handed to a process that is being started."""
        return _inherited, (reduction.DupFd(self.sock.fileno()),)

    @property
    def peer(self) -> Peer:
        """See ``Channel``."""
        pid = peer_pid(self.sock)
        return Peer(pid, f"pid {pid}")

    def fileno(self) -> int:
        """See ``Channel``."""
        return self.sock.fileno()

    def send(self, data: bytes, beside: bytes | Memory | None = None, limit: int = LIMIT) -> None:
        """See ``Channel``."""
        if not data:
            raise ValueError("a message has at least one byte: an empty packet reads as the end")
        if len(data) > limit:
            raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {limit}")
        if beside is None and len(data) <= INLINE:
            self.sock.sendmsg([data], (), _NOSIGNAL)
            return
        made: list[int] = []
        try:
            if isinstance(beside, Memory):
                fds = [beside.fd]
            else:
                made = [] if beside is None else [as_memfd(beside)]
                fds = made.copy()
            if len(data) > INLINE:
                made.append(as_memfd(data))
                fds.append(made[-1])
                data = b""
            self.sock.sendmsg([data], [(_SOCKET, _RIGHTS, array.array("i", fds))], _NOSIGNAL)
        finally:
            close_all(made)

    def flush(self) -> bool:
        """See ``Channel``. The kernel takes a message whole."""
        return True

    def receive(self, limit: int = LIMIT) -> Received | None:
        """See ``Channel``."""
        try:
            data, ancillary, flags = self._packet()
        except ConnectionResetError:
            # The peer left without reading all that it was sent. It may have said why: that comes after the error.
            try:
                data, ancillary, flags = self._packet()
            except ConnectionResetError:
                return None
        if not ancillary and not flags & _LOST:
            return (data, None) if data else None
        fds = _descriptors(ancillary)
        try:
            if flags & _TRUNC:
                raise ProtocolError(f"a packet of more than {INLINE} bytes arrived")
            if flags & _CTRUNC:
                raise ProtocolError(
                    f"descriptors of a message were lost: there were more than {MAX_FDS}, "
                    "or this process has as many open as it may (ulimit -n)"
                )
            if not data and fds:
                body = fds.pop()
                try:
                    data = from_memfd(body, limit)
                finally:
                    os.close(body)
                if not data:
                    raise ProtocolError("an empty message arrived")
            if len(fds) > MAX_FDS:
                raise ProtocolError(f"a message with {len(fds)} descriptors arrived; the limit is {MAX_FDS}")
        except BaseException:
            close_all(fds)
            raise
        if not data:
            return None
        return data, Descriptors(fds) if fds else None

    def _packet(self) -> tuple[bytes, Sequence[tuple[int, int, bytes]], int]:
        if self._buffer is None:
            data, ancillary, flags, _ = self.sock.recvmsg(INLINE, _ANCILLARY, _CLOEXEC)
            return data, ancillary, flags
        length, ancillary, flags, _ = self.sock.recvmsg_into([self._buffer], _ANCILLARY, _CLOEXEC)
        return bytes(self._buffer[:length]), ancillary, flags

    def watch(self) -> int:
        """See ``Channel``. To be asked while the peer is known to live; there is none in another container, or where
        the kernel is old."""
        if self._watched < 0:
            with contextlib.suppress(OSError, AttributeError):
                self._watched = os.pidfd_open(peer_pid(self.sock))
        return self._watched

    def end_peer(self, seconds: float) -> bool:
        """See ``Channel``."""
        pid = peer_pid(self.sock)
        if pid <= 0 or pid == os.getpid():
            return False
        try:
            process = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return False
        try:
            # While the connection is there the number is the peer's, and not that of somebody who got it later.
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
                raise ConnectionResetError("it has hung up")
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
            except OSError:
                return False
            wait(process, seconds)
            return True
        finally:
            os.close(process)

    def shut(self) -> None:
        """See ``Channel``."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See ``Channel``."""
        self.sock.close()
        if self._watched >= 0:
            os.close(self._watched)
            self._watched = -1


class Descriptors:
    """See ``Attached``."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = fds

    def read(self, limit: int) -> bytes:
        """See ``Attached``."""
        return from_memfd(self.fds[0], limit)

    def memory(self) -> int:
        """See ``Attached``."""
        return self.fds[0]

    def close(self) -> None:
        """See ``Attached``."""
        close_all(self.fds)
        self.fds = []


# -- how they are made ---------------------------------------------------------------------------------------


def make_socket() -> socket.socket:
    """A socket of the kind that carries messages, not yet connected."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def widen(sock: socket.socket, size: int = BUFFER) -> None:
    """Give a socket buffers of so many bytes, or as many as the system allows."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, size)


def pair(buffer: memoryview | None = None) -> tuple[UnixChannel, UnixChannel]:
    """Both ends of a channel; ``buffer`` is for the first of them."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in ends:
        widen(sock, _PAIR_BUFFER)
    return UnixChannel(ends[0], buffer), UnixChannel(ends[1])


def _inherited(duplicate: Any) -> UnixChannel:
    return UnixChannel(socket.socket(fileno=duplicate.detach()))


def connect(path: str, timeout: float) -> UnixChannel:
    """A channel to whoever listens there. If nobody does, that is a FileNotFoundError or ConnectionRefusedError;
    OtherUser if it is not this user, and TimeoutError if it takes no connections."""
    deadline = time.monotonic() + timeout
    while True:
        sock = make_socket()
        try:
            sock.setblocking(False)
            sock.connect(path)
            uid = peer_uid(sock)
            if uid != os.geteuid():
                raise OtherUser(uid)
            widen(sock)
            return UnixChannel(sock)
        except BlockingIOError:
            sock.close()  # its queue of connections is full
            if time.monotonic() > deadline:
                raise TimeoutError(f"no connection was taken for {timeout:g} s") from None
            time.sleep(_AGAIN)
        except BaseException:
            sock.close()
            raise


class UnixListener:
    """Listens at a path in the file system. See ``Listener``."""

    def __init__(self, path: str, backlog: int) -> None:
        """Nothing may lie at the path. To be made before this process has threads: the umask is set for a moment."""
        self.path = path
        self._sock = make_socket()
        try:
            mask = os.umask(0o177)
            try:
                self._sock.bind(path)
            finally:
                os.umask(mask)
            widen(self._sock)
            self._sock.listen(backlog)
            self._sock.setblocking(False)
            self._inode = os.lstat(path).st_ino
        except BaseException:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """See ``Listener``."""
        return self._sock.fileno()

    def accept(self) -> UnixChannel | None:
        """See ``Listener``. Other users are turned away. (The directory keeps them out already; root could still
        come.)"""
        while True:
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            try:
                if peer_uid(sock) == os.geteuid():
                    widen(sock)
                    return UnixChannel(sock)
            except OSError:
                pass
            sock.close()

    def in_place(self) -> bool:
        """See ``Listener``. Not when somebody cleaned its directory away."""
        try:
            return os.lstat(self.path).st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """See ``Listener``."""
        if self._sock.fileno() >= 0 and self.in_place():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._sock.close()


# -- who is there --------------------------------------------------------------------------------------------


def peer_pid(sock: socket.socket) -> int:
    """The process at the other end, as it was when it connected or began to listen; 0: not in our namespace."""
    return _peer(sock)[0]


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end, as it was when it connected or began to listen."""
    return _peer(sock)[1]


def _peer(sock: socket.socket) -> tuple[int, int]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


# -- descriptors ---------------------------------------------------------------------------------------------


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
