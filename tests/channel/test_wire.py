"""Wires: frames between machines, over TLS and Unix sockets, from those who mean well and those who do not."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.channel import wire
from headrace.channel.wire import Wire
from headrace.cluster.certificates import make_certificate
from headrace.core.errors import ProtocolError

Pair = tuple[Wire, Wire]


@pytest.fixture(scope="module")
def certificate() -> tuple[ssl.SSLContext, str]:
    return make_certificate("test")


def over_unix(folder: Path) -> Pair:
    path = str(folder / "wire.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        mine = wire.connect_unix(path, 5.0)
        theirs, _ = listener.accept()
        return mine, Wire(theirs, "client")


def over_tls(certificate: tuple[ssl.SSLContext, str], fingerprint: str = "") -> Pair:
    context, known = certificate
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[Wire] = []

        def accept() -> None:
            accepted.append(wire.accept_tls(listener.accept()[0], context, "client", 5.0))

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            mine = wire.connect_tls(listener.getsockname(), fingerprint or known, 5.0)
        finally:
            thread.join()
        return mine, accepted[0]


@pytest.fixture(params=["unix", "tls"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = (
        over_unix(tmp_path) if request.param == "unix" else over_tls(request.getfixturevalue("certificate"))
    )
    yield made
    for one in made:
        one.close()


def beside(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_frames_arrive_whole_and_in_order(pair: Pair) -> None:
    mine, theirs = pair
    frames = [
        (b"a", []),
        (b"", [b"x" * 70_000, bytearray(3), memoryview(b"yy"), b""]),
        (b"long" * 10_000, [os.urandom(5 << 20)] * 3),
        (b"", [b"", bytes(9), os.urandom(90_000), b"w"]),
        (b"small and large", [os.urandom(40_000), os.urandom(40_000)]),
        (b"end", [b"z"] * 3000),
    ]

    def send() -> None:
        for message, body in frames:
            mine.send(message, body, seconds=10.0)

    thread = beside(send)
    for message, body in frames:
        got, rest = theirs.receive(seconds=10.0, body_limit=1 << 30)
        assert (got, bytes(rest)) == (message, b"".join(bytes(one) for one in body))
    thread.join()
    theirs.send(b"and back", seconds=5.0)
    assert mine.receive(seconds=5.0)[0] == b"and back"


def test_who_says_nothing_is_not_waited_for(pair: Pair) -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="did not answer"):
        pair[0].receive(seconds=0.2)
    assert time.monotonic() - begun < 5.0


def test_who_takes_in_nothing_is_not_waited_for(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        pair[0].send(b"a", [bytes(64 << 20)], seconds=0.2)


def test_who_waits_is_woken_by_the_end(pair: Pair) -> None:
    mine, theirs = pair
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            mine.receive(seconds=None)
        except (EOFError, OSError) as error:
            raised.append(error)

    thread = beside(wait)
    time.sleep(0.1)
    mine.shut()
    thread.join(5.0)
    assert raised
    with pytest.raises((EOFError, OSError)):
        theirs.receive(seconds=5.0)


def test_a_frame_that_is_cut_off_is_an_end(pair: Pair) -> None:
    mine, theirs = pair
    mine.send(b"whole", seconds=5.0)
    mine._send([memoryview(struct.pack("<4sIQ", b"hrw1", 100, 0) + b"half")], 5.0)
    mine.shut()
    assert theirs.receive(seconds=5.0)[0] == b"whole"
    with pytest.raises((EOFError, OSError)):
        theirs.receive(seconds=5.0)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<4sIQ", b"HTTP", 5, 0),
        struct.pack("<4sIQ", b"hrw1", 0xFFFFFFFF, 0),
        struct.pack("<4sIQ", b"hrw1", 5, 1 << 62),
    ],
)
def test_what_is_no_frame_is_refused_before_memory_is_taken_for_it(tmp_path: Path, head: bytes) -> None:
    mine, theirs = over_unix(tmp_path)
    mine._send([memoryview(head)], 5.0)
    with pytest.raises(ProtocolError, match="no frame"):
        theirs.receive(seconds=5.0, body_limit=1 << 20)
    for one in (mine, theirs):
        one.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_whatever_arrives_is_a_frame_or_an_error(data: bytes) -> None:
    left, right = socket.socketpair()
    ours = Wire(right, "somebody")
    left.sendall(data)
    left.close()
    with contextlib.suppress(ProtocolError, EOFError, ConnectionResetError):
        ours.receive(seconds=5.0, limit=64, body_limit=64)
    ours.close()


def test_another_certificate_is_refused(certificate: tuple[ssl.SSLContext, str]) -> None:
    with pytest.raises(ProtocolError, match="another certificate"):
        over_tls(certificate, make_certificate("other")[1])


def test_who_speaks_no_tls_is_refused(certificate: tuple[ssl.SSLContext, str]) -> None:
    left, right = socket.socketpair()
    thread = beside(lambda: left.sendall(b"GET / HTTP/1.1\r\n\r\n"))
    with pytest.raises(OSError):
        wire.accept_tls(right, certificate[0], "somebody", 1.0)
    thread.join()
    left.close()
    right.close()


def test_another_user_on_this_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = over_unix(tmp_path)
    (tmp_path / "wire.sock").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ProtocolError, match="belongs to user"):
        over_unix(tmp_path)
    for one in (mine, theirs):
        one.close()


def test_something_is_done_while_nothing_comes(pair: Pair) -> None:
    one, other = pair
    calls: list[float] = []

    def meanwhile() -> float:
        calls.append(time.monotonic())
        if len(calls) == 3:
            other.send(b"now", seconds=5.0)
        return 0.01

    one.meanwhile = meanwhile
    assert one.receive(seconds=None)[0] == b"now"
    assert len(calls) >= 3
    with pytest.raises(TimeoutError):
        one.receive(seconds=0.05)
    assert len(calls) > 5

    def fails() -> float:
        raise ProtocolError("nonsense")

    one.meanwhile = fails
    with pytest.raises(ProtocolError, match="nonsense"):
        one.receive(seconds=5.0)
    other.send(b"then", seconds=5.0)
    one.meanwhile = None
    assert one.receive(seconds=5.0)[0] == b"then"


def test_one_that_is_let_go_meanwhile_is_an_end(pair: Pair) -> None:
    """An agent sends by one thread, and another lets the connection go."""
    one, other = pair

    def meanwhile() -> float:
        one.close()
        return 0.01

    one.meanwhile = meanwhile
    with pytest.raises(EOFError, match="let go"):
        one.receive(seconds=5.0)
    with pytest.raises((EOFError, OSError)):
        other.receive(seconds=5.0)


def test_nothing_is_sent_in_plain_while_tls_ends(
    certificate: tuple[ssl.SSLContext, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = over_tls(certificate)
    said: list[str] = []

    def send() -> None:
        try:
            mine.send(b"secret", seconds=5.0)
            said.append("sent")
        except (OSError, EOFError):
            said.append("not sent")

    def between(
        sock: socket.socket, *, close: Callable[[socket.socket], None] = socket.socket._real_close
    ) -> None:  # type: ignore[attr-defined]
        if sock is mine._sock:  # (others may be let go of meanwhile)
            threads.append(beside(send))
            threads[0].join(0.2)
        close(sock)

    threads: list[threading.Thread] = []
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(socket.socket, "_real_close", between)
        mine.close()
    threads[0].join()
    theirs.close()
    assert said == ["not sent"]


@pytest.mark.parametrize(
    ("says", "error"), [(b"220 ready\r\n", ProtocolError), (b"", ssl.SSLEOFError), (None, TimeoutError)]
)
def test_somebody_else_and_somebody_who_does_not_answer(says: bytes | None, error: type[Exception]) -> None:
    """Who speaks no TLS is somebody else. Who ends the connection, or does not answer, may be who is expected."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        if says is not None:
            theirs.sendall(says)
            theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(error):
            wire.start_tls(mine, "", "name", 0.2 if says is None else 20.0)
        assert mine.fileno() < 0


