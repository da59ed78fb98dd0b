"""The shared host's loop in a thread of the test, with jobs and workers that are bare channels."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.channel.channel import Memory, receive_within, send_within
from headrace.channel.unix import close_all
from headrace.coordinate.draw_client import DrawClient
from headrace.coordinate.messages import Order, encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    Ask,
    Begin,
    Drawn,
    Fill,
    Finished,
    Hello,
    Identities,
    Idle,
    Join,
    Joined,
    Refused,
    Request,
    Welcome,
    decode_reply,
)
from headrace.coordinate.shared_directory import SharedDirectory
from headrace.core.errors import HostUnavailable
from headrace.core.forms import CACHEABLE, Form
from headrace.host import control, runtime, service
from headrace.host.client import SharedClient
from headrace.sampling import Draw, Lookup
from tests.loader.helpers import wait_until

SAMPLES = 64


@pytest.fixture
def host(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[service.Service]:
    monkeypatch.setattr(service, "_LOOK", 0.05)
    claimed = runtime.claim()
    assert claimed is not None
    made = service.Service(claimed)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join(20)
    assert not thread.is_alive()


class Caller:
    """A connection to the host."""

    def __init__(self, role: str, token: str = "token", version: int = PROTOCOL) -> None:
        channel = runtime.connect()
        assert channel is not None
        self.channel = channel
        self.answer = self.ask(Hello(version, role, os.getpid(), token))

    def tell(self, request: Request, beside: bytes | Memory | None = None) -> None:
        send_within(self.channel, 20, encoder.encode(request), beside)

    def heard(self) -> object:
        received = receive_within(self.channel, 20)
        if received is None:
            return None
        if received[1] is not None:
            received[1].close()
        return decode_reply(received[0])

    def ask(self, request: Request, beside: bytes | Memory | None = None) -> object:
        self.tell(request, beside)
        return self.heard()

    def close(self) -> None:
        self.channel.close()


def identities(samples: int) -> NDArray[np.uint8]:
    table = np.zeros((samples, 2), np.uint64)
    table[:, 0] = np.arange(samples)
    return table.view(np.uint8)


def terms(token: str, samples: int) -> Join:
    return Join(
        name="job", group=token, rank=0, world_size=1, dataset=f"d{samples}", label="", samples=samples,
        encoded="e", decoded="d", augmented="", body=0, budget=1 << 20, split=None, sampling="auto",
        eviction="auto", batch_size=8, drop_last=False,
    )  # fmt: skip


def join(token: str = "token", *, samples: int = SAMPLES) -> Caller:
    """A job that has joined."""
    job = Caller("job", token)
    assert isinstance(job.answer, Welcome)
    answer = job.ask(terms(token, samples))
    if answer == Joined(True):
        answer = job.ask(Identities(), identities(samples).tobytes())
    assert answer == Joined(False)
    return job


def idle_until_filled(worker: Caller) -> Fill:
    worker.tell(Idle())
    fill = worker.heard()
    assert isinstance(fill, Fill)
    return fill


def used(host: service.Service) -> int:
    return host.commons.state.pool.used


@pytest.mark.parametrize("dies", [True, False])
def test_what_a_worker_was_to_fill_is_free_again_when_it_is_gone(host: service.Service, dies: bool) -> None:
    with closing(join()) as job:
        job.tell(Begin(0))
        worker = Caller("worker")
        fill = idle_until_filled(worker)
        assert used(host) > 0 and host.commons.state.tickets
        if dies:
            worker.close()
        else:
            worker.tell(Finished(fill.order.ticket, 0, fill.order.rows))
        assert wait_until(lambda: not host.commons.state.tickets and not used(host))
        worker.close()


def test_a_worker_has_one_fill_at_a_time(host: service.Service) -> None:
    with closing(join()) as job:
        job.tell(Begin(0))
        with closing(Caller("worker")) as worker:
            fill = idle_until_filled(worker)
            worker.tell(Idle())
            worker.tell(Finished(fill.order.ticket, 0, fill.order.rows))
            assert idle_until_filled(worker).order.ticket != fill.order.ticket
            assert len(host.commons.state.tickets) == 1


def test_memory_of_a_job_that_is_gone_is_free_once_its_workers_are_gone_too(host: service.Service) -> None:
    """Until then they may write to it."""
    job = join()
    worker = Caller("worker")
    job.tell(Begin(0))
    drawn = job.ask(Ask())
    assert isinstance(drawn, Drawn) and drawn.grants
    before = used(host)
    job.close()
    assert wait_until(lambda: not host.commons.state.jobs)
    assert used(host) == before > 0
    worker.close()
    assert wait_until(lambda: not used(host))


def test_what_workers_said_counts_although_their_job_hung_up_before(
    host: service.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may hear of the end first."""
    job, other = join(), join("other")
    worker = Caller("worker")
    job.tell(Begin(0))
    drawn = job.ask(Ask())
    assert isinstance(drawn, Drawn)
    grants = np.frombuffer(drawn.grants, np.int64).reshape(-1, 4)
    row, form, offset, _ = grants[grants[:, 1] == int(Form.DECODED)][0].tolist()
    held, go_on = threading.Event(), threading.Event()
    accept = host.switchboard._accept

    def hold() -> None:
        held.set()
        go_on.wait(20)
        accept()

    monkeypatch.setattr(host.switchboard, "_accept", hold)
    with closing(runtime.connect()):
        assert held.wait(20)
        job.close()
        worker.tell(Finished(drawn.ticket, 0, 8, np.array([row, form, offset, 100], np.int64).tobytes()))
        go_on.set()
        assert wait_until(lambda: len(host.commons.state.jobs) == 1)
    assert sum(len(shelf) for shelf in host.commons.state.pool.shelves.values()) == 1
    worker.close()
    other.close()


