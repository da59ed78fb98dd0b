"""Rails: where servers listen, from where ranks connect, and what becomes of a rail that fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.bucket.network import NoNetwork, check, inside, remove

from headrace.channel import wire
from headrace.cluster import rails
from headrace.cluster.certificates import make_certificate
from headrace.cluster.messages import Node, View
from headrace.cluster.ports import ANY
from headrace.cluster.rails import Dialer, address_of, listen_at, rails_of
from tests.cluster.nodes import write_photos
from tests.machines import RAILS

REPOSITORY = Path(__file__).parents[2]


# -- listening and connecting ----------------------------------------------------------------------------------


class Listening:
    """Somebody who listens at addresses of this machine, and remembers who came from where to which of them."""

    def __init__(
        self,
        host: str,
        *others: str,
        certificate: tuple[ssl.SSLContext, str],
        port: int = 0,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """``before``: what it does before it takes a connection."""
        self._before = before
        self.sockets = listen_at(host, (port, port), others)
        self.port: int = self.sockets[0].getsockname()[1]
        self.came: list[tuple[str, str]] = []
        for sock in self.sockets:
            threading.Thread(target=self._accept, args=(sock, certificate[0]), daemon=True).start()
        self.node = Node("n", "i", host, self.port, certificate[1], 1, rails=(host, *others))

    def _accept(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._before()
                taken, address = sock.accept()
                self.came.append((address[0], taken.getsockname()[0]))
                wire.accept_tls(taken, context, "x", 5.0)

    def close(self) -> None:
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@pytest.fixture(scope="module")
def certificate() -> tuple[ssl.SSLContext, str]:
    return make_certificate("n")


@pytest.fixture
def listening(certificate: tuple[ssl.SSLContext, str]) -> Iterator[Listening]:
    made = Listening("127.0.0.1", "127.0.1.9", "127.0.2.9", certificate=certificate)
    yield made
    made.close()


def connect(dialer: Dialer, node: Node) -> None:
    dialer.connect(node, node.port, node.certificate, 5.0).close()


def test_a_rank_connects_from_its_rail_to_the_one_in_the_same_network(listening: Listening) -> None:
    connect(Dialer("127.0.2.7/24"), listening.node)
    connect(Dialer("127.0.1.7/24"), listening.node)
    assert listening.came == [("127.0.2.7", "127.0.2.9"), ("127.0.1.7", "127.0.1.9")]


def test_where_there_is_no_rail_the_system_chooses(listening: Listening) -> None:
    for own in ("", "127.0.9.7/24", "fd00::7/64"):
        connect(Dialer(own), listening.node)
    connect(Dialer("127.0.1.7/24"), msgspec.structs.replace(listening.node, rails=()))
    connect(Dialer("127.0.1.7/24"), msgspec.structs.replace(listening.node, rails=("nonsense", "")))
    assert listening.came == [("127.0.0.1", "127.0.0.1")] * 5


def test_rails_in_one_network_are_all_used(listening: Listening) -> None:
    for number in range(10, 16):
        connect(Dialer(f"127.0.3.{number}/8"), listening.node)
    assert {to for _, to in listening.came} == {"127.0.0.1", "127.0.1.9", "127.0.2.9"}


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses to which somebody connected, or tried to."""
    out: list[str] = []
    real = socket.create_connection

    def spy(address: tuple[str, int], *args: Any, **options: Any) -> socket.socket:
        out.append(address[0])
        return real(address, *args, **options)

    monkeypatch.setattr(socket, "create_connection", spy)
    return out


