"""The shared host against everything that could be sent to it: it answers, serves exact epochs and keeps nothing.

A real host on a real socket. What is sent is drawn from a fixed seed; with ``HEADRACE_FUZZ_ROUNDS`` it goes on for as
many rounds as that says, from a seed of its own (or ``HEADRACE_FUZZ_SEED``), which a failure names.
"""

# ruff: noqa: F811

from __future__ import annotations

import fcntl
import os
import random
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from headrace.channel.channel import REPLY_LIMIT, Memory, Received, receive_within, send_within
from headrace.channel.unix import UnixChannel, close_all
from headrace.coordinate.members import write_progress
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    Ask,
    Begin,
    Drawn,
    Finished,
    GetStatus,
    Hello,
    Identities,
    Idle,
    Join,
    Joined,
    Known,
    Over,
    Ping,
    Pong,
    Request,
    Update,
    Welcome,
    decode_reply,
)
from headrace.core.bits import Bits
from headrace.host import control, runtime
from headrace.planning import Spent
from tests.host.test_service import identities
from tests.loader.helpers import wait_until
from tests.sharing.driver import assert_exact
from tests.sharing.fixtures import Start, keep_nursery, place, start  # noqa: F401

ROUNDS = int(os.environ.get("HEADRACE_FUZZ_ROUNDS", "0"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "0")) or (secrets.randbits(32) if ROUNDS else 11)
SAMPLES = 96

nursery = pytest.fixture(scope="module", name="nursery")(keep_nursery)


@pytest.fixture(autouse=True)
def _no_processes_left() -> None:
    """``start`` and ``place`` see to that here."""


def join(token: str, **other: Any) -> Join:
    """What a job says that means it."""
    told = Join(
        name="job", group=token, rank=0, world_size=1, dataset="fuzz", label="fuzz", samples=SAMPLES,
        encoded="e", decoded="d", augmented="a", body=256, budget=1 << 20, split=None, sampling="auto",
        eviction="auto", batch_size=8, drop_last=False,
    )  # fmt: skip
    return msgspec.structs.replace(told, **other)


def let_go(received: Received) -> None:
    """Close what came beside a message."""
    if received[1] is not None:
        received[1].close()


