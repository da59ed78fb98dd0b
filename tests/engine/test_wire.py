"""Messages with descriptors, and what happens to those that are not as they should be."""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import os
import random
import socket
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.errors import ProtocolError
from headrace.engine import wire

Pair = tuple[socket.socket, socket.socket]


def open_fds() -> set[str]:
    """Descriptors of this process and what they lead to."""
    gc.collect()
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return {entry for entry in found if "/proc/" not in entry}


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for sock in (left, right):
        wire.widen(sock)
        sock.settimeout(20)
    with left, right:
        yield left, right


@pytest.fixture
def no_leak(pair: Pair) -> Iterator[None]:
    """Both ends stay open; nothing else may."""
    before = open_fds()
    yield
    assert open_fds() == before


def send_raw(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Without the checks of an honest sender."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.sampled_from([1, 2, wire.INLINE - 1, wire.INLINE, wire.INLINE + 1, 1 << 20]),
    fds=st.integers(0, 5),
)
def test_a_message_arrives_as_it_was_sent(pair: Pair, size: int, fds: int) -> None:
    left, right = pair
    data = random.randbytes(size)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(fds)]
        for number, file in enumerate(files):
            file.write(b"%d" % number)
            file.flush()
        wire.send(left, data, [file.fileno() for file in files])
    message = wire.receive(right)
    assert message is not None
    got, received = message
    assert got == data
    try:
        # In the same order, and alive although the sender closed its own.
        assert [os.pread(fd, 9, 0) for fd in received] == [b"%d" % number for number in range(fds)]
        assert not any(os.get_inheritable(fd) for fd in received)
    finally:
        wire.close_all(received)


def test_messages_keep_their_bounds_and_their_order(pair: Pair) -> None:
    left, right = pair
    sent = [bytes([number]) * size for number, size in enumerate([1, 70_000, 5, wire.INLINE, 200_000])]
    for data in sent:
        wire.send(left, data)
    assert [wire.receive(right) for _ in sent] == [(data, []) for data in sent]


@pytest.mark.usefixtures("no_leak")
def test_sending_leaves_the_senders_descriptors_alone(pair: Pair) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        wire.send(left, b"x" * 100_000, [file.fileno()])
        message = wire.receive(right)
        assert message is not None
        wire.close_all(message[1])
        os.fstat(file.fileno())


def test_the_end_of_a_connection_is_none(pair: Pair) -> None:
    left, right = pair
    wire.send(left, b"last words")
    left.close()
    assert wire.receive(right) == (b"last words", [])
    assert wire.receive(right) is None
    assert wire.receive(right) is None
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        wire.send(right, b"hello?")


def test_last_words_arrive_even_if_the_peer_left_something_unread(pair: Pair) -> None:
    left, right = pair
    wire.send(right, b"never read")
    wire.send(left, b"refused, because")
    left.close()
    assert wire.receive(right) == (b"refused, because", [])
    assert wire.receive(right) is None


def test_a_peer_that_left_everything_unread_is_the_end(pair: Pair) -> None:
    left, right = pair
    wire.send(right, b"never read")
    left.close()
    assert wire.receive(right) is None


@pytest.mark.usefixtures("no_leak")
def test_without_blocking(pair: Pair) -> None:
    left, right = pair
    left.setblocking(False)
    right.setblocking(False)
    with pytest.raises(BlockingIOError):
        wire.receive(right)
    sent = 0
    with pytest.raises(BlockingIOError):
        while sent < 100_000:
            wire.send(left, sent.to_bytes(4, "big") + b"x" * 1000)
            sent += 1
    with pytest.raises(BlockingIOError):
        wire.send(left, b"x" * 100_000)
    for number in range(sent):  # what did not fit was not sent in part
        message = wire.receive(right)
        assert message is not None
        assert int.from_bytes(message[0][:4], "big") == number
    with pytest.raises(BlockingIOError):
        wire.receive(right)
    wire.send(left, b"there is room again")
    assert wire.receive(right) == (b"there is room again", [])


def test_what_cannot_be_sent(pair: Pair) -> None:
    left, _ = pair
    with pytest.raises(ProtocolError, match=str(wire.LIMIT + 1)):
        wire.send(left, b"x" * (wire.LIMIT + 1))
    with pytest.raises(ValueError, match="at least one byte"):
        wire.send(left, b"")
    with pytest.raises(ProtocolError, match="17 descriptors"):
        wire.send(left, b"x", [0] * (wire.MAX_FDS + 1))