def test_bodies_cross_each_other_whoever_is_slow(pair: Pair) -> None:
    sizes = [1, 16_384, 70_001, 16_385, (3 << 20) + 7, (1 << 20) - 1]
    bodies = [[os.urandom(nbytes) for nbytes in sizes] for _ in pair]
    pieces = [5, 16_383, 300_001]
    wrong: list[object] = []

    def send(number: int) -> None:
        for at, body in enumerate(bodies[number]):
            pair[number].send(
                str(at).encode(), [body[: len(body) // 3], body[len(body) // 3 :]], seconds=10.0
            )

    def receive(number: int, pause: float) -> None:
        for at, body in enumerate(bodies[1 - number]):
            message, nbytes = pair[number].receive_message(seconds=10.0, body_limit=1 << 30)
            got = bytearray(nbytes)
            begin = 0
            while begin < nbytes:
                part = memoryview(got)[begin : begin + pieces[(at + begin) % 3]]
                pair[number].receive_into(part, seconds=10.0)
                begin += len(part)
                time.sleep(pause)
            if message != str(at).encode() or got != body:
                wrong.append((number, at))

    threads = [beside(lambda n=n: send(n)) for n in (0, 1)]  # type: ignore[misc]
    threads.append(beside(lambda: receive(0, 0.0002)))
    receive(1, 0.0)
    for thread in threads:
        thread.join(30.0)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("end", ["shut", "goodbye"])
def test_a_body_that_is_cut_off_is_an_end(certificate: tuple[ssl.SSLContext, str], end: str) -> None:
    mine, theirs = over_tls(certificate)
    theirs._send([memoryview(wire._HEAD.pack(b"hrw1", 1, 1 << 20) + b"m" + bytes(600_001))], 5.0)
    if end == "shut":
        theirs.shut()
    else:
        with contextlib.suppress(ssl.SSLWantReadError):
            theirs._sock.unwrap()  # type: ignore[attr-defined]
    assert mine.receive_message(seconds=5.0, body_limit=1 << 20) == (b"m", 1 << 20)
    into = bytearray(1 << 20)
    with pytest.raises(EOFError, match="ended the connection"):
        mine.receive_into(into, seconds=5.0)
    for one in (mine, theirs):
        one.close()


def test_who_stops_within_a_body_is_not_waited_for(pair: Pair) -> None:
    mine, theirs = pair
    theirs._send([memoryview(wire._HEAD.pack(b"hrw1", 0, 90_000) + bytes(40_000))], 5.0)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="did not answer"):
        mine.receive(seconds=0.2, body_limit=1 << 20)
    assert 0.1 < time.monotonic() - begun < 5.0


def test_what_is_closed_receives_nothing(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(OSError):
        pair[0].receive(seconds=1.0)


def test_who_waits_for_a_turn_has_the_next() -> None:
    turns, order = wire._Turns(), list[str]()

    def other() -> None:
        with turns:
            order.append("other")

    with turns:
        thread = beside(other)
        until = time.monotonic() + 5.0
        while not turns._next.locked():
            assert time.monotonic() < until
            time.sleep(0.001)
    with turns:
        order.append("again")
    thread.join()
    assert order == ["other", "again"]


def test_who_receives_much_lets_others_send(certificate: tuple[ssl.SSLContext, str]) -> None:
    """However much has arrived already, TLS's state is asked for again and again."""
    mine, theirs = over_tls(certificate)
    taken: list[int] = []

    class Counted(wire._Turns):
        def __enter__(self) -> None:
            taken.append(1)
            super().__enter__()

    thread = beside(lambda: theirs.send(b"", [bytes(8 << 20)], seconds=10.0))
    nbytes = mine.receive_message(seconds=5.0, body_limit=1 << 30)[1]
    mine._using = Counted()
    mine.receive_into(bytearray(nbytes), seconds=5.0)
    thread.join()
    assert len(taken) >= (8 << 20) // wire._AT_A_TIME
    for one in (mine, theirs):
        one.close()


def congestion_control(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def test_a_wire_heeds_losses_whatever_the_machine_does() -> None:
    """BBR does not, where many send at once; what else a machine was told to use it goes on using."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("bbr", "reno"):
            with socket.create_connection(server.getsockname()) as sock:
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
                except OSError:
                    assert name == "bbr", "everybody may have reno"
                    continue  # (not on this machine)
                assert congestion_control(sock) == name
                Wire(sock, "a machine")
                assert congestion_control(sock) in (("reno",) if name == "reno" else ("cubic", "reno"))


def test_a_wire_heeds_losses_where_cubic_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_CALMER", (b"such as there is not", b"reno"))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
    ):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError:
            pytest.skip("this machine has no BBR")
        Wire(sock, "a machine")
        assert congestion_control(sock) == "reno"
