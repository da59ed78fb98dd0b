"""One conformance suite over all channels: those of one machine, and those over TCP that the tests bring along."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.channel import unix
from headrace.channel.channel import Channel, Dial, Listener, Memory, receive_within, send_within, wait
from headrace.core.errors import ProtocolError
from tests.channel import tcp

Pair = tuple[Channel, Channel]
KINDS: dict[str, Callable[[], Pair]] = {"unix": unix.pair, "tcp": tcp.pair}
SIZES = [1, 2, unix.INLINE - 1, unix.INLINE, unix.INLINE + 1, 1 << 20]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(kind: str) -> Iterator[Pair]:
    left, right = KINDS[kind]()
    with closing(left), closing(right):
        yield left, right


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[tuple[Listener, Dial]]:
    """Somebody listens, and how to reach it."""
    if kind == "unix":
        path = str(tmp_path / "socket")
        listener: Listener = unix.UnixListener(path, 8)
        dial: Dial = partial(unix.connect, path)
    else:
        over_tcp = tcp.TcpListener()
        listener, dial = over_tcp, partial(tcp.connect, over_tcp.address)
    with closing(listener):
        yield listener, dial


def heard(channel: Channel) -> bytes | None:
    """The next message, beside which there is nothing."""
    received = receive_within(channel, 20)
    if received is None:
        return None
    assert received[1] is None
    return received[0]


# -- messages --------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from(SIZES), max_size=4),
    beside=st.lists(st.integers(-1, 3), min_size=4, max_size=4),
)
def test_messages_arrive_whole_in_order_and_with_what_was_beside_them(
    pair: Pair, sizes: list[int], beside: list[int]
) -> None:
    left, right = pair
    sent = [
        (random.randbytes(size), None if much < 0 else random.randbytes(50_000 * much))
        for size, much in zip(sizes, beside, strict=False)
    ]

    def send() -> None:
        for data, table in sent:
            send_within(left, 20, data, table)

    sender = threading.Thread(target=send)
    sender.start()
    for data, table in sent:
        received = receive_within(right, 20)
        assert received is not None and received[0] == data
        if table is None:
            assert received[1] is None
        else:
            assert received[1] is not None
            with closing(received[1]) as attached:
                assert attached.read(len(table)) == table
                if table:
                    with pytest.raises(ProtocolError, match="limit"):
                        attached.read(len(table) - 1)
    sender.join()
    with pytest.raises(BlockingIOError):
        right.receive()


def test_both_sides_may_talk_at_once(pair: Pair) -> None:
    def talk(channel: Channel) -> None:
        for number in range(500):
            send_within(channel, 20, number.to_bytes(4, "big") * 200)

    talkers = [threading.Thread(target=talk, args=(channel,)) for channel in pair]
    for talker in talkers:
        talker.start()
    for number in range(500):
        for channel in pair:
            assert heard(channel) == number.to_bytes(4, "big") * 200
    for talker in talkers:
        talker.join()


def test_an_empty_message_and_one_over_the_limit_cannot_be_sent(pair: Pair) -> None:
    left, right = pair
    with pytest.raises(ValueError, match="at least one byte"):
        left.send(b"")
    with pytest.raises(ProtocolError, match="101"):
        left.send(b"x" * 101, limit=100)
    left.send(b"x" * 100, limit=100)
    assert heard(right) == b"x" * 100


def test_a_message_over_the_limit_is_not_taken(pair: Pair) -> None:
    left, right = pair
    send_within(left, 20, b"x" * 200_000)
    with pytest.raises(ProtocolError, match="200000"):
        receive_within(right, 20, limit=199_999)


def test_memory_is_carried_or_left_out_and_the_message_arrives(kind: str, pair: Pair) -> None:
    left, right = pair
    with tempfile.TemporaryFile() as file:
        file.write(b"content")
        file.flush()
        left.send(b"map this", Memory(file.fileno()))
    received = receive_within(right, 20)
    assert received is not None and received[0] == b"map this"
    fd = None if received[1] is None else received[1].memory()
    assert (fd is None) == (kind == "tcp")
    if fd is not None:
        assert os.pread(fd, 9, 0) == b"content"
        assert received[1] is not None
        received[1].close()


# -- without waiting ---------------------------------------------------------------------------------------------


def test_nobody_waits_and_what_does_not_fit_is_not_sent_in_part(pair: Pair) -> None:
    left, right = pair
    with pytest.raises(BlockingIOError):
        right.receive()
    sent = 0
    with pytest.raises(BlockingIOError):
        while sent < 100_000:
            left.send(sent.to_bytes(4, "big") + b"x" * 1000)
            sent += 1
    with pytest.raises(BlockingIOError):
        left.send(b"x" * 100_000)
    for number in range(sent):
        while True:
            left.flush()
            if wait(right.fileno(), 0.02):
                with suppress(BlockingIOError):
                    received = right.receive()
                    break
        assert received is not None and int.from_bytes(received[0][:4], "big") == number
    assert left.flush()
    left.send(b"there is room again")
    assert heard(right) == b"there is room again"
    with pytest.raises(BlockingIOError):
        right.receive()


def test_whoever_has_a_message_can_be_waited_for(pair: Pair) -> None:
    """Each of them: what was received along with another would never wake anybody."""
    left, right = pair
    assert not wait(right.fileno(), 0) and wait(left.fileno(), 0, writable=True)
    for number in range(20):
        left.send(b"%d" % number)
    for number in range(20):
        assert wait(right.fileno(), 20)
        assert right.receive() == (b"%d" % number, None)
    assert not wait(right.fileno(), 0)


def test_deadlines(pair: Pair) -> None:
    left, right = pair
    with pytest.raises(TimeoutError):
        receive_within(right, 0.02)
    with pytest.raises(TimeoutError):
        for _ in range(100_000):
            send_within(left, 0.02, b"x" * 10_000)
    assert right.receive() is not None


# -- ends ----------------------------------------------------------------------------------------------------------


def test_last_words_arrive_and_then_the_end(pair: Pair) -> None:
    left, right = pair
    left.send(b"last words")
    left.close()
    assert heard(right) == b"last words"
    assert heard(right) is None and heard(right) is None
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(100):  # (over a network it takes a moment until that is known)
            send_within(right, 20, b"hello?")
            wait(right.fileno(), 0.01)


def test_closing_while_the_other_sends(pair: Pair) -> None:
    left, right = pair
    errors: list[BaseException] = []

    def send() -> None:
        try:
            while True:
                send_within(left, 20, b"x" * 1000)
        except BaseException as error:
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(10):
        assert heard(right) is not None
    right.close()
    sender.join(20)
    assert len(errors) == 1 and isinstance(errors[0], BrokenPipeError | ConnectionResetError)


def test_shutting_wakes_whoever_waits_on_either_side(pair: Pair) -> None:
    left, right = pair
    ends: list[bytes | None] = []
    waiting = [
        threading.Thread(target=lambda channel=channel: ends.append(heard(channel))) for channel in pair
    ]
    for thread in waiting:
        thread.start()
    left.shut()
    for thread in waiting:
        thread.join(20)
    assert ends == [None, None]
    left.shut()
    right.shut()


def test_a_peer_that_is_killed_is_the_end(place: tuple[Listener, Dial]) -> None:
    """Whatever it was about to say."""
    listener, dial = place
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            channel = dial(20)
            for _ in range(3):
                channel.send(b"x" * 1000)
            os.write(tell, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert wait(listener.fileno(), 20)
        server = listener.accept()
        assert server is not None
        with closing(server):
            watched = server.watch()
            os.read(told, 1)
            os.kill(pid, signal.SIGKILL)
            assert [heard(server) for _ in range(4)] == [b"x" * 1000] * 3 + [None]
            assert watched < 0 or wait(watched, 20)
            assert server.peer.name
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        unix.close_all([told, tell])


# -- what nobody should send ------------------------------------------------------------------------------------


def damaged(kind: str, channel: Channel, how: str) -> None:
    """Send what is no message."""
    assert isinstance(channel, unix.UnixChannel | tcp.TcpChannel)
    sock = channel.sock
    if kind == "unix":
        if how == "garbage":
            sock.send(b"x" * (unix.INLINE + 1))
        else:
            fd = os.memfd_create("half")
            os.write(fd, b"half of it")
            socket.send_fds(sock, [b""], [fd])
            os.close(fd)
    elif how == "garbage":
        sock.send(b"\xff" * 100)
    else:
        sock.send(struct.pack("<II", 1000, 0) + b"half of it")
    channel.close()


@pytest.mark.parametrize("how", ["garbage", "half"])
def test_what_is_no_message_is_refused_and_the_rest_is_the_end(kind: str, pair: Pair, how: str) -> None:
    left, right = pair
    left.send(b"good")
    damaged(kind, left, how)
    assert heard(right) == b"good"
    with pytest.raises(ProtocolError):
        receive_within(right, 20)
    assert heard(right) is None


# -- listening -----------------------------------------------------------------------------------------------------


def test_many_connect_and_nobody_is_waited_for(place: tuple[Listener, Dial]) -> None:
    listener, dial = place
    assert listener.accept() is None and listener.in_place()
    callers = [dial(20) for _ in range(5)]
    servers: list[Channel] = []
    while len(servers) < len(callers):
        assert wait(listener.fileno(), 20)
        channel = listener.accept()
        if channel is not None:
            servers.append(channel)
    assert listener.accept() is None
    listener.close()
    for number, caller in enumerate(callers):
        caller.send(b"%d" % number)
    assert sorted(heard(server) or b"" for server in servers) == [b"%d" % number for number in range(5)]
    for channel in [*callers, *servers]:
        channel.close()
    with pytest.raises(OSError):
        dial(1)
