"""What happens to a shared host, as its commons are told. Plain data: a log of events can be written and replayed."""

from __future__ import annotations

import msgspec

from headrace.coordinate.protocol import Begin, Finished, Join, Reply
from headrace.planning import Spent


class Came(msgspec.Struct, tag="came", array_like=True, frozen=True):
    """A rank wants to share."""

    member: int
    token: str
    pid: int
    join: Join


class Named(msgspec.Struct, tag="named", array_like=True, frozen=True):
    """A rank names the samples of a dataset that was not known: 16 bytes of identity each."""

    member: int
    identities: bytes


class Began(msgspec.Struct, tag="began", array_like=True, frozen=True):
    """A rank begins an epoch, or goes on with one that another host began, of which it knows ``progress``."""

    member: int
    begin: Begin
    progress: bytes | None = None


class Asked(msgspec.Struct, tag="asked", array_like=True, frozen=True):
    """A rank asks for a draw of so many batches at ``most``; ``indices`` where it drew for itself. It is done with
    the tickets of ``over``, which took what was ``spent``."""

    member: int
    indices: bytes = b""
    most: int = 1
    over: bytes = b""
    spent: Spent | None = None


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    """Rows are prepared, or given up."""

    member: int
    finished: Finished


class Neared(msgspec.Struct, tag="neared", array_like=True, frozen=True):
    """The memory of a cluster holds these samples of a dataset, too, by their indices (int64); ``more``: and others
    are being read into it. Without, none of it is of interest any more."""

    dataset: str
    samples: bytes
    more: bool


class WasIdle(msgspec.Struct, tag="idle", array_like=True, frozen=True):
    """A worker of a rank has nothing to do."""

    member: int


class Gone(msgspec.Struct, tag="gone", array_like=True, frozen=True):
    """A rank is gone. Its workers may go on for a moment."""

    member: int


class Buried(msgspec.Struct, tag="buried", array_like=True, frozen=True):
    """Nothing of a rank that is gone runs any more."""

    member: int


class Ticked(msgspec.Struct, tag="ticked", array_like=True, frozen=True):
    """Time has passed. ``workers``: processes of all jobs."""

    workers: int


class Tidied(msgspec.Struct, tag="tidied", array_like=True, frozen=True):
    """It is time to forget what nobody uses."""


class Emptied(msgspec.Struct, tag="emptied", array_like=True, frozen=True):
    """Nobody is there, and the cache is to let go of its memory."""


class Filled(msgspec.Struct, tag="filled", array_like=True, frozen=True):
    """The machine holds so many bytes for the cache."""

    resident: int


Event = (
    Came
    | Named
    | Began
    | Asked
    | Done
    | Neared
    | WasIdle
    | Gone
    | Buried
    | Ticked
    | Tidied
    | Emptied
    | Filled
)


class GiveBack(msgspec.Struct, tag="give_back", array_like=True, frozen=True):
    """To the host itself: ranges of the cache's memory that the machine can have back."""

    ranges: list[tuple[int, int]]


HOST = 0
"""The member that stands for the host itself."""

Answer = tuple[int, Reply | GiveBack]
"""Whom to tell what."""
