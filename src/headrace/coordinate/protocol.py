"""What jobs, their workers and the shared host tell each other. Plain data with limits, nothing else crosses.

Five kinds of connection, told apart by ``Hello.role``: a ``job`` asks for draws, a ``worker`` reports what it
published and offers its idle time, a ``device`` shares what a job holds in the memory of a GPU, a ``near`` tells what
the memory of a cluster holds, and ``control`` asks for the status or for the end. What is larger than a message
(identities, sets of samples) travels beside it, as does memory.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.coordinate.messages import Order
from headrace.planning import Spent

PROTOCOL = 9
"""Raised whenever a message changes its meaning."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
Key = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=512)]
Rows = Annotated[bytes, msgspec.Meta(max_length=64 << 20)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

MOST_ROWS = 1 << 22
"""Rows of the largest batch, so that there is an end to what one request can ask of the host."""
MOST_ASKS = 64
"""Draws that a rank may have asked for and not got."""
MOST_OPEN = 1 << 16
"""Draws that a rank may have been given and not be done with."""
MOST_NEARER = 1 << 16
"""Samples of which the host is told at a time that they are near: others wait no longer than a draw takes."""
MOST_TOGETHER = 64
"""Batches that one draw may be of."""


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """The first message of every connection."""

    version: int
    role: Key
    """"job", "worker", "device", "near" or "control"."""
    pid: int = 0
    job: Key = ""
    """The token of the job's member; a worker names its job by it."""


class Welcome(msgspec.Struct, tag="welcome", array_like=True):
    """The host takes the connection; jobs' workers get the cache's memory beside it, where it can be shared."""

    instance: int
    span: int = 0
    """Bytes of the cache's address range."""


class Refused(msgspec.Struct, tag="refused", array_like=True):
    """The host does not take the connection, or the request."""

    reason: str
    again: bool = False
    """Whether it may be tried again soon."""


class Join(msgspec.Struct, tag="join", array_like=True):
    """A rank of a job wants to share. Ranks with the same ``group`` are one job."""

    name: Text
    group: Key
    rank: Count
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
    dataset: Key
    """Fingerprint of the source: equal ones list the same samples in the same order."""
    label: Text
    samples: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    encoded: Key
    """Share keys of the forms; empty: not shared."""
    decoded: Key
    augmented: Key
    body: Count
    """Bytes of an augmented extent."""
    budget: Count
    split: tuple[Share, Share, Share] | None
    """Shares of the budget by form; None: the host sees what pays."""
    sampling: Key
    eviction: Key
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
    drop_last: bool
    collates: bool = False
    """Batches are made in one piece, so none of their rows can wait for others."""
    fills: bool = True
    """Whether idle workers may be given something to prepare for the cache."""
    near: bool = False
    """Whether somebody is about to tell what a cluster holds of the dataset."""


class Joined(msgspec.Struct, tag="joined", array_like=True):
    """The rank is in."""

    identities: bool
    """Whether the host needs the samples' identities (``Identities``) before the first ``Begin``."""


class Identities(msgspec.Struct, tag="identities", array_like=True):
    """16 bytes per sample, beside this message."""


class Known(msgspec.Struct, array_like=True, frozen=True):
    """What a rank's draws follow from, in this epoch and in those to come (``sampling.uniform``). The host goes by it
    in what it keeps and fetches ahead, and in nothing else."""

    seed: int
    shuffle: bool
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
    rank: Count
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    drop_last: bool
    position: Count = 0
    """Samples of the present epoch, over all ranks, that came before."""


class Begin(msgspec.Struct, tag="begin", array_like=True):
    """An epoch begins, or goes on where the set of samples already delivered comes beside this."""

    epoch: Count
    given: Count = 0
    """Samples of the epoch that are delivered or on their way."""
    explicit: bool = False
    """The job draws for itself and names its samples with each ``Ask``."""
    step: Count = 0
    """Steps of the epoch that this rank has been given."""
    known: Known | None = None
    """Of a job that draws for itself: what it draws, if that is known ahead."""


class Ask(msgspec.Struct, tag="ask", array_like=True):
    """A draw, please. ``indices``: the samples (int64), where the job draws for itself."""

    indices: Rows = b""
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOGETHER)] = 1
    """Batches that it may be of; with 1, workers report of all of them."""
    over: Rows = b""
    """Tickets (int64) of stretches that are over: see ``Drawn.stretch``."""
    spent: Spent | None = None
    """What those took."""


