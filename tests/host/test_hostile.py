"""What nobody should send, and nobody should fail to do: the host lives on, and serves the others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.channel import unix
from headrace.channel.channel import Channel, Memory, receive_within
from headrace.coordinate.events import Answer, Asked, Began, Came, Done, Event, Ticked, WasIdle
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    MOST_ASKS,
    MOST_ROWS,
    PROTOCOL,
    Ask,
    Begin,
    Drawn,
    Finished,
    Hello,
    Identities,
    Idle,
    Join,
    Joined,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
)
from headrace.core.forms import Form
from headrace.host import connections, control, runtime, service, switchboard
from headrace.host.client import SharedClient
from headrace.planning import Spent
from tests.host.test_service import SAMPLES, Caller, host, identities, idle_until_filled, join, terms
from tests.loader.helpers import wait_until

__all__ = ["host"]


@pytest.fixture(autouse=True)
def _serves_on(host: service.Service) -> Iterator[None]:
    """Whatever the test does, others are served after it."""
    yield
    with closing(join("another")) as job:
        job.tell(Begin(0))
        assert isinstance(job.ask(Ask()), Drawn)
    assert control.status() is not None
    assert host.requests.failures == 0


def changed(**terms_: object) -> Join:
    return msgspec.structs.replace(terms("token", SAMPLES), **terms_)


def refused(caller: Caller, request: Request, beside: bytes | Memory | None = None) -> str:
    """The connection ends; why."""
    answer = caller.ask(request, beside)
    assert isinstance(answer, Refused), answer
    assert caller.heard() is None
    return answer.reason


def unsealed(size: int, *, sealed: bool = True) -> int:
    """A sealed file in memory that was never written."""
    fd = os.memfd_create("holes", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)
    return fd


# -- what is said -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["auto", "uniform"])
def test_a_batch_of_many_samples_is_drawn_like_any_other(host: service.Service, sampling: str) -> None:
    """Its rows take more than a packet, and more than a megabyte."""
    samples = 30_000
    with closing(Caller("job", "large")) as job:
        asked = msgspec.structs.replace(
            terms("large", samples), batch_size=samples, sampling=sampling, budget=1 << 30
        )
        assert job.ask(asked) == Joined(True)
        assert job.ask(Identities(), identities(samples).tobytes()) == Joined(False)
        for shelf in host.commons.state.pool.shelves.values():
            shelf.learn([64])  # else only few would be granted memory at first
        job.tell(Begin(0, explicit=sampling == "uniform"))
        drawn = job.ask(Ask(np.arange(samples).tobytes() if sampling == "uniform" else b""))
        assert isinstance(drawn, Drawn) and len(drawn.indices) == 8 * samples
        assert len(encoder.encode(drawn)) > 1 << 20
        assert sorted(np.frombuffer(drawn.indices, np.int64).tolist()) == list(range(samples))
        # One report of all of it: what a worker says of a batch that is collated as a whole.
        grants = np.frombuffer(drawn.grants, np.int64).reshape(-1, 4)
        published = grants[grants[:, 1] == Form.DECODED].copy()
        published[:, 3] = 64
        with closing(Caller("worker", "large")) as worker:
            worker.tell(Finished(drawn.ticket, 0, samples, published.tobytes()))
            assert wait_until(lambda: not host.commons.state.tickets)
    assert sum(map(len, host.commons.state.pool.shelves.values())) == len(published) > 0


def test_larger_batches_than_can_be_served_are_refused_with_a_reason(host: service.Service) -> None:
    with closing(Caller("job")) as job:
        answer = job.ask(changed(batch_size=MOST_ROWS + 1))
        assert isinstance(answer, Refused) and str(MOST_ROWS) in answer.reason


NOT_A_JOIN = {
    "infinite split": {"split": (float("inf"), 1.0, 1.0)},
    "no split": {"split": (float("nan"), 1.0, 1.0)},
    "negative split": {"split": (-1.0, 1.0, 1.0)},
    "rank": {"rank": 5, "world_size": 2},
    "too many ranks": {"world_size": 1 << 20},
    "no batch": {"batch_size": 0},
    "no samples": {"samples": 0},
    "long label": {"label": "x" * 513},
    "long key": {"dataset": "x" * 129},
    "negative budget": {"budget": -1},
}


@pytest.mark.parametrize("name", NOT_A_JOIN)
def test_a_join_that_makes_no_sense_leaves_nothing_behind(host: service.Service, name: str) -> None:
    with closing(join("first")), closing(Caller("job")) as job:
        refused(job, changed(**NOT_A_JOIN[name]))
        assert len(host.commons.state.jobs) == len(host.commons.state.ranks) == 1
        with closing(join("second")):
            assert len(host.commons.state.jobs) == 2


def test_samples_of_one_key_have_one_size(host: service.Service) -> None:
    with closing(join("first")) as first, closing(Caller("job", "second")) as second:
        assert first.ask(Ping()) == Pong()
        shelf = host.commons.state.pool.shelf(Form.AUGMENTED, "a", host.commons.state.universe.size, 100)
        answer = second.ask(changed(augmented="a", body=200))
        assert isinstance(answer, Refused) and "size" in answer.reason
        assert len(host.commons.state.jobs) == 1 and not shelf.jobs


def test_who_joins_again_and_again_is_one_job_and_then_none(host: service.Service) -> None:
    with closing(join()) as job:
        assert len(host.commons.state.jobs) == 1
        refused(job, changed(group="another"))
    with closing(Caller("job")) as job:
        assert job.ask(changed(dataset="new", samples=10)) == Joined(True)
        refused(job, changed(dataset="newer", samples=10))
    assert wait_until(lambda: not host.commons.state.jobs and not host.commons.state.joining)


@pytest.mark.parametrize(
    "indices",
    [np.array([SAMPLES]), np.array([-1]), np.array([1 << 62]), np.array([], np.int64), b"short"],
    ids=["beyond", "negative", "huge", "none", "cut off"],
)
def test_samples_that_there_are_not_are_noticed_before_they_have_to_wait(
    host: service.Service, indices: np.ndarray | bytes
) -> None:
    """Asks wait while the sizes of the first samples are being found out; then nobody is there to be told."""
    first = join("first")
    first.tell(Begin(0))
    assert isinstance(first.ask(Ask()), Drawn)
    assert any(shelf.unsure for shelf in host.commons.state.pool.shelves.values())
    with closing(first), closing(Caller("job", "second")) as second:
        assert second.ask(msgspec.structs.replace(terms("second", SAMPLES), sampling="uniform")) == Joined(
            False
        )
        second.tell(Begin(0, explicit=True))
        refused(second, Ask(indices if isinstance(indices, bytes) else indices.astype(np.int64).tobytes()))
        assert wait_until(lambda: len(host.commons.state.jobs) == 1)


def test_who_asks_and_asks_is_heard_no_more(host: service.Service) -> None:
    first = join("first")
    first.tell(Begin(0))
    assert isinstance(first.ask(Ask()), Drawn)
    with closing(first), closing(join("second")) as second:
        second.tell(Begin(0))  # its draws wait until sizes are known
        for _ in range(MOST_ASKS):
            second.tell(Ask())
        assert "did not understand" in refused(second, Ask())


def test_a_step_that_nobody_drew_cannot_be_claimed(host: service.Service) -> None:
    ranks = [Caller("job", f"rank {rank}") for rank in range(2)]
    with closing(ranks[0]), closing(ranks[1]):
        asked = changed(group="ranks", world_size=2)
        assert ranks[0].ask(asked) == Joined(True)
        assert ranks[0].ask(Identities(), identities(SAMPLES).tobytes()) == Joined(False)
        assert ranks[1].ask(msgspec.structs.replace(asked, rank=1)) == Joined(False)
        ranks[0].tell(Begin(0))
        assert isinstance(ranks[0].ask(Ask()), Drawn)
        ranks[1].tell(Begin(0, 0, False, 7), bytes(8 * -(-SAMPLES // 64)))
        assert isinstance(ranks[1].heard(), Refused)
        assert isinstance(ranks[0].ask(Ask()), Drawn)


@pytest.mark.parametrize("what", ["progress", "identities", "message"])
@pytest.mark.parametrize("size", [3 << 30, 1 << 20])
def test_a_file_of_holes_is_not_read(host: service.Service, what: str, size: int) -> None:
    fd = unsealed(size)
    try:
        if what == "identities":
            with closing(Caller("job")) as job:
                assert job.ask(changed(dataset="large", samples=size // 16)) == Joined(True)
                refused(job, Identities(), Memory(fd))
        elif what == "progress":
            with closing(join()) as job:
                refused(job, Begin(0, 1, False, 1), Memory(fd))
        else:
            with closing(join()) as job:
                job.channel.sock.sendmsg(
                    [b""], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, "little"))]
                )
                assert isinstance(job.heard(), Refused)
    finally:
        os.close(fd)


@pytest.mark.parametrize("count", [0, SAMPLES - 1, SAMPLES + 1])
def test_identities_of_another_number_of_samples_are_refused(host: service.Service, count: int) -> None:
    with closing(Caller("job")) as job:
        assert job.ask(changed(dataset="new")) == Joined(True)
        refused(job, Identities(), identities(count).tobytes())
    assert "new" not in host.commons.state.universe.datasets


@pytest.mark.parametrize(
    "spent",
    [Spent(fetch=float("nan")), Spent(decode=float("inf")), Spent(gil_held=float("nan")), Spent(fetched=-1)],
)
def test_numbers_that_are_none_are_refused(host: service.Service, spent: Spent) -> None:
    with closing(join()), closing(Caller("worker")) as worker:
        worker.tell(Finished(1, 0, 1, spent=spent))
        assert isinstance(worker.heard(), Refused)


def test_a_worker_has_one_fill_however_it_reports(host: service.Service) -> None:
    with closing(join()) as job:
        job.tell(Begin(0))
        with closing(Caller("worker")) as worker:
            fill = idle_until_filled(worker)
            for _ in range(20):
                worker.tell(Finished(fill.order.ticket, 0, 0))
                worker.tell(Idle())
            worker.tell(Finished(fill.order.ticket, 0, fill.order.rows))
            assert idle_until_filled(worker).order.ticket == fill.order.ticket + 1


# -- what is not said, or not read -----------------------------------------------------------------------------------


def test_who_does_not_say_who_it_is_has_to_go(host: service.Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard, "_HELLO", 0.1)
    with closing(runtime.connect()) as silent:
        assert receive_within(silent, 20) is None
    assert wait_until(lambda: not host.switchboard.connections)


@pytest.mark.parametrize("request_", [Ping(), Idle()])
def test_who_never_reads_has_to_go(
    host: service.Service, monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    """A reply that nobody reads takes memory."""
    monkeypatch.setattr(connections, "_MOST_UNSENT", 50)
    monkeypatch.setattr(unix, "widen", lambda sock: None)
    with closing(join()) as job:
        job.tell(Begin(0))
        caller = job if isinstance(request_, Ping) else Caller("worker")
        workers = host.requests.members.workers
        with contextlib.suppress(OSError), closing(caller):
            for _ in range(20_000):
                given = host.commons.state.next_ticket
                caller.tell(request_)
                if isinstance(request_, Idle):
                    while host.commons.state.next_ticket == given and any(workers.values()):
                        time.sleep(0)
                    caller.tell(Finished(given, 0, 8))
            raise AssertionError("it could go on for ever")
    assert wait_until(lambda: not host.switchboard.connections)


def test_a_process_has_no_more_connections_than_it_may(
    host: service.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switchboard, "MOST_OF_ONE", 8)
    callers = [Caller("control") for _ in range(8)]
    with closing(runtime.connect()) as one_more:
        received = receive_within(one_more, 20)
        assert received is not None and b"too many connections" in received[0]
        assert receive_within(one_more, 20) is None
    for caller in callers:
        caller.close()
    assert wait_until(lambda: not host.switchboard.connections)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_who_cannot_be_let_in_waits(
    host: service.Service, monkeypatch: pytest.MonkeyPatch, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those who are in are served meanwhile, and the host does not run in circles."""
    monkeypatch.setattr(switchboard, "_REST", 0.3)
    tries: list[float] = []
    listener = host.switchboard.listener
    accept = listener.accept

    def fail() -> Channel | None:
        tries.append(time.monotonic())
        if len(tries) <= 2:
            raise OSError(number, os.strerror(number))
        return accept()

    with closing(join()) as job:
        monkeypatch.setattr(listener, "accept", fail)
        with closing(runtime.connect()) as waiting:
            assert wait_until(lambda: bool(tries))
            assert job.ask(Ping()) == Pong()
            waiting.send(encoder.encode(Hello(PROTOCOL, "control", os.getpid())))
            assert receive_within(waiting, 20) is not None
    assert len(tries) < 10
    assert "nobody is let in" in capfd.readouterr().err