@pytest.mark.usefixtures("no_leak")
def test_a_packet_that_is_too_long_is_refused_and_its_descriptors_closed(pair: Pair) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        send_raw(left, b"x" * (wire.INLINE + 1), [file.fileno()] * 3)
        send_raw(left, b"next", [])
    with pytest.raises(ProtocolError, match="65536"):
        wire.receive(right)
    assert wire.receive(right) == (b"next", [])


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("count", [wire.MAX_FDS + 1, wire.MAX_FDS + 2, 200])
def test_too_many_descriptors_are_refused_and_closed(pair: Pair, count: int) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        send_raw(left, b"x", [file.fileno()] * count)
    with pytest.raises(ProtocolError, match="descriptors"):
        wire.receive(right)


@pytest.mark.usefixtures("no_leak")
def test_as_many_descriptors_as_allowed_pass(pair: Pair) -> None:
    left, right = pair
    for data in (b"x", b"x" * 100_000):
        with tempfile.TemporaryFile() as file:
            wire.send(left, data, [file.fileno()] * wire.MAX_FDS)
        message = wire.receive(right)
        assert message is not None
        assert message[0] == data and len(message[1]) == wire.MAX_FDS
        wire.close_all(message[1])


def unsealed(data: bytes, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_WRITE])
def test_a_body_that_its_sender_could_change_is_refused(pair: Pair, seals: int) -> None:
    left, right = pair
    fd = unsealed(b"x" * 100, seals)
    with tempfile.TemporaryFile() as other:
        send_raw(left, b"", [other.fileno(), fd])
    os.close(fd)
    with pytest.raises(ProtocolError, match="sealed"):
        wire.receive(right)


@pytest.mark.usefixtures("no_leak")
def test_bodies_that_are_none_are_refused(pair: Pair) -> None:
    left, right = pair
    reading, writing = os.pipe()
    empty = unsealed(b"", fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    huge = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.truncate(huge, 1 << 40)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    with tempfile.TemporaryFile() as file:
        for fd, what in (
            (reading, "cannot be read"),
            (file.fileno(), "cannot be read"),
            (empty, "empty"),
            (huge, "limit"),
        ):
            send_raw(left, b"", [fd])
            with pytest.raises(ProtocolError, match=what):
                wire.receive(right)
    wire.close_all([reading, writing, empty, huge])


@pytest.mark.usefixtures("no_leak")
def test_a_memfd_keeps_what_was_put_in(pair: Pair) -> None:
    data = random.randbytes(3 << 20)
    fd = wire.as_memfd(data)
    try:
        assert not os.get_inheritable(fd)
        assert wire.from_memfd(fd, len(data)) == data
        with pytest.raises(ProtocolError, match="limit"):
            wire.from_memfd(fd, len(data) - 1)
        for change in (
            lambda: os.pwrite(fd, b"x", 0),
            lambda: os.truncate(fd, 1),
            lambda: os.truncate(fd, 9 << 20),
        ):
            with pytest.raises(PermissionError):
                change()
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    finally:
        os.close(fd)


def test_an_empty_memfd_is_empty() -> None:
    fd = wire.as_memfd(b"")
    try:
        assert wire.from_memfd(fd, 0) == b""
    finally:
        os.close(fd)


def test_a_descriptor_that_cannot_be_read_is_refused() -> None:
    fd = wire.as_memfd(b"hello")
    try:
        path_only = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
        try:
            with pytest.raises(ProtocolError, match="cannot be read"):
                wire.from_memfd(path_only, 100)
        finally:
            os.close(path_only)
    finally:
        os.close(fd)


def test_who_is_at_the_other_end(pair: Pair) -> None:
    left, right = pair
    assert wire.peer_uid(left) == os.geteuid()
    assert wire.peer_pid(right) == os.getpid()


def test_buffers_are_as_wide_as_the_system_allows() -> None:
    with open("/proc/sys/net/core/wmem_max") as file:
        allowed = int(file.read())
    with wire.make_socket() as sock:
        wire.widen(sock)
        # The kernel counts its own overhead in, so it doubles what is asked for.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * min(allowed, wire.BUFFER)
