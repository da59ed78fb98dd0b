"""Orders and events: what a host and its workers tell each other. Plain data, nothing else crosses."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.planning import Spent


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
    """Where each row's extent lies, int64 per row: addresses (-1: none)."""
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
    """Blocks of the cache that this order may fill, int64 rows of (form, address, capacity)."""
    instance: int = 0
    """What addresses in the arena and grants refer to: 0 the job's own arena, else the number of a service."""
    ticket: int = -1
    """The service's number of the draw."""
    first: int = 0
    """The row of that draw at which this order's rows start."""
    fill: bool = False
    """Prepare into the cache only; there is no slot."""
    words: bytes = b""
    """What random numbers of each row go by, int64 per row; empty: its index."""
    sequence: int = 0
    """The number of its batch: what a rank takes comes in this order."""
    later: bytes = b""
    """Samples of a batch to come, where that is known: int64 each."""
    later_batch: int = 0
    """That batch's number."""
    leave: int = 0
    """So many of its rows are left to a device, as far as they can be."""
    holds: bool = False
    """The device holds the images of these, so they need not be cached here."""

    def index_array(self) -> NDArray[np.int64]:
        """The samples, row by row."""
        return np.frombuffer(self.indices, np.int64)


FILLED = -2
"""Stands for the order of a report about something that was prepared into the shared cache."""


class OrderDone(msgspec.Struct, tag="done", array_like=True):
    """A worker finished an order: its rows stand in the slot, but for the faults."""

    order: int
    faults: list[tuple[int, str, str]]
    """Row of the order, reason, traceback."""
    published: bytes = b""
    """int64 rows of (row, form, address, bytes): extents written and open to all."""
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
    read: list[tuple[int, int, float]] = []
    """Of each tier beside the arena that was read from: the tier, bytes, and seconds."""
    took: float = 0.0
    """Seconds from its claim until all of its rows were fetched."""
    left: bytes = b""
    """Rows of the order that are left to a device, int64 each."""


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