def test_a_rail_that_fails_is_left_alone_for_a_while(
    listening: Listening,
    certificate: tuple[ssl.SSLContext, str],
    tried: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = msgspec.structs.replace(listening.node, rails=("127.0.1.8",))  # nobody is there
    dialer = Dialer("127.0.1.7/24")
    connect(dialer, node)
    connect(dialer, node)
    assert tried == ["127.0.1.8", "127.0.0.1", "127.0.0.1"]
    monkeypatch.setattr(rails, "_AGAIN", 0.0)
    connect(dialer, msgspec.structs.replace(node, id="m"))
    connect(dialer, msgspec.structs.replace(node, id="m"))
    assert tried[3:] == ["127.0.1.8", "127.0.0.1"] * 2
    # this end has no such address (any more)
    connect(Dialer("192.0.2.7/24"), msgspec.structs.replace(node, rails=("192.0.2.8",)))
    # a node that is gone is not its rail's fault
    gone = Listening("127.0.0.1", certificate=certificate)
    gone.close()
    fresh = Dialer("127.0.1.7/24")
    with pytest.raises(OSError):
        connect(fresh, msgspec.structs.replace(gone.node, rails=("127.0.1.9",)))
    assert not fresh._failed


def test_a_node_that_is_busy_is_not_its_rails_fault(
    certificate: tuple[ssl.SSLContext, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine answers, and its process takes a while."""
    monkeypatch.setattr(rails, "_REACH", 0.2)
    busy = threading.Event()
    listening = Listening("127.0.0.1", "127.0.1.9", certificate=certificate, before=lambda: busy.wait(20))
    timer = threading.Timer(0.8, busy.set)
    timer.start()
    dialer = Dialer("127.0.1.7/24")
    try:
        connect(dialer, listening.node)
        connect(dialer, listening.node)
    finally:
        busy.set()
        timer.join()
        listening.close()
    assert listening.came == [("127.0.1.7", "127.0.1.9")] * 2


@pytest.mark.parametrize("ends", [False, True], ids=["hangs", "ends connections"])
def test_a_process_that_does_not_answer_is_not_its_rails_fault(tried: list[str], ends: bool) -> None:
    """Its machine does, and its other address leads to the same process; unless it is another machine, which the next
    try finds out."""
    first, *others = sockets = listen_at("127.0.0.1", ANY, ("127.0.1.9",))
    node = Node("n", "i", "127.0.0.1", first.getsockname()[1], "c", 1, rails=("127.0.1.9",))
    if ends:
        threading.Thread(target=lambda: others[0].accept()[0].close()).start()
    dialer = Dialer("127.0.1.7/24")
    with pytest.raises(OSError) as raised:
        dialer.connect(node, node.port, node.certificate, 20.0 if ends else 0.2)
    for sock in sockets:
        sock.close()
    assert isinstance(raised.value, TimeoutError) != ends
    assert tried == ["127.0.1.9"], "nobody waits twice"
    with pytest.raises(OSError):
        dialer.connect(node, node.port, node.certificate, 20.0)
    assert tried == ["127.0.1.9", "127.0.0.1"] and dialer._failed["n"] < time.monotonic() + rails._AGAIN / 2
    dialer._failed["n"] = time.monotonic()
    with pytest.raises(OSError):
        dialer.connect(node, node.port, node.certificate, 20.0)
    assert tried[2:] == ["127.0.1.9", "127.0.0.1"], "the rail, once it has rested; nobody is there any more"


def test_somebody_else_at_the_port_of_a_rail(
    certificate: tuple[ssl.SSLContext, str], tried: list[str]
) -> None:
    """Who listens there is known by its certificate, or does not even speak TLS."""
    right = Listening("127.0.0.1", certificate=certificate)
    other = Listening("127.0.1.9", certificate=make_certificate("other"), port=right.port)
    plain = listen_at("127.0.2.9", (right.port, right.port))[0]

    def greet() -> None:
        with plain.accept()[0] as sock:
            sock.sendall(b"220 ready\r\n")
            sock.recv(1)

    threading.Thread(target=greet).start()
    try:
        for network in (1, 2):
            dialer = Dialer(f"127.0.{network}.7/24")
            for _ in range(2):
                connect(dialer, msgspec.structs.replace(right.node, rails=(f"127.0.{network}.9",)))
    finally:
        other.close()
        right.close()
        plain.close()
    assert tried == ["127.0.1.9", "127.0.0.1", "127.0.0.1", "127.0.2.9", "127.0.0.1", "127.0.0.1"]
    assert (len(other.came), right.came) == (1, [("127.0.0.1", "127.0.0.1")] * 4)


def test_an_address_that_cannot_be_listened_at_is_left_out() -> None:
    found = listen_at("127.0.0.1", ANY, ("127.0.0.1", "192.0.2.1", "127.0.1.9"))
    assert [sock.getsockname()[0] for sock in found] == ["127.0.0.1", "127.0.1.9"]
    assert len({sock.getsockname()[1] for sock in found}) == 1
    for sock in found:
        sock.close()


def test_addresses_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert address_of("lo") in ("127.0.0.1/8", "")
    assert address_of("none-such") == "" == address_of("x" * 40)
    listed = tmp_path / "if_inet6"
    listed.write_text(
        f"fe80{'0' * 27}1 02 40 20 80 none-such\n20010db8{'0' * 23}1 02 40 00 80 none-such\nnonsense\n"
    )
    monkeypatch.setattr(rails, "_ADDRESSES_6", str(listed))
    assert address_of("none-such") == "2001:db8::1/64"
    assert address_of("another") == ""


def test_rails_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = RAILS.build(tmp_path)
    monkeypatch.setattr(rails, "address_of", lambda name: f"10.{ord(name[-1]) - ord('0')}.0.7/24")
    found = tuple(f"10.{number}.0.7" for number in range(4))
    assert rails_of("192.0.2.1", root) == rails_of("10.0.0.7", root) == rails_of("a-name", root) == found
    assert rails_of("10.2.0.7", root) == ("10.2.0.7", "10.0.0.7", "10.1.0.7", "10.3.0.7")
    assert rails_of("127.0.0.1", root) == ()  # a cluster of one machine
    for number in range(1, 4):
        shutil.rmtree(tmp_path / f"class/net/rail{number}", ignore_errors=True)
        (tmp_path / f"class/net/rail{number}").unlink()
    assert rails_of("10.0.0.7", root) == ()  # the only one
    assert rails_of("192.0.2.1", root) == ("10.0.0.7",)
    monkeypatch.setenv("HEADRACE_RAILS", "0")
    assert rails_of("192.0.2.1", root) == ()


# -- two machines and three cables -----------------------------------------------------------------------------

CABLES = ("slow", "rail0", "rail1")


def address(cable: str, end: int) -> str:
    return f"10.216.{CABLES.index(cable)}.{end + 1}"


class Machines:
    """Two network namespaces with a cable between each pair of interfaces."""

    def __init__(self) -> None:
        self.names = [f"hrrails-{os.getpid()}-{end}" for end in range(2)]
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            for cable in CABLES:
                pair = ("type", "veth", "peer", "name", cable, "netns", self.names[1])
                run("ip", "link", "add", cable, "netns", self.names[0], *pair)
                for end, name in enumerate(self.names):
                    run("ip", "-n", name, "address", "add", f"{address(cable, end)}/24", "dev", cable)
                    run("ip", "-n", name, "link", "set", cable, "up")
        except BaseException:
            self.close()
            raise

    def start(self, end: int, *command: str, **options: str) -> subprocess.Popen[str]:
        """The driver, in a namespace."""
        paths = [str(REPOSITORY), str(REPOSITORY / "src")]
        return subprocess.Popen(
            [*inside(self.names[end]), sys.executable, "-m", "tests.cluster.rails_driver", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **options},
        )

    def carried(self) -> dict[str, int]:
        """Bytes that each cable has carried so far, both ways."""
        said = subprocess.run(
            [*inside(self.names[0]), "cat", "/proc/net/dev"], capture_output=True, text=True
        )
        out = {}
        for line in said.stdout.splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() in CABLES:
                out[name.strip()] = int(numbers.split()[0]) + int(numbers.split()[8])
        return out

    def close(self) -> None:
        for name in self.names:
            remove(name)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoNetwork(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


@pytest.fixture
def machines() -> Iterator[Machines]:
    try:
        check()
        made = Machines()
    except NoNetwork as error:
        pytest.skip(f"needs network namespaces: {error}")
    yield made
    made.close()


@pytest.mark.slow
def test_what_a_rank_gets_comes_by_its_rail(machines: Machines, tmp_path: Path) -> None:
    """Ranks 0 and 1 are at the first rail's GPUs, 2 at the second's; then the second rail is cut."""
    root, folder = str(tmp_path / "sys"), tmp_path / "photos"
    RAILS.build(Path(root))
    folder.mkdir()
    write_photos(folder, 64)
    nodes = [
        machines.start(end, "node", root, f"{tmp_path}/{end}.sock", f"n{end}", address("slow", end), str(end))
        for end in range(2)
    ]
    try:
        found = [msgspec.json.decode(said(one), type=Node) for one in nodes]
        assert [one.rails for one in found] == [
            (address("rail0", end), address("rail1", end)) for end in range(2)
        ]
        for one in nodes:
            tell(one, msgspec.json.encode(View(1, tuple(found))).decode())

        def job(rank: int) -> dict[str, int]:
            before = machines.carried()
            process = machines.start(
                0, "job", root, f"{tmp_path}/0.sock", str(folder), str(rank), WORLD_SIZE="8", RANK=str(rank)
            )
            try:
                result = json.loads(said(process))
            finally:
                end(process)
            assert result["right"] and result["helped"] > 0
            return {name: now - before[name] for name, now in machines.carried().items()}

        def mostly(cable: str, carried: dict[str, int]) -> bool:
            # (definitions go the plain way, and neighbours look for each other)
            return carried[cable] > 500_000 and all(
                carried[other] < carried[cable] / 10 for other in CABLES if other != cable
            )

        for rank, cable in ((0, "rail0"), (2, "rail1")):
            carried = job(rank)
            assert mostly(cable, carried), carried
        run("ip", "-n", machines.names[1], "link", "set", "rail1", "down")
        carried = job(3)
        assert mostly("slow", carried), carried
    finally:
        for one in nodes:
            end(one)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the driver ended with {process.wait(10)}"
    return line


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()
    said(process)


def end(process: subprocess.Popen[str]) -> None:
    """Let it end by itself, with its helpers; else by force."""
    with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(15)
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
