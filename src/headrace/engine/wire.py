"""Messages between a host and the processes that use it: one packet each, with descriptors beside it.

The sockets are Unix sockets of sequenced packets, so a message arrives whole or not at all. What is longer than
``INLINE`` bytes travels in a sealed memfd, because the kernel needs one contiguous piece of memory for a packet,
and by default refuses those over some hundred KiB. Callers do not see the difference.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterable, Sequence

from headrace.core.errors import ProtocolError

LIMIT = 64 << 20
"""Bytes of a message that a host takes: what the largest batch needs, and little enough to be read in a moment."""
REPLY_LIMIT = 1 << 30
"""Bytes of a message that a job takes: about 128 for each row of the largest batch."""
INLINE = 64 * 1024
"""Bytes of a message that travel in the packet itself."""
MAX_FDS = 16
"""Descriptors that one message may carry."""
BUFFER = 2 << 20
"""Bytes that should fit into a socket's buffer, so that a peer that is busy for a moment holds up nobody."""

# Plain numbers, since messages are many and operators of enumerations slow.
_CLOEXEC, _TRUNC, _CTRUNC = (
    int(flag) for flag in (socket.MSG_CMSG_CLOEXEC, socket.MSG_TRUNC, socket.MSG_CTRUNC)
)
_ANCILLARY = socket.CMSG_LEN((MAX_FDS + 1) * array.array("i").itemsize)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE
_CREDENTIALS = struct.Struct("3i")


def make_socket() -> socket.socket:
    """A socket of the kind that carries messages, not yet connected."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def widen(sock: socket.socket) -> None:
    """Give a socket buffers of ``BUFFER`` bytes, or as many as the system allows."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = (), limit: int = LIMIT) -> None:
    """Send one message. The descriptors stay open here; the receiver gets its own.

    Raises BlockingIOError (TimeoutError on a socket with a timeout) when the buffer has no room for it now; then
    nothing was sent. A peer that is gone is a BrokenPipeError or ConnectionResetError.
    """
    if not data:
        raise ValueError("a message has at least one byte: an empty packet reads as the end")
    if len(data) > limit:
        raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {limit}")
    if len(fds) > MAX_FDS:
        raise ProtocolError(f"a message with {len(fds)} descriptors is over the limit of {MAX_FDS}")
    if len(data) <= INLINE:
        _send(sock, data, fds)
        return
    body = as_memfd(data)
    try:
        _send(sock, b"", [*fds, body])
    finally:
        os.close(body)


def _send(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket, limit: int = LIMIT) -> tuple[bytes, list[int]] | None:
    """The next message and its descriptors, which are the caller's to close; None at the end of the connection.

    Raises BlockingIOError (TimeoutError on a socket with a timeout) when there is none, and ProtocolError for
    one that is cut short or over the limits; its descriptors are closed then.
    """
    try:
        data, ancillary, flags, _ = sock.recvmsg(INLINE, _ANCILLARY, _CLOEXEC)
    except ConnectionResetError:
        # The peer left without reading all that it was sent. It may have said why: that comes after the error.
        try:
            data, ancillary, flags, _ = sock.recvmsg(INLINE, _ANCILLARY, _CLOEXEC)
        except ConnectionResetError:
            return None
    fds = _descriptors(ancillary) if ancillary else []
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
    return (data, fds) if data else None


def receive_own(sock: socket.socket, buffer: memoryview) -> bytes:
    """The next message of a worker of one's own, by way of a buffer of ``INLINE`` bytes; an empty one at the end."""
    length, ancillary, _, _ = sock.recvmsg_into([buffer], _ANCILLARY, _CLOEXEC)
    if length or not ancillary:
        return bytes(buffer[:length])
    fds = _descriptors(ancillary)
    try:
        return from_memfd(fds[0], REPLY_LIMIT)
    finally:
        close_all(fds)


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


def wait(fd: int, timeout: float, *, writable: bool = False) -> bool:
    """Whether a descriptor becomes readable (or writable) in so many seconds. Any descriptor will do: ``select``
    knows those below 1024 only."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT if writable else select.POLLIN)
    return bool(poll.poll(max(0, int(timeout * 1000 + 0.999))))


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


# -- large things --------------------------------------------------------------------------------------------


def as_memfd(data: bytes) -> int:
    """A new descriptor of an anonymous file that holds ``data`` and cannot be changed any more."""
    fd = os.memfd_create("headrace-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def from_memfd(fd: int, limit: int) -> bytes:
    """What ``as_memfd`` made, at most ``limit`` bytes. The descriptor stays open.

    Raises ProtocolError for anything else: without the seals the sender could still change or cut what is read.
    """
    try:
        # First of all: only files in memory have seals, and of others even the size may take for ever to be told.
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ProtocolError("a descriptor that should hold a message is not sealed")
        status = os.fstat(fd)  # after the seals were seen: from now on it cannot shrink
        size = status.st_size
        if size > limit:
            raise ProtocolError(f"a message of {size} bytes arrived; the limit is {limit}")
        if 512 * status.st_blocks < size:
            # Nobody who wrote it has holes in it. They cost the sender nothing, and the reader time and memory.
            raise ProtocolError(f"a message of {size} bytes arrived of which some were never written")
        parts, at = [], 0
        while at < size:
            part = os.pread(fd, size - at, at)
            if not part:
                raise ProtocolError("a descriptor that should hold a message ends early")
            parts.append(part)
            at += len(part)
    except OSError as error:
        raise ProtocolError(f"a descriptor that should hold a message cannot be read: {error}") from None
    return b"".join(parts)
