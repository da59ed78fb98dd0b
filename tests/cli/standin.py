"""Stands in for the shared host towards those who ask for its status or its end; the argument says how it behaves."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import msgspec

from headrace.channel.channel import Channel, Memory, receive_within, wait
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import (
    GetStatus,
    Hello,
    Idle,
    Over,
    Refused,
    Reply,
    Shutdown,
    StatusReply,
    Welcome,
    decode_request,
)
from headrace.core.errors import HostGone
from headrace.host import runtime
from headrace.host.control import (
    DatasetStatus,
    HostStatus,
    JobStatus,
    MemoryStatus,
    ShelfStatus,
    version_refusal,
)


def example(pid: int) -> HostStatus:
    """A status with something of everything."""
    return HostStatus(
        pid=pid,
        started=time.time() - 3725,
        version="0.1.0",
        memory=MemoryStatus(budget=8 << 30, used=2 << 30, entries=5200, encoded=0.35),
        jobs=[
            JobStatus(
                id="a1" * 16,
                name="resnet-lr0.1",
                pid=4711,
                world_size=2,
                dataset="train",
                sampling="auto",
                epoch=3,
                left=12000,
                delivered=88000,
                rate=1520.4,
                hits={"none": 20000, "encoded": 1000, "decoded": 60000, "augmented": 7000},
                hit_rate=0.7727,
                workers=4,
                idle_s=0.2,
            ),
            JobStatus(id="b2" * 16, name="evil\x1b[2J\nname", pid=4712, rate=7.25, idle_s=90.0),
        ],
        datasets=[DatasetStatus("train", 50000, 2)],
        shelves=[
            ShelfStatus("decoded", "d" * 40, 4000, 3 << 29, 2),
            ShelfStatus("augmented", "a" * 40, 1200, 1 << 29, 1),
        ],
        decodes=20500,
        evictions=12,
        refills=30,
    )


def answer(channel: Channel, how: str) -> None:
    """Talk to one who connected."""
    while (message := receive_within(channel, None)) is not None:
        request = decode_request(message[0])
        reply: Reply | None = None
        if isinstance(request, Hello):
            assert request.role == "control" and request.pid == channel.peer.pid
            if how == "rude":
                return
            if how == "mute":
                continue
            if how == "garbled":
                channel.send(b"\xff\xff nothing that can be read")
                continue
            if how == "older":
                reply = Refused(version_refusal(request.version + 1) or "")
            elif how == "odd":
                reply = Over(1)
            else:
                with open(os.devnull) as null:
                    channel.send(encoder.encode(Welcome(1)), Memory(null.fileno()))
                continue
        elif isinstance(request, GetStatus):
            status = msgspec.json.encode(example(os.getpid()))
            reply = StatusReply(status if how != "future" else b'{"pid": "unknown"}')
        elif isinstance(request, Shutdown):
            if how == "stubborn":
                continue
            print("ending", flush=True)
            channel.send(encoder.encode(Welcome(2)))
            return
        assert not isinstance(request, Idle)
        if reply is not None:
            channel.send(encoder.encode(reply))


def main(how: str) -> int:
    """Serve one after the other, until asked to end."""
    claimed = runtime.claim()
    if claimed is None:
        return 0
    while True:
        assert wait(claimed.fileno(), 60)
        channel = claimed.accept()
        assert channel is not None
        with (
            contextlib.closing(channel),
            contextlib.suppress(OSError, HostGone),
        ):  # who asked may have given up
            answer(channel, how)
        with open(os.path.join(os.path.dirname(claimed.path), runtime.LOG)) as log:
            if "ending" in log.read():
                claimed.close()
                time.sleep(0.3)  # gone only after this
                print("ended", flush=True)
                return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
