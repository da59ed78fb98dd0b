"""Channels of one machine: descriptors beside messages, and what happens to packets that are not as they should."""

from __future__ import annotations

import array
import contextlib
import fcntl
import multiprocessing
import os
import random
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.channel import unix
from headrace.channel.channel import Memory, receive_within, wait
from headrace.channel.sealed import as_memfd, from_memfd
from headrace.channel.unix import INLINE, MAX_FDS, UnixChannel
from headrace.core.errors import ProtocolError
from tests.descriptors import none_left_open

Pair = tuple[UnixChannel, UnixChannel]


@pytest.fixture(params=["made for each", "in common"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both ends; by which kind of buffer the second one receives."""
    shared = request.param == "in common"
    right, left = unix.pair(memoryview(bytearray(INLINE)) if shared else None)
    with closing(left), closing(right):
        yield left, right


@pytest.fixture
def no_leak(pair: Pair) -> Iterator[None]:
    """Both ends stay open; nothing else may."""
    with none_left_open():
        yield


def send_raw(channel: UnixChannel, data: bytes, fds: list[int]) -> None:
    """Without the checks of an honest sender."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sock.sendmsg([data], rights)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.sampled_from([1, 2, INLINE - 1, INLINE, INLINE + 1, 1 << 20]), fds=st.integers(0, MAX_FDS))
def test_a_message_arrives_as_it_was_sent(pair: Pair, size: int, fds: int) -> None:
    left, right = pair
    data = random.randbytes(size)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(fds)]
        for number, file in enumerate(files):
            file.write(b"%d" % number)
            file.flush()
        numbers = [file.fileno() for file in files]
        if size > INLINE:
            body = as_memfd(data)
            send_raw(left, b"", [*numbers, body])
            os.close(body)
        else:
            send_raw(left, data, numbers)
    message = right.receive()
    assert message is not None
    got, attached = message
    assert got == data
    if not fds:
        assert attached is None
        return
    assert isinstance(attached, unix.Descriptors)
    try:
        # In the same order, and alive although the sender closed its own.
        assert [os.pread(fd, 9, 0) for fd in attached.fds] == [b"%d" % number for number in range(fds)]
        assert not any(os.get_inheritable(fd) for fd in attached.fds)
    finally:
        attached.close()


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("size", [1, 100_000])
def test_memory_travels_and_stays_the_senders(pair: Pair, size: int) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        left.send(b"x" * size, Memory(file.fileno()))
        message = right.receive()
        assert message is not None and message[1] is not None
        fd = message[1].memory()
        assert fd is not None and os.path.sameopenfile(fd, file.fileno()) and fd != file.fileno()
        message[1].close()
        message[1].close()
        os.fstat(file.fileno())


def test_last_words_arrive_even_if_the_peer_left_something_unread(pair: Pair) -> None:
    left, right = pair
    right.send(b"never read")
    left.send(b"refused, because")
    left.close()
    assert right.receive() == (b"refused, because", None)
    assert right.receive() is None


def test_a_peer_that_left_everything_unread_is_the_end(pair: Pair) -> None:
    left, right = pair
    right.send(b"never read")
    left.close()
    assert right.receive() is None


@pytest.mark.usefixtures("no_leak")
def test_a_packet_that_is_too_long_is_refused_and_its_descriptors_closed(pair: Pair) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        send_raw(left, b"x" * (INLINE + 1), [file.fileno()] * 3)
        send_raw(left, b"x" * (INLINE + 1), [])
        send_raw(left, b"next", [])
    for _ in range(2):
        with pytest.raises(ProtocolError, match="65536"):
            right.receive()
    assert right.receive() == (b"next", None)


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("count", [MAX_FDS + 1, MAX_FDS + 2, 200])
def test_too_many_descriptors_are_refused_and_closed(pair: Pair, count: int) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        send_raw(left, b"x", [file.fileno()] * count)
    with pytest.raises(ProtocolError, match="descriptors"):
        right.receive()


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
        right.receive()


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
                right.receive()
    unix.close_all([reading, writing, empty, huge])


@pytest.mark.usefixtures("no_leak")
def test_a_memfd_keeps_what_was_put_in(pair: Pair) -> None:
    data = random.randbytes(3 << 20)
    fd = as_memfd(data)
    try:
        assert not os.get_inheritable(fd)
        assert from_memfd(fd, len(data)) == data
        with pytest.raises(ProtocolError, match="limit"):
            from_memfd(fd, len(data) - 1)
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
    fd = as_memfd(b"")
    try:
        assert from_memfd(fd, 0) == b""
    finally:
        os.close(fd)


def test_a_descriptor_that_cannot_be_read_is_refused() -> None:
    fd = as_memfd(b"hello")
    try:
        path_only = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
        try:
            with pytest.raises(ProtocolError, match="cannot be read"):
                from_memfd(path_only, 100)
        finally:
            os.close(path_only)
    finally:
        os.close(fd)


@pytest.mark.usefixtures("no_leak")
def test_what_is_beside_a_message_is_read_only_if_it_is_sealed(pair: Pair) -> None:
    left, right = pair
    fd = unsealed(b"x" * 100, 0)
    left.send(b"look", Memory(fd))
    os.close(fd)
    message = right.receive()
    assert message is not None and message[1] is not None
    with closing(message[1]), pytest.raises(ProtocolError, match="sealed"):
        message[1].read(1000)


def test_who_is_at_the_other_end(pair: Pair) -> None:
    left, right = pair
    assert unix.peer_uid(left.sock) == os.geteuid()
    assert right.peer == (os.getpid(), f"pid {os.getpid()}")


def test_buffers_are_as_wide_as_the_system_allows() -> None:
    with open("/proc/sys/net/core/wmem_max") as file:
        allowed = int(file.read())
    with unix.make_socket() as sock:
        unix.widen(sock)
        # The kernel counts its own overhead in, so it doubles what is asked for.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * min(allowed, unix.BUFFER)


def _echo(channel: UnixChannel) -> None:
    received = receive_within(channel, 20)
    assert received is not None
    channel.send(received[0] * 2)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.slow
def test_a_channel_can_be_handed_to_a_process_that_starts(pair: Pair, method: str) -> None:
    left, right = pair
    process = multiprocessing.get_context(method).Process(target=_echo, args=(left,))
    process.start()
    right.send(b"ab")
    assert receive_within(right, 60) == (b"abab", None)
    process.join()


@contextlib.contextmanager
def listening_child(path: Path) -> Iterator[tuple[int, UnixChannel]]:
    """A process that listens and does nothing else, and a channel to it."""
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            listener = unix.UnixListener(str(path), 1)
            os.write(told, b"x")
            signal.pause()
        finally:
            del listener
            os._exit(0)
    try:
        os.read(ready, 1)
        with closing(unix.connect(str(path), 20)) as channel:
            yield pid, channel
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        unix.close_all([ready, told])


@pytest.mark.usefixtures("pair")
def test_the_process_at_the_other_end_can_be_watched_and_ended(tmp_path: Path) -> None:
    with none_left_open(), listening_child(tmp_path / "s") as (pid, channel):
        assert channel.peer.pid == pid
        fd = channel.watch()
        assert fd == channel.watch() >= 0 and not wait(fd, 0)
        assert channel.end_peer(20)
        assert wait(fd, 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert receive_within(channel, 20) is None


def test_who_has_hung_up_is_not_ended(tmp_path: Path) -> None:
    """Its number may be somebody else's by now."""
    with listening_child(tmp_path / "s") as (pid, channel):
        os.kill(pid, signal.SIGKILL)
        assert wait(channel.fileno(), 20)
        with pytest.raises(ConnectionResetError):
            channel.end_peer(20)


def test_nobody_ends_itself(pair: Pair) -> None:
    assert not pair[0].end_peer(1)


def test_a_listener_takes_its_name_with_it_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = unix.UnixListener(str(path), 1)
    assert first.in_place()
    path.unlink()
    assert not first.in_place()
    with closing(unix.UnixListener(str(path), 1)) as second:
        first.close()
        first.close()
        assert second.in_place()
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        unix.connect(str(path), 1)