class Good:
    """A job that does everything right, and is given every sample once per epoch."""

    def __init__(self) -> None:
        self.channel = runtime.find_or_start()
        self.pid, self.epoch = self.channel.peer.pid, -1
        assert isinstance(self.ask(Hello(PROTOCOL, "job", os.getpid(), "good")), Welcome)
        answer = self.ask(join("good"))
        if answer == Joined(True):
            answer = self.ask(Identities(), identities(SAMPLES).tobytes())
        assert answer == Joined(False)
        self.got: list[int] = []

    def ask(self, request: Request, beside: bytes | None = None) -> object:
        send_within(self.channel, 30, encoder.encode(request), beside)
        while True:
            received = receive_within(self.channel, 30, REPLY_LIMIT)
            assert received is not None, "the host let a good job go"
            let_go(received)
            reply = decode_reply(received[0])
            if not isinstance(reply, Update):
                return reply

    def step(self) -> None:
        """One batch, which is done with at once."""
        if self.epoch < 0:
            self.begin()
        drawn = self.ask(Ask())
        if isinstance(drawn, Over):
            assert sorted(self.got) == list(range(SAMPLES))
            self.begin()
            drawn = self.ask(Ask())
        assert isinstance(drawn, Drawn), drawn
        self.got += np.frombuffer(drawn.indices, np.int64).tolist()
        send_within(self.channel, 30, encoder.encode(Finished(drawn.ticket, 0, len(drawn.indices) // 8)))
        assert self.ask(Ping()) == Pong()

    def begin(self) -> None:
        self.epoch, self.got = self.epoch + 1, []
        send_within(self.channel, 30, encoder.encode(Begin(self.epoch)))


class Rogue:
    """A job that keeps to the order of things, and to little else. It may have a worker."""

    def __init__(self, fuzz: Fuzz) -> None:
        self.fuzz, self.chance = fuzz, fuzz.chance
        fuzz.number += 1
        self.token = f"rogue{fuzz.number}"
        self.channel = fuzz.connect()
        self.worker: UnixChannel | None = None
        self.tickets: list[tuple[int, int, bytes]] = []
        self.epoch = -1
        self.tell(Hello(PROTOCOL, "job", os.getpid(), self.token))
        sampling = self.chance.choice(("auto", "auto", "dependent", "opportunistic", "uniform"))
        self.explicit = sampling == "uniform"
        self.samples = self.chance.choice((SAMPLES, SAMPLES, 5, 200))
        world = 1 if self.explicit else self.chance.choice((1, 1, 2))
        group = f"group{fuzz.number // 4}" if world == 2 else self.token
        dataset = "fuzz" if self.samples == SAMPLES else f"set{self.chance.randrange(40)}of{self.samples}"
        self.tell(
            join(
                group, sampling=sampling, samples=self.samples, world_size=world, rank=fuzz.number % world,
                dataset=dataset, batch_size=self.chance.choice((1, 8, 8, 300)), drop_last=self.chance.random() < 0.2,
                augmented=self.chance.choice(("a", "", f"a{self.chance.randrange(3)}")),
                decoded=self.chance.choice(("d", "d", "", "d2")),
                budget=self.chance.choice((1 << 20, 1 << 12, 0, 1 << 40)),
                split=self.chance.choice((None, None, (0.0, 1.0, 0.0), (1.0, 1.0, 1.0))),
                eviction=self.chance.choice(("auto", "lru", "none")), collates=self.chance.random() < 0.2,
            )
        )  # fmt: skip

    def tell(self, request: Request, beside: bytes | None = None) -> None:
        self.fuzz.send(self.channel, encoder.encode(request), beside)

    def listen(self) -> None:
        """Take in what came. The host is asked for nothing that it would have to be waited for."""
        with suppress(OSError):
            while (received := self.channel.receive(REPLY_LIMIT)) is not None:
                let_go(received)
                reply = decode_reply(received[0])
                if reply == Joined(True):
                    self.tell(Identities(), identities(self.samples).tobytes())
                elif isinstance(reply, Drawn):
                    self.tickets.append((reply.ticket, len(reply.indices) // 8, reply.grants))

    def act(self) -> None:
        """One more thing."""
        self.listen()
        chance = self.chance
        what = chance.choice(("ask", "ask", "ask", "begin", "finish", "finish", "worker", "ping", "wild"))
        if what == "begin" or self.epoch < 0:
            self.begin()
        elif what == "ask":
            rows = np.array([chance.randrange(self.samples) for _ in range(chance.randrange(1, 9))], np.int64)
            self.tell(Ask(rows.tobytes() if self.explicit else b""))
        elif what == "finish" and self.tickets:
            self.finish()
        elif what == "worker":
            if self.worker is None:
                self.worker = self.fuzz.connect()
                hello = Hello(PROTOCOL, "worker", os.getpid(), self.token)
                self.fuzz.send(self.worker, encoder.encode(hello))
            self.fuzz.send(self.worker, encoder.encode(Idle()))
            if chance.random() < 0.1:
                self.worker.close()
                self.worker = None
        elif what == "ping":
            self.tell(Ping())
        elif what == "wild" and chance.random() < 0.1:
            self.tell(self.fuzz.request())

    def begin(self) -> None:
        chance = self.chance
        self.epoch += chance.choice((0, 1, 1, 2))
        if self.explicit or chance.random() < 0.6:
            self.tell(Begin(self.epoch, 0, self.explicit, 0, self.fuzz.known() if self.explicit else None))
            return
        given = [sample for sample in range(self.samples) if chance.random() < 0.3]
        steps = {
            chance.randrange(6): np.array(
                [chance.randrange(self.samples) for _ in range(chance.randrange(1, 20))]
            )
            for _ in range(chance.randrange(3))
        }
        progress = write_progress(Bits.of(self.samples, given), steps)
        self.tell(Begin(self.epoch, len(given), False, chance.randrange(6)), progress)

    def finish(self) -> None:
        chance = self.chance
        ticket, rows, grants = self.tickets[chance.randrange(len(self.tickets))]
        first = chance.randrange(rows) if chance.random() < 0.3 else 0
        count = min(rows - first, chance.choice((1, 8, rows)))
        made = np.frombuffer(grants, np.int64).reshape(-1, 4).copy()
        made = made[(made[:, 0] >= first) & (made[:, 0] < first + count)]
        made[:, 3] = np.minimum(made[:, 3], 200)
        if chance.random() < 0.05 and len(made):
            made[chance.randrange(len(made)), chance.randrange(4)] += chance.choice((1, 64, -64))
        report = Finished(ticket, first, count, made.tobytes() if chance.random() < 0.8 else b"")
        channel = self.worker if self.worker is not None and chance.random() < 0.7 else self.channel
        self.fuzz.send(channel, encoder.encode(report))


class Fuzz:
    """Says and does what nobody should."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.open: list[UnixChannel] = []
        self.number = 0
        self.tricks: list[Callable[[], None]] = [
            self.noise, self.nonsense, self.nonsense, self.damage, self.talk, self.talk, self.talk, self.crowd,
            self.silence, self.deaf, self.halves, self.descriptors, self.rogues, self.rogues, self.rogues,
        ]  # fmt: skip
        self.jobs: list[Rogue] = []

    # -- what things are made of -------------------------------------------------------------------------------

    def integer(self) -> int:
        edges = (
            0,
            1,
            2,
            7,
            63,
            64,
            SAMPLES - 1,
            SAMPLES,
            1 << 20,
            1 << 31,
            1 << 40,
            1 << 48,
            (1 << 63) - 1,
            (1 << 64) - 1,
        )
        return self.chance.choice((1, 1, -1)) * self.chance.choice(edges)

    def number_(self) -> float:
        return self.chance.choice(
            (0.0, 1.0, -1.0, 0.3, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
        )

    def text(self) -> str:
        return self.chance.choice(
            ("", "auto", "uniform", "job", "e", "x" * 128, "y" * 513, "\0\n\x1b[2J", "ü" * 300)
        )

    def octets(self) -> bytes:
        rows = self.chance.choice((0, 1, 3, 8, 64, 4000))
        kind = self.chance.randrange(3)
        if kind == 0:
            return self.chance.randbytes(rows)
        low, high = (0, SAMPLES) if kind == 1 else (-(1 << 63), (1 << 63) - 1)
        return np.array([self.chance.randint(low, high) for _ in range(rows)], np.int64).tobytes()

    def anything(self) -> Any:
        return self.chance.choice(
            (self.integer, self.number_, self.text, self.octets, lambda: None, lambda: [], lambda: True)
        )()

    def file(self) -> int:
        """A descriptor of some kind; of most, nothing should be read."""
        kind = self.chance.randrange(8)
        if kind < 4:
            fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            if kind == 0:
                os.ftruncate(fd, self.chance.choice((1 << 20, 3 << 30, 1 << 44)))
            else:
                os.write(
                    fd,
                    self.chance.choice(
                        (self.octets(), write_progress(Bits.full(SAMPLES), {}), bytes(16 * SAMPLES))
                    ),
                )
            if kind != 1:
                seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return fd
        if kind == 4:
            ends = os.pipe()
            os.close(ends[self.chance.randrange(2)])
            return next(fd for fd in ends if _is_open(fd))
        if kind == 5:
            left, right = socket.socketpair()
            right.close()
            return left.detach()
        return os.open(
            self.chance.choice((os.devnull, "/dev/zero", "/", sys.executable)), os.O_RDONLY | os.O_CLOEXEC
        )

    def request(self) -> Request:
        """A request as it could be meant, more or less."""
        token, chance = f"bad{self.chance.randrange(4)}", self.chance
        some = chance.choice
        choices: tuple[Callable[[], Request], ...] = (
            lambda: Hello(some((PROTOCOL, PROTOCOL, 1)), some(("job", "worker", "control", "")), 1, token),
            lambda: join(
                token,
                sampling=some(("auto", "uniform", "dependent", "opportunistic", "none")),
                world_size=some((1, 1, 2)),
                rank=some((0, 0, 1, 2)),
                dataset=some(("fuzz", "fuzz", "other", "third")),
                samples=some((SAMPLES, SAMPLES, 5)),
                split=some((None, None, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))),
                body=some((256, 256, 0, 1 << 40)),
                batch_size=some((1, 8, 1000, 1 << 30)),
                budget=some((1 << 20, 0, 1 << 48)),
                collates=chance.random() < 0.2,
            ),
            Identities,
            lambda: Begin(some((0, 1, 2)), some((0, 5)), chance.random() < 0.3, some((0, 0, 3))),
            lambda: Begin(some((0, 1, 1 << 40)), 0, chance.random() < 0.8, 0, self.known()),
            lambda: Ask(b"" if chance.random() < 0.6 else self.octets()),
            lambda: Ask(np.arange(chance.randrange(1, 9)).tobytes()),
            lambda: Finished(
                chance.randrange(200),
                some((0, 0, 4)),
                some((0, 8, 4, 1 << 40)),
                self.published(),
                (some((0, 0, 1 << 40)), 0, 0),
                Spent(decoded=some((0, 8))),
            ),
            Idle,
            Ping,
            GetStatus,
        )
        return chance.choice(choices)()

    def known(self) -> Known | None:
        """An order, of whatever kind."""
        some = self.chance.choice
        return Known(
            some((0, 7, -5, 1 << 62)),
            some((True, True, False)),
            some((1, 8, 8, 1 << 32)),
            some((0, 0, 1)),
            some((1, 1, 2, 1 << 20)),
            some((True, False)),
            some((0, 0, 5, 1 << 40)),
        )

    def published(self) -> bytes:
        rows = [
            (self.chance.randrange(9), self.chance.randrange(-1, 5), 64 * self.chance.randrange(1 << 10), 100)
            for _ in range(self.chance.choice((0, 0, 1, 3)))
        ]
        return np.array(rows, np.int64).tobytes()

    # -- tricks ------------------------------------------------------------------------------------------------

    def connect(self) -> UnixChannel:
        """Another connection; the oldest go."""
        while len(self.open) > 100:
            self.open.pop(self.chance.randrange(len(self.open))).close()
        channel = runtime.connect(30)
        assert channel is not None, "there is no host"
        self.open.append(channel)
        return channel

    def send(self, channel: UnixChannel, data: bytes, beside: bytes | Memory | None = None) -> None:
        with suppress(OSError):
            channel.send(data, beside)

    def introduced(self) -> UnixChannel:
        channel = self.connect()
        role = self.chance.choice(("job", "job", "worker", "control"))
        token = self.chance.choice(("good", "bad1")) if role == "worker" else f"bad{self.chance.randrange(4)}"
        self.send(channel, encoder.encode(Hello(PROTOCOL, role, os.getpid(), token)))
        if role == "job" and self.chance.random() < 0.8:
            self.send(channel, encoder.encode(join(token)))
            self.send(channel, encoder.encode(Begin(0)))
        return channel

    def noise(self) -> None:
        channel = self.chance.choice((self.connect, self.introduced))()
        for _ in range(3):
            self.send(channel, self.chance.randbytes(self.chance.choice((1, 10, 1000, 70_000, 3 << 20))))

    def nonsense(self) -> None:
        """Requests of the right form, with anything in their fields."""
        channel = self.introduced()
        for _ in range(4):
            fields = msgspec.to_builtins(self.request(), builtin_types=(bytes,))
            for at in range(1, len(fields)):
                if self.chance.random() < 0.4:
                    fields[at] = self.anything()
            with suppress(OverflowError, msgspec.MsgspecError, ValueError):
                self.send(channel, msgspec.msgpack.encode(fields))

    def damage(self) -> None:
        """Requests of which some bytes are others."""
        channel = self.introduced()
        for _ in range(4):
            data = bytearray(encoder.encode(self.request()))
            for _ in range(self.chance.randrange(1, 4)):
                data[self.chance.randrange(len(data))] = self.chance.randrange(256)
            self.send(channel, bytes(data[: self.chance.randrange(1, len(data) + 1)]))

    def talk(self) -> None:
        """Requests as they should be, in an order in which they should not be, on old connections, too."""
        channel = (
            self.chance.choice(self.open) if self.open and self.chance.random() < 0.5 else self.introduced()
        )
        for _ in range(self.chance.randrange(1, 30)):
            beside = Memory(self.file()) if self.chance.random() < 0.2 else None
            self.send(channel, encoder.encode(self.request()), beside)
            close_all(beside or ())
            if self.chance.random() < 0.3:
                self.listen(channel)

    def rogues(self) -> None:
        """Jobs that nearly do what they should."""
        if len(self.jobs) > 12:
            del self.jobs[self.chance.randrange(len(self.jobs))]
        self.jobs.append(Rogue(self))
        for _ in range(40):
            self.chance.choice(self.jobs).act()

    @staticmethod
    def listen(channel: UnixChannel) -> None:
        with suppress(Exception):
            while (received := channel.receive(REPLY_LIMIT)) is not None:
                let_go(received)

    def crowd(self) -> None:
        """Many come at once, and some go."""
        with ExitStack() as stack:
            for _ in range(self.chance.randrange(5, 40)):
                channel = runtime.connect(30)
                assert channel is not None
                stack.enter_context(closing(channel))
                if self.chance.random() < 0.5:
                    self.send(channel, encoder.encode(self.request()))

    def silence(self) -> None:
        """Some say nothing, or only who they are."""
        for _ in range(3):
            channel = self.connect()
            if self.chance.random() < 0.5:
                self.send(
                    channel, encoder.encode(Hello(PROTOCOL, "job", 1, f"mute{self.chance.randrange(9)}"))
                )

    def deaf(self) -> None:
        """Somebody asks and never reads."""
        channel, request = self.connect(), self.chance.choice((Ping(), GetStatus()))
        role = "job" if isinstance(request, Ping) else "control"
        self.send(channel, encoder.encode(Hello(PROTOCOL, role, 1, "deaf")))
        for _ in range(300):
            self.send(channel, encoder.encode(request))

    def halves(self) -> None:
        """Connections of which one direction is closed, and requests whose files end early or are missing."""
        channel = self.introduced()
        with suppress(OSError):
            channel.sock.shutdown(self.chance.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))
        self.send(channel, encoder.encode(Ping()))
        other = self.connect()
        token = f"half{self.chance.randrange(3)}"
        self.send(other, encoder.encode(Hello(PROTOCOL, "job", 1, token)))
        self.send(other, encoder.encode(join(token, dataset=f"half{self.chance.randrange(99)}", samples=50)))
        table = bytes(self.chance.choice((0, 1, 799, 800, 801)))
        self.send(other, encoder.encode(Identities()), self.chance.choice((table, None)))

    def descriptors(self) -> None:
        """Files where none belong, and more of them than there may be."""
        channel = self.introduced()
        fds = [self.file() for _ in range(self.chance.choice((1, 2, 16, 17, 18, 60)))]
        data = self.chance.choice((b"", b"x", encoder.encode(Identities()), encoder.encode(Begin(0))))
        with suppress(OSError):
            rights = np.array(fds, np.int32).tobytes()
            channel.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        close_all(fds)

    def close(self) -> None:
        for channel in self.open:
            channel.close()
        self.open.clear()
        self.jobs.clear()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def fuzz() -> Iterator[Fuzz]:
    made = Fuzz(SEED)
    yield made
    made.close()


@pytest.mark.timeout(120 + 2 * ROUNDS)
@pytest.mark.fuzz
def test_nobody_can_bring_the_host_down(place: Path, start: Start, fuzz: Fuzz) -> None:
    good = Good()
    host = psutil.Process(good.pid)
    good.step()
    files, threads = host.num_fds(), host.num_threads()
    for round_ in range(ROUNDS or 40):
        trick = fuzz.chance.choice(fuzz.tricks)
        for _ in range(4):
            trick()
        good.step()
        status = control.status(30)
        what = f"round {round_} of seed {SEED}: {trick.__name__}"
        assert status is not None and status.pid == good.pid, what
        assert host.memory_info().rss < 1 << 30 and host.num_threads() == threads, what
    fuzz.close()
    # A job as people have them, with workers, beside the one that was there all the time.
    job = start(data={"size": 200, "augment": "stamp"}, epochs=2)
    job.end()
    for epoch in job.epochs():
        assert_exact(epoch["batches"], range(200), f"seed {SEED}")
        assert epoch["bad"] == 0
    for _ in range(2 * SAMPLES // 8):
        good.step()

    def alone() -> bool:
        now = control.status(30)
        return now is not None and len(now.jobs) == 1 and not now.memory.granted

    assert wait_until(alone, 20), f"seed {SEED}: {control.status(30)}"
    assert host.num_fds() <= files + 1, f"seed {SEED}: descriptors were left open"
    good.channel.close()
    assert control.stop()
    # What it was sent it may complain about, and about nothing else.
    expected = ("ProtocolError", "ValidationError", "DecodeError", "UnicodeDecodeError")
    lines = (place / "host.log").read_text().splitlines()
    other = [line for line in lines if line.split("): ", 1)[-1].split(":")[0] not in expected]
    assert not other, f"seed {SEED}: {other[:9]}"
