"""The shared host's loop over channels that can take a message in part and carry no memory, without any rights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec
import numpy as np
import pytest

from headrace.channel.asking import ask_plainly, greet
from headrace.channel.channel import receive_within
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    PROTOCOL,
    Ask,
    Begin,
    Drawn,
    Hello,
    Identities,
    Joined,
    Ping,
    Pong,
    Refused,
    decode_reply,
)  # fmt: skip
from headrace.host import control
from headrace.host.client import SharedClient
from headrace.host.service import Service
from tests.channel.tcp import TcpListener, TcpWay
from tests.host.test_client import rest_of_epoch
from tests.host.test_service import identities, terms


@pytest.fixture
def way() -> Iterator[TcpWay]:
    """To a host that serves in a thread of the test."""
    listener = TcpListener()
    service = Service(listener)
    thread = threading.Thread(target=service.run)
    thread.start()
    found = TcpWay(listener.address)
    yield found
    control.stop(20, found)
    thread.join(20)
    assert not thread.is_alive()


def test_two_jobs_draw_whole_epochs(way: TcpWay) -> None:
    with (
        closing(SharedClient(lambda: identities(64), way)) as one,
        closing(SharedClient(lambda: identities(64), way)) as other,
    ):
        for client in (one, other):
            client.open(terms(client.token, 64))
        for epoch in range(2):
            for client in (one, other):
                client.begin(epoch, explicit=False)
            for client in (one, other):
                assert sorted(rest_of_epoch(client)) == list(range(64))
        status = control.status(20, way)
        assert status is not None and [job.delivered for job in status.jobs] == [128, 128]
        assert not one.alone and not other.alone


def test_a_reply_that_leaves_in_many_parts_arrives_whole_and_others_are_served_meanwhile(way: TcpWay) -> None:
    """The buffers of a connection hold far less."""
    samples = 200_000
    with closing(way.find_or_start(20)) as channel:
        greet(channel, Hello(PROTOCOL, "job", 1, "large"), 20)
        join = msgspec.structs.replace(terms("large", samples), batch_size=samples, sampling="uniform")
        assert ask_plainly(channel, join, 20) == Joined(True)
        assert ask_plainly(channel, Identities(), 60, identities(samples).tobytes()) == Joined(False)
        channel.send(encoder.encode(Begin(0, explicit=True)))
        for request in (Ask(np.arange(samples).tobytes()), Ping()):
            data = encoder.encode(request)
            channel.send(data)
            while not channel.flush():
                pass
        status = control.status(20, way)  # while nobody reads
        assert status is not None
        answers = []
        for _ in range(2):
            received = receive_within(channel, 60, 1 << 30)
            assert received is not None
            answers.append(decode_reply(received[0]))
        assert isinstance(answers[0], Drawn) and len(encoder.encode(answers[0])) > 4 << 20
        assert np.frombuffer(answers[0].indices, np.int64).tolist() == list(range(samples))
        assert answers[1] == Pong()


def test_who_talks_nonsense_is_told_so_and_sent_away(way: TcpWay) -> None:
    with closing(way.find_or_start(20)) as channel:
        channel.send(b"\xff\xfe")
        received = receive_within(channel, 20)
        assert received is not None and isinstance(decode_reply(received[0]), Refused)
        assert receive_within(channel, 20) is None
    assert control.status(20, way) is not None
