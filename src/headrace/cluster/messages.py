"""What node servers and those who use them say to each other. Plain data; what arrives is checked when it is read.

A connection begins with ``Hello`` and ``Welcome``. After that the client asks and the server answers, one by one; who
says ``Watch`` asks nothing more, and is told of every ``View`` from then on.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

PROTOCOL = 9
"""Raised with every change of these messages."""
MOST_SAMPLES = 1 << 16
"""That one request may ask for."""
MOST_NODES = 4096
MOST_CAME = 1 << 20
"""Samples of which one answer says that they have come."""
KEY = 16
"""Bytes of a key."""
MOST_PUT = 128 << 20
"""Bytes that are put by key at a time."""

Held = Literal["", "tier", "measured"]
"""Whether nodes hold decoded samples for a job: not, always, or where it is measured to pay."""
NO: Final = ""
YES: Final = "tier"
MEASURED: Final = "measured"

Name = Annotated[str, msgspec.Meta(max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Message(msgspec.Struct, tag=True, frozen=True, array_like=True):
    """Of all messages."""


class Helper(msgspec.Struct, frozen=True, array_like=True):
    """A process of a node that prepares rows for ranks elsewhere."""

    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)]
    certificate: Name
    nixl: bool = False
    """Whether it can write rows into others' memory."""


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A node server, as others see it."""

    id: Name
    """Of the node: the same for the next server there."""
    incarnation: Name
    """Of the server: another one after each start."""
    host: Name
    port: Annotated[int, msgspec.Meta(ge=0, lt=65536)]
    certificate: Name
    """The SHA-256 of its certificate."""
    memory: Count
    """Bytes that it holds samples in."""
    socket: Text = ""
    """Where it listens for those on the same machine."""
    helpers: Annotated[tuple[Helper, ...], msgspec.Meta(max_length=1024)] = ()
    rails: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()
    """Addresses of its network interfaces, where it has several; server and helpers listen at all of them."""
    code: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)] = ()
    """Modules and packages whose code its helpers run."""


class View(Message, frozen=True):
    """The servers that there are. A later view has a higher number."""

    number: int
    nodes: Annotated[tuple[Node, ...], msgspec.Meta(max_length=MOST_NODES)] = ()


class Hello(Message, frozen=True):
    """The first words of a client. ``token``: of the cluster; over a Unix socket none is needed."""

    protocol: int
    token: Name = ""
    version: Name = ""


class Welcome(Message, frozen=True):
    """The server's answer. On its own machine it says what is needed to reach the others, too."""

    node: Name
    view: View
    token: Name = ""


class Refused(Message, frozen=True):
    """Why something is not to be had."""

    reason: Text


class Watch(Message, frozen=True):
    """Tell of every view from now on; ``Noted`` once a second where there is no other."""


class Open(Message, frozen=True):
    """Whether a dataset, by its fingerprint, is known, and its samples are read up to ``limit`` bytes. Where they are
    not, ``Define`` follows."""

    dataset: Name
    limit: Count = 0


class Define(Message, frozen=True):
    """What makes a dataset, as ``to_plain`` writes sources, in JSON. The answer comes when it was listed."""

    dataset: Name
    definition: bytes


class Opened(Message, frozen=True):
    """The dataset is there, or (of ``Open``) it is not known so."""

    known: bool
    samples: Count = 0


class Want(Message, frozen=True):
    """Samples of a dataset, as int64. ``Given`` is the answer."""

    dataset: Name
    samples: bytes


class Given(Message, frozen=True):
    """Lengths of samples as int64, and the samples beside it; -1: it is not to be had here.

    ``kept``: how many of them were in memory; ``view``: the number of the server's; ``stored``: how often it has read
    from storage, and the samples, bytes and seconds of the last time.
    """

    lengths: bytes
    kept: Count = 0
    view: int = 0
    stored: tuple[int, int, int, float] = (0, 0, 0, 0.0)


class Find(Message, frozen=True):
    """What others have put by keys of ``KEY`` bytes each. ``Given`` is the answer. ``peek``: lengths alone."""

    group: Name
    keys: bytes
    peek: bool = False