def test_a_job_that_ends_is_noticed_although_another_process_holds_its_connection(
    host: service.Service,
) -> None:
    """Whatever a job forked has its descriptors."""
    mine, theirs = socket.socketpair()
    mine.settimeout(20)
    pid = os.fork()
    if not pid:
        try:
            child = join("child")
            socket.send_fds(theirs, [b"x"], [child.channel.fileno()])
            theirs.recv(1)
        finally:
            os._exit(0)
    with mine, theirs:
        _, held, _, _ = socket.recv_fds(mine, 1, 1)
        assert len(held) == 1 and host.commons.state.jobs
        mine.send(b"x")
        os.waitpid(pid, 0)
        assert wait_until(lambda: not host.commons.state.jobs)
        close_all(held)


def test_a_host_that_is_not_found_any_more_ends_with_its_last_job(host: service.Service, place: Path) -> None:
    job = join()
    (place / "host.sock").unlink()
    assert not wait_until(lambda: host.requests.stopping, 0.5)
    job.tell(Begin(0))
    assert isinstance(job.ask(Ask()), Drawn)
    job.close()
    assert wait_until(lambda: host.requests.stopping)


def test_rows_that_wait_are_prepared_by_their_own_job_when_the_host_is_gone(
    host: service.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(join("first", samples=8)) as first, closing(SharedClient(lambda: identities(8))) as client:
        for shelf in host.commons.state.pool.shelves.values():
            shelf.learn([100])  # else the second one would have to wait until sizes are known
        first.tell(Begin(0))
        assert isinstance(first.ask(Ask()), Drawn)
        client.open(terms("second", samples=8))
        client.begin(0, explicit=False)
        client.ask()
        found: list[Draw | None] = []
        assert wait_until(lambda: found.append(client.take()) or found[-1] is not None)
        drawn = found[-1]
        assert drawn is not None and drawn.waits < 8 and not client.has_updates

        def none_to_be_had(*_: object) -> None:
            raise HostUnavailable("none.")

        monkeypatch.setattr(runtime, "find_or_start", none_to_be_had)
        host.stop()
        with pytest.warns(UserWarning, match="goes on alone"):
            assert wait_until(lambda: client.pump() or client.alone)
        (update,) = client.take_updates()
        assert update.is_same(drawn) and update.waits == 8 and (update.indices == drawn.indices).all()


def test_orders_that_take_the_place_of_lost_ones_do_without_the_cache() -> None:
    """Their rows were given up, so what they would read may be somebody else's by now."""
    sent: list[Request] = []
    client = DrawClient(lambda request, beside: sent.append(request))
    client.instance = 3
    forms, empty = np.full(8, Form.DECODED, np.uint8), np.zeros((0, 4), np.int64)
    lookup = Lookup(5, 3, forms, np.full(8, 64), np.full(8, 10), np.zeros(8, np.uint8), empty, waits=8)
    drawn = Draw(0, 0, np.arange(8), 8, lookup=lookup)
    directory = SharedDirectory(client, dict.fromkeys(CACHEABLE, 0))
    order = Order(1, 0, 0, 8, 4, 0, 0, 0, np.arange(4).tobytes())
    directory.dress(order, drawn)
    assert (order.ticket, order.first, set(order.forms)) == (5, 4, {Form.DECODED})
    directory.lost(order)
    assert sent == [Finished(5, 4, 4)]
    again = Order(1, 0, 0, 8, 4, 0, 0, 0, np.arange(4).tobytes())
    directory.dress(again, drawn, again=True)
    assert (again.ticket, again.forms, again.offsets) == (-1, b"", b"")
    directory.lost(again)
    client.instance = 4  # of another host, which has given the number of that draw to somebody else
    directory.lost(order)
    assert len(sent) == 1


def test_who_speaks_another_version_is_refused(host: service.Service) -> None:
    with closing(Caller("job", version=PROTOCOL + 1)) as caller:
        assert isinstance(caller.answer, Refused) and f"protocol {PROTOCOL + 1}" in caller.answer.reason
        assert caller.heard() is None
    assert control.status() is not None


@pytest.mark.parametrize("role", ["worker", "boss", ""])
def test_who_is_nobody_is_refused(host: service.Service, role: str) -> None:
    with closing(Caller(role, "unknown")) as caller:
        assert isinstance(caller.answer, Refused)
        assert caller.heard() is None
    assert control.status() is not None


@pytest.mark.parametrize("request_", [Ask(), Begin(0), Finished(1, 0, 1), Identities(), Idle()])
def test_requests_that_are_not_ones_to_make_end_the_connection_and_nothing_else(
    host: service.Service, request_: Request
) -> None:
    with closing(join()) as job, closing(Caller("control")) as caller:
        assert isinstance(caller.ask(request_), Refused)
        assert caller.heard() is None
        job.tell(Begin(0))
        assert isinstance(job.ask(Ask()), Drawn)


def test_a_job_of_the_same_name_takes_the_place_of_the_one_before(host: service.Service) -> None:
    with closing(join()) as old, closing(join()):
        assert old.heard() is None
        assert len(host.commons.state.jobs) == 1


def test_garbage_ends_its_connection_only(host: service.Service) -> None:
    with closing(join()) as job, closing(Caller("control")) as caller:
        caller.channel.send(b"\xff\xfe")
        assert isinstance(caller.heard(), Refused)
        assert caller.heard() is None
        job.tell(Begin(0))
        assert isinstance(job.ask(Ask()), Drawn)
