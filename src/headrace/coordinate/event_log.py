"""What a shared host was told and what it answered, as a log that can be replayed to the same answers.

A log is frames of length and content. The first says what the commons began with; each of the others holds an event,
its time, and a digest of the answers. Whoever finds that a host did something wrong can have its log (the environment
variable ``HEADRACE_HOST_EVENTS``) and go through it step by step, without the jobs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from headrace.coordinate.commons import Commons
from headrace.coordinate.events import Answer, Event
from headrace.coordinate.protocol import PROTOCOL
from headrace.core.errors import ProtocolError

_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, array_like=True, frozen=True):
    """What the commons began with."""

    protocol: int
    instance: int
    nonce: bytes
    """Eight bytes: it may be larger than what a number can be."""
    span: int
    cpus: float


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One event, when it happened, and what became of it."""

    now: float
    event: Event
    answers: bytes
    """A digest."""
    failed: bool
    """Whether it could not be true, or something went wrong; either way a connection was ended for it."""


_encode = msgspec.msgpack.Encoder().encode
_decode_start = msgspec.msgpack.Decoder(Start).decode
_decode_entry = msgspec.msgpack.Decoder(Entry).decode


def _digest(answers: list[Answer]) -> bytes:
    return hashlib.blake2b(_encode(answers), digest_size=16).digest()


class Recorder:
    """Commons whose events are written down."""

    def __init__(self, commons: Commons, *, span: int, write: Callable[[bytes], object]) -> None:
        self._commons, self._write = commons, write
        state = commons.state
        self._add(
            Start(PROTOCOL, state.instance, state.nonce.to_bytes(8, "little"), span, state.shared_split.cpus)
        )

    def handle(self, event: Event, now: float) -> list[Answer]:
        """See ``Commons``."""
        try:
            answers = self._commons.handle(event, now)
        except Exception:
            self._add(Entry(now, event, b"", failed=True))
            raise
        self._add(Entry(now, event, _digest(answers), failed=False))
        return answers

    def _add(self, content: Start | Entry) -> None:
        frame = _encode(content)
        self._write(_LENGTH.pack(len(frame)) + frame)


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    events: int
    different: list[int]
    """Which events were answered otherwise."""
    commons: Commons


def read_log(log: BinaryIO) -> tuple[Start, Iterator[Entry]]:
    """What a log holds; one that was cut off as far as it goes."""
    frames = _frames(log)
    start = _decode_start(next(frames, b""))
    if start.protocol != PROTOCOL:
        raise ProtocolError(f"the log is of protocol {start.protocol}, and this version speaks {PROTOCOL}")
    return start, map(_decode_entry, frames)


def replay(log: BinaryIO) -> Replayed:
    """Tell new commons what the log says others were told."""
    start, entries = read_log(log)
    nonce = int.from_bytes(start.nonce, "little")
    commons = Commons(instance=start.instance, nonce=nonce, span=start.span, cpus=start.cpus)
    count = 0
    different: list[int] = []
    for entry in entries:
        try:
            digest, failed = _digest(commons.handle(entry.event, entry.now)), False
        except Exception:
            digest, failed = b"", True
        if (digest, failed) != (entry.answers, entry.failed):
            different.append(count)
        count += 1
    return Replayed(count, different, commons)


def _frames(log: BinaryIO) -> Iterator[bytes]:
    while len(head := log.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        frame = log.read(length)
        if len(frame) < length:
            return
        yield frame