@pytest.mark.parametrize("where", ["ask", "begin", "join", "finished", "fill"])
def test_what_goes_wrong_in_the_host_itself_costs_one_connection(
    host: service.Service, monkeypatch: pytest.MonkeyPatch, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a flaw\nof two lines")

    other = join("other")
    other.tell(Begin(0))
    with monkeypatch.context() as patch, closing(other), closing(join()) as job:
        worker = Caller("worker")
        handle = host.commons.handle
        asked = {"ask": Asked, "begin": Began, "join": Came, "finished": Done, "fill": WasIdle}[where]
        patch.setattr(
            host.commons, "handle", lambda event, now: fail() if type(event) is asked else handle(event, now)
        )
        requests: dict[str, Request] = {
            "ask": Ask(), "begin": Begin(0), "join": changed(), "finished": Finished(1, 0, 1), "fill": Idle(),
        }  # fmt: skip
        caller = worker if where in ("finished", "fill") else job
        caller.tell(requests[where])
        assert caller.heard() is None
        patch.undo()
        worker.close()
        assert isinstance(other.ask(Ask()), Drawn)
    said = capfd.readouterr().err
    assert said.count("ZeroDivisionError: a flaw of two lines (test_hostile.py") == 1


def test_a_host_that_keeps_failing_makes_way(
    host: service.Service, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """Its jobs are better off with another one. (Here one tick fails, so it stays.)"""
    ticks: list[int] = []
    handle = host.commons.handle

    def fail(event: Event, now: float) -> list[Answer]:
        ticks.append(1) if type(event) is Ticked else None
        if type(event) is Ticked and len(ticks) <= 3:
            raise KeyError("no such thing")
        return handle(event, now)

    monkeypatch.setattr(host.commons, "handle", fail)
    with closing(join()) as job:
        assert wait_until(lambda: job.ask(Ping()) == Pong() and len(ticks) > 5)
    assert not host.requests.stopping


def test_the_log_neither_grows_without_end_nor_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    kept = os.dup(2)
    monkeypatch.setattr(connections, "_LOG_LIMIT", 10_000)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(fd, 2)
        for number in range(1000):
            connections.log(f"line {number} \n\x00\ud800" + "x" * 10_000)
        os.dup2(full, 2)
        connections.log("no room")
    finally:
        os.dup2(kept, 2)
        unix.close_all([kept, fd, full])
    text = path.read_text()
    assert 0 < len(text) < 11_000 and "\x00" not in text and "line 999" in text


# -- jobs that come back -------------------------------------------------------------------------------------------


def test_a_job_that_comes_back_has_its_workers_and_what_they_read_stays(host: service.Service) -> None:
    """It lost its connection, and not its host: its workers may still be at work for its last draws."""
    shelves = host.commons.state.pool.shelves

    def read() -> list[set[int]]:
        return [set(shelf.busy) for shelf in shelves.values() if shelf.busy]

    job = join()
    worker = Caller("worker")
    shelves[Form.DECODED, "d"].learn([64])
    job.tell(Begin(0))
    for _ in range(SAMPLES // 8):
        drawn = job.ask(Ask())
        assert isinstance(drawn, Drawn)
        grants = np.frombuffer(drawn.grants, np.int64).reshape(-1, 4)
        rows = grants[grants[:, 1] == Form.DECODED].copy()
        rows[:, 3] = 64
        worker.tell(Finished(drawn.ticket, 0, 8, rows.tobytes()))
    assert wait_until(lambda: len(shelves[Form.DECODED, "d"]) == SAMPLES)
    job.tell(Begin(1))
    assert isinstance(job.ask(Ask()), Drawn)
    busy = read()
    assert busy
    again = join()
    assert job.heard() is None
    assert read() == busy
    again.tell(Begin(2))
    drawn = again.ask(Ask())
    assert isinstance(drawn, Drawn)
    worker.tell(Finished(drawn.ticket, 0, 8))
    assert wait_until(lambda: not host.commons.state.tickets), "the worker is not taken for another job's"
    again.close()
    worker.close()
    assert wait_until(lambda: not read() and not host.requests.members.workers)
    job.close()


def test_hundreds_of_datasets_with_long_names_are_told_and_forgotten(host: service.Service) -> None:
    for number in range(300):
        with closing(Caller("job", f"token{number}")) as job:
            label = "\x01" * 500 + str(number)
            asked = changed(dataset=f"set {number}", label=label, samples=2, decoded=f"d{number}")
            assert job.ask(asked) == Joined(True)
            table = identities(2).copy()
            table.view(np.uint64)[:] += np.uint64(1000 * number)
            assert job.ask(Identities(), table.tobytes()) == Joined(False)
            if number % 100 == 50:
                status = control.status()
                assert status is not None and any(one.name == label for one in status.datasets)
    assert wait_until(lambda: not host.commons.state.jobs)
    assert len(host.commons.state.universe.datasets) <= 20 and len(host.commons.state.pool.shelves) <= 60
    assert host.commons.state.universe.size < 100


def test_a_client_does_without_descriptors_for_a_while(
    host: service.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> Callable[..., None]:
        raise OSError(errno.EMFILE, "Too many open files")

    with closing(SharedClient(lambda: identities(8))) as client:
        client.open(terms("second", samples=8))
        client.begin(0, explicit=False)
        with monkeypatch.context() as patch:
            patch.setattr(unix, "make_socket", none_left)
            assert client._channel is not None
            client._channel.shut()
            with pytest.warns(UserWarning, match="goes on alone"):
                client.pump()
        assert client.alone
        client.ask()
        drawn = client.take()
        assert drawn is not None and sorted(drawn.indices.tolist()) == list(range(8))
        client.begin(1, explicit=False)
        assert client.alone, "not to the host that it left"


def test_welcome_is_what_jobs_and_workers_get(host: service.Service) -> None:
    with closing(join()), closing(Caller("worker")) as worker:
        assert worker.answer == Welcome(host.commons.state.instance, host.memory.span)
