"""Orders and events: what a host and its workers tell each other. Plain data, nothing else crosses."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.planning import Measured


class Order(msgspec.Struct, array_like=True):
    """What the host asks of a worker: prepare some rows of one batch."""

    id: int
    slot_offset: int
    slot_bytes: int
    rows: int
    """Rows of the whole batch; the slot is laid out for them."""
    start: int
    """The first row of this order."""
    seed: int
    epoch: int
    step: int
    indices: bytes
    """int64 per row."""
    forms: bytes = b""
    """The form in which each row enters, uint8 per row."""
    offsets: bytes = b""
    """Where each row's extent lies, int64 per row (-1: none)."""
    lengths: bytes = b""
    """Bytes of each row's extent, int64 per row."""
    keep: bytes = b""
    """Forms that the cache would admit, a bit (1 << form) each, uint8 per row."""
    layout: bytes = b""
    """How rows lie in the slot, where that was found out from a first sample (own workers only)."""
    keys: bytes = b""
    """Pickled sample keys, where a sampler's keys are not integers (own workers only)."""
    alone: bool = False
    """Run with nothing beside it in the same worker: it may be what killed one."""
    grants: bytes = b""
    """Blocks of the cache that this order may fill, int64 rows of (form, offset, capacity)."""
    instance: int = 0
    """What cache offsets and grants refer to: 0 the job's own arena, else the number of a service."""
    ticket: int = -1
    """The service's number of the draw."""
    first: int = 0
    """The row of that draw at which this order's rows start."""
    fill: bool = False
    """Prepare into the cache only; there is no slot."""
    words: bytes = b""
    """What random numbers of each row go by, int64 per row; empty: its index."""

    def index_array(self) -> NDArray[np.int64]:
        """The samples, row by row."""
        return np.frombuffer(self.indices, np.int64)


FILLED = -2
"""Stands for the order of a report about something that was prepared into the shared cache."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class Spent(msgspec.Struct, array_like=True):
    """Where the time and the bytes of an order went."""

    fetch: Seconds = 0.0
    decode: Seconds = 0.0
    augment: Seconds = 0.0
    wait_order: Seconds = 0.0
    """Preparing had no order: the loader had enough prepared."""
    wait_fetch: Seconds = 0.0
    """Preparing waited for fetched bytes: storage is the short stage."""
    wait_room: Seconds = 0.0
    """Fetching waited for preparing: the CPU is the short stage."""
    fetched: Number = 0
    """Samples read from the source."""
    fetched_bytes: Number = 0
    gil_held: Annotated[float, msgspec.Meta(ge=-1, le=1e9)] = -1.0
    """Share of the time in which user code held the interpreter lock; negative: not measured."""
    decoded: Number = 0
    """Rows that were decoded from encoded bytes."""
    prepared: Number = 0
    """Rows that were augmented, from whatever form."""
    cpu: Seconds = 0.0
    """CPU seconds of decoding and augmenting; waits for a CPU, a lock or a disk are not in them."""
    fetch_cpu: Seconds = 0.0
    """CPU seconds of fetching."""
    reading: Seconds = 0.0
    """Seconds of single reads, of which several may run at once."""
    user: Seconds = 0.0
    """Seconds of decoding and augmenting that were spent in callables of the user's."""
    user_cpu: Seconds = 0.0
    pixels: Number = 0
    """Of the images that were decoded, as they lie in storage."""

    def add(self, other: Spent) -> None:
        """Count another order, too."""
        self.fetch += other.fetch
        self.decode += other.decode
        self.augment += other.augment
        self.wait_order += other.wait_order
        self.wait_fetch += other.wait_fetch
        self.wait_room += other.wait_room
        self.fetched += other.fetched
        self.fetched_bytes += other.fetched_bytes
        self.decoded += other.decoded
        self.prepared += other.prepared
        self.cpu += other.cpu
        self.fetch_cpu += other.fetch_cpu
        self.reading += other.reading
        self.user += other.user
        self.user_cpu += other.user_cpu
        self.pixels += other.pixels
        if other.gil_held >= 0:  # the latest counts
            self.gil_held = other.gil_held

    def measured(self, *, seconds: float, delivered: float, waited: float, loop_cpu: float = 0.0) -> Measured:
        """The same for a planner, with what is known of the loop."""
        return Measured(
            seconds=seconds,
            delivered=delivered,
            waited=waited,
            loop_cpu=loop_cpu,
            fetched=self.fetched,
            fetched_bytes=self.fetched_bytes,
            fetch=self.fetch,
            fetch_cpu=self.fetch_cpu,
            reading=self.reading,
            starved=self.wait_fetch,
            decoded=self.decoded,
            decode=self.decode,
            prepared=self.prepared,
            augment=self.augment,
            cpu=self.cpu,
            user=self.user,
            user_cpu=self.user_cpu,
            pixels=self.pixels,
            room=self.wait_room,
            idle=self.wait_order,
        )


class OrderDone(msgspec.Struct, tag="done", array_like=True):
    """A worker finished an order: its rows stand in the slot, but for the faults."""

    order: int
    faults: list[tuple[int, str, str]]
    """Row of the order, reason, traceback."""
    published: bytes = b""
    """int64 rows of (row, form, offset, bytes): extents written and open to all."""
    spent: Spent = msgspec.field(default_factory=Spent)
    result: bytes = b""
    """Where a worker collates: the batch, encoded."""
    error: bytes = b""
    """Where user code failed for the batch as a whole: the exception, pickled for its own job."""
    slot_offset: int = -1
    slot_bytes: int = 0
    """Where the result did not fit the slot: the larger range that replaces it."""
    exhausted: bool = False
    """An iterable dataset has no more."""
    has_state: bool = False
    """The result is a pair: the batch, and the pickled state of the worker's dataset after it."""
    start: bytes = b""
    """With the first batch of an epoch: the pickled state of the worker's dataset before it."""
    wanted: tuple[int, int, int] = (0, 0, 0)
    """For each form that is cached, the bytes of the largest one that found no block large enough."""


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """A worker has started."""

    pid: int


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A worker could not start, or cannot go on: the exception, pickled for its own job."""

    error: bytes


class Run(msgspec.Struct, tag="run", array_like=True):
    """To one worker alone: run this order (iterable datasets, which live in one worker)."""

    order: Order


class Threads(msgspec.Struct, tag="threads", array_like=True):
    """To a worker: prepare with so many threads."""

    count: int


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """To a worker: finish."""


Event = OrderDone | Ready | Failed
Command = Run | Threads | Stop

encoder = msgspec.msgpack.Encoder()
decode_event = msgspec.msgpack.Decoder(Event).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_order = msgspec.msgpack.Decoder(Order).decode