class Drawn(msgspec.Struct, tag="drawn", array_like=True):
    """The samples of one batch, and how each of its rows enters."""

    ticket: int
    epoch: int
    step: int
    seed: int
    key: int
    """Takes the place of the epoch in the key of random numbers."""
    indices: bytes
    """int64 per row, in the job's own numbering; as are the arrays below, a value per row."""
    forms: bytes
    offsets: bytes
    lengths: bytes
    keep: bytes
    grants: bytes
    """int64 rows of (form, address, capacity)."""
    waits: int
    """Rows from this one on wait for what others are preparing; an ``Update`` follows."""
    given: int
    """Samples of the epoch that are given out once every rank has this batch."""
    last: bool
    of_all_ranks: bytes = b""
    """The samples of the whole step, where several ranks share it."""
    company: Count = 0
    """Other jobs that draw what this one prepares, as this one does what they do."""
    stretch: list[int] = []
    """Where rows are only read, and the rank itself says when they are over (``Ask.over``), because no worker has
    anything to report of them: the rows of each batch, of which there may be several."""
    early: Count = 0
    """So many of them are left when the rank asks for more."""


class Over(msgspec.Struct, tag="over", array_like=True):
    """Nothing is left to draw in this epoch."""

    epoch: int


class Update(msgspec.Struct, tag="update", array_like=True):
    """The rows of a draw that waited: how they enter now."""

    ticket: int
    forms: bytes
    offsets: bytes
    lengths: bytes
    keep: bytes
    grants: bytes


class Finished(msgspec.Struct, tag="finished", array_like=True):
    """Rows of a draw are done with: prepared, or given up."""

    ticket: int
    first: Count
    count: Count
    published: Rows = b""
    """int64 rows of (row of the draw, form, address, bytes)."""
    wanted: tuple[Count, Count, Count] = (0, 0, 0)
    """By form: the largest extent for which there was no room in the grants."""
    spent: Spent = msgspec.field(default_factory=Spent)


class Idle(msgspec.Struct, tag="idle", array_like=True):
    """A worker has nothing to do."""


class Fill(msgspec.Struct, tag="fill", array_like=True):
    """To an idle worker: prepare this into the cache."""

    order: Order


class Nearer(msgspec.Struct, tag="nearer", array_like=True):
    """The memory of a cluster holds these samples of a dataset, too. ``Noted`` is the answer."""

    dataset: Key
    samples: Annotated[bytes, msgspec.Meta(max_length=8 * MOST_NEARER)]
    """Indices, int64."""
    more: bool
    """Whether others are being read into it; without, it is of no interest any more what it holds."""
    before: Count = 0
    """So many were told before."""


class Noted(msgspec.Struct, tag="noted", array_like=True):
    """It was heard; whether it was of use: where the dataset is not known, it has to be said again."""

    known: bool
    lost: bool = False
    """It was not, and what was told before is lost, too: all of it has to be said again."""


class Ping(msgspec.Struct, tag="ping", array_like=True):
    """From a job that has waited for a while: are you there?"""


class Pong(msgspec.Struct, tag="pong", array_like=True):
    """Yes."""


class Attach(msgspec.Struct, tag="attach", array_like=True):
    """A job holds decoded images in the memory of a device, and shares them with others who name the same ``key``."""

    key: Key
    label: Text
    """The device, for people."""
    samples: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    budget: Count
    chunk: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
    """Bytes of a chunk, if it is the first to come."""
    pool: Count = 0
    """The pool that it has from the time of a host before. Its table is beside this."""


class Pool(msgspec.Struct, tag="pool", array_like=True):
    """The pool that the job is in from now on. Its table is beside this; all of its chunks follow."""

    pool: int
    """Another than the job has: they are not to be brought together."""
    chunk: int


class WantChunk(msgspec.Struct, tag="want_chunk", array_like=True):
    """There is no room left where this job writes."""


class Room(msgspec.Struct, tag="room", array_like=True):
    """Here is some."""

    number: int
    """Of the chunk; negative: there is none."""
    there: bool = False
    """Whether it is one that somebody else began, else it is to be made."""


class Chunk(msgspec.Struct, tag="chunk", array_like=True):
    """Memory of the device is beside this."""

    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]
    writing: bool = False
    """Whether whoever says this writes there."""


class NoMemory(msgspec.Struct, tag="no_memory", array_like=True):
    """The chunk cannot be made."""


class MoreRoom(msgspec.Struct, tag="more_room", array_like=True):
    """To somebody who got none: there is by now."""


class Release(msgspec.Struct, tag="release", array_like=True):
    """This job writes nothing more."""


class GetStatus(msgspec.Struct, tag="status", array_like=True):
    """How do things stand?"""


class StatusReply(msgspec.Struct, tag="status_reply", array_like=True):
    """So: a JSON document."""

    status: bytes


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True):
    """End, please."""


FromDevice = Attach | WantChunk | Chunk | NoMemory | Release
Request = (
    Hello
    | Join
    | Identities
    | Begin
    | Ask
    | Finished
    | Idle
    | Nearer
    | Ping
    | GetStatus
    | Shutdown
    | FromDevice
)
Reply = (
    Welcome
    | Refused
    | Joined
    | Drawn
    | Over
    | Update
    | Fill
    | Noted
    | Pong
    | StatusReply
    | Pool
    | Room
    | Chunk
    | MoreRoom
)

decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