class Put(Message, frozen=True):
    """Hold what stands beside this, by its keys, as far as there is room. ``lengths``: int64 each."""

    group: Name
    keys: bytes
    lengths: bytes


class Drop(Message, frozen=True):
    """What was put by these keys is not what should be there. ``Noted`` is the answer, once it is gone."""

    group: Name
    keys: bytes


class Took(Message, frozen=True):
    """How much of what was put is held now, and was not before; and whether there was room for all of it."""

    count: Count
    room: bool


class Ahead(Message, frozen=True):
    """A job begins an epoch, at ``position`` of the order that follows from ``seed``. ``shared``: any order would do,
    and other jobs say the same."""

    dataset: Name
    seed: int
    epoch: int
    position: Count = 0
    shuffled: bool = True
    shared: bool = False


class Came(Message, frozen=True):
    """Which samples of a dataset has memory taken in, since it had taken in so many? ``Arrived`` is the answer."""

    dataset: Name
    since: Count


class Arrived(Message, frozen=True):
    """So many by now, and these (int64) since then. ``more``: others are being read, ahead of need, and there is room
    for them. (Of a dataset that is not known, nothing has come.)"""

    count: Count
    samples: bytes
    more: bool


class Noted(Message, frozen=True):
    """It was heard."""


class Teach(Message, frozen=True):
    """A recipe, as ``to_plain`` writes it without its source, in JSON; of a dataset that servers know. ``decoded``:
    whether those who use it cache decoded samples, on which pixels depend a little; ``fields``: how its rows look, as
    ``RowLayout.describe`` says it, in JSON; ``key``: a digest of all that makes them, targets and
    code of the user's included; ``tier``: whether nodes hold decoded samples for those who use it."""

    recipe: Name
    dataset: Name
    source: bytes
    definition: bytes
    decoded: bool
    fields: bytes
    key: Name
    tier: Held = NO


class Land(Message, frozen=True):
    """Memory of this connection's for rows to be written into from now on: what NIXL needs for it, and its address.

    There is no answer. What was told before is gone.
    """

    metadata: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]
    base: Count


class Grant(Message, frozen=True):
    """Room for rows at the other end, and what they are to be. The answer is ``Rows`` of the same number.

    Several may be under way. Nobody asks for them again: one that is not answered when its connection ends is void.
    """

    number: int
    recipe: Name
    seed: int
    epoch: int
    step: int
    samples: bytes
    """int64 each."""
    words: bytes = b""
    """What random numbers go by, where that is not the sample's number."""
    place: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """From where on in the memory that ``Land`` told of they are to be written; -1: they are sent beside ``Rows``."""


class Rows(Message, frozen=True):
    """Rows stand beside this, or were written before: field by field, as the recipe lays them out."""

    number: int
    faults: tuple[tuple[int, str, str], ...] = ()
    held: float = 0.0
    """Seconds from the grant's arrival to the sending of the rows."""
    cpu: float = 0.0
    """CPU seconds that they took."""


class GetStatus(Message, frozen=True):
    """How a server stands."""


class DatasetStatus(msgspec.Struct, frozen=True, array_like=True):
    """A dataset on a server."""

    fingerprint: Name
    name: Text
    """How it is shown: datasets may differ and look alike."""
    samples: Count
    held: Count
    """Samples of it in memory."""
    nbytes: Count
    """Bytes of these."""


class Status(Message, frozen=True):
    """How a server stands."""

    node: Name
    pid: int
    memory: Count
    used: Count
    served: Count
    """Samples that were given."""
    served_bytes: Count
    fetched: Count
    """Samples that were read from storage."""
    fetched_bytes: Count
    clients: Count
    datasets: tuple[DatasetStatus, ...] = ()
    decoded: Count = 0
    """Samples that jobs have put there, decoded."""
    decoded_bytes: Count = 0


Request = (
    Hello | Watch | Open | Define | Want | Find | Put | Drop | Ahead | Came | GetStatus | Teach | Land | Grant
)
Reply = Welcome | Refused | View | Opened | Given | Took | Noted | Arrived | Status | Rows

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
