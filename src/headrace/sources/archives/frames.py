"""Samples of several members: one piece of bytes for each, which is itself a piece of a tar archive.

In a tar archive the members of a sample lie one behind the other, each behind its own headers, so that the piece
which has them all is read as it lies there. Where they do not, and from zip archives, it is put together.
``recipes.fields`` takes it apart again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.tar import header_of, padded
from headrace.sources.archives.index import Index
from headrace.sources.archives.zip import inflated

_FOR_NOTHING = 1 << 16
"""Bytes of other members that are read along, at most, to read what was asked for in one go."""


class Part(NamedTuple):
    """A piece of an archive to be read."""

    start: int
    length: int
    member: int = -1
    """The member that it has the bytes of; -1: it is framed as it lies there."""


def parts_of(index: Index, sample: int, fields: Sequence[str]) -> list[Part]:
    """What is to be read of a sample for some of its fields: a single piece wherever that is possible."""
    members = [at for at in index.members(sample) if index.exts[int(index.kinds[at])].lower() in fields]
    if not all(int(index.heads[at]) for at in members):
        return [Part(int(index.starts[at]), int(index.lengths[at]), at) for at in members]
    every = sorted(
        (int(index.starts[at]) - int(index.heads[at]), int(index.starts[at]) + int(index.lengths[at]), at)
        for at in index.members(sample)
        if int(index.heads[at])
    )
    out: list[Part] = []
    end = passed = -1
    for head, stop, at in every:
        adjacent = out and padded(end) == head
        if at not in members:
            # What lies between is read along where it is little, and all of it is of this sample.
            passed = passed + padded(stop) - head if adjacent and passed >= 0 else -1
            end = stop if passed >= 0 else -1
            continue
        if adjacent and 0 <= passed <= _FOR_NOTHING:
            out[-1] = Part(out[-1].start, stop - out[-1].start)
        else:
            out.append(Part(head, stop - head))
        end, passed = stop, 0
    return out


def framed(index: Index, parts: Sequence[Part], found: Sequence[bytes]) -> bytes:
    """The piece of a tar archive that has all of them."""
    if len(parts) == 1 and parts[0].member < 0:
        return found[0]
    out = []
    for part, data in zip(parts, found, strict=True):
        if part.member >= 0:
            size = int(index.sizes[part.member])
            data = inflated(data, size - 1) if size else data
            out.append(header_of(index.name(part.member), len(data)))
        out += [data, bytes(padded(len(data)) - len(data))]
    return b"".join(out)
