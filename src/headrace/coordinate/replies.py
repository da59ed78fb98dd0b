"""What a shared host replied, as draws: arrays for each row, and several draws where it gave them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from headrace.coordinate.protocol import Drawn, Update
from headrace.core.forms import Form
from headrace.sampling import Draw, Lookup
from headrace.sampling.draw import Ids

_AUGMENTED = int(Form.AUGMENTED)  # numpy takes long over enumerations


def read(reply: Drawn, own: Draw | None, instance: int, *, parted: bool) -> Draw:
    """What the host ``instance`` replied. ``parted``: a batch is prepared in parts, some of which may wait."""
    indices = np.frombuffer(reply.indices, np.int64)
    forms = np.frombuffer(reply.forms, np.uint8)
    copies = 0
    if parted:
        ready = forms[: reply.waits] == _AUGMENTED
        copies = len(ready) if ready.all() else int(np.argmin(ready))
    lookup = Lookup(
        reply.ticket,
        instance,
        forms,
        np.frombuffer(reply.offsets, np.int64),
        np.frombuffer(reply.lengths, np.int64),
        np.frombuffer(reply.keep, np.uint8),
        _grants(reply.grants),
        reply.waits,
        copies,
    )
    if own is not None:
        return own.looked_up(lookup)
    return Draw(
        reply.epoch,
        reply.step,
        indices,
        reply.given,
        reply.last,
        randomness=(reply.seed, reply.key),
        of_all_ranks=np.frombuffer(reply.of_all_ranks, np.int64) if reply.of_all_ranks else indices,
        lookup=lookup,
    )


def cut(draw: Draw, rows: list[int]) -> Iterator[Draw]:
    """The draws of which one reply is, with so many rows each."""
    lookup = draw.lookup
    assert lookup is not None
    if len(rows) == 1:
        yield draw.looked_up(dataclasses.replace(lookup, stretch=True))
        return
    start, total = 0, len(draw.indices)
    for at, count in enumerate(rows):
        part = slice(start, start + count)
        indices = draw.indices[part]
        mine = Lookup(
            lookup.ticket,
            lookup.instance,
            lookup.forms[part],
            lookup.offsets[part],
            lookup.lengths[part],
            lookup.keep[part],
            lookup.grants,
            count,
            min(max(lookup.copies - start, 0), count),
            first=start,
            stretch=True,
        )
        start += count
        yield Draw(
            draw.epoch,
            draw.step + at,
            indices,
            draw.position - (total - start),
            draw.last and start == total,
            randomness=draw.randomness,
            of_all_ranks=indices,
            lookup=mine,
        )


def updated(lookup: Lookup, update: Update) -> Lookup:
    """With what the host says of the rows that waited."""
    first = lookup.waits

    def joined(before: np.ndarray, after: bytes) -> np.ndarray:
        return np.concatenate([before[:first], np.frombuffer(after, before.dtype)])

    return dataclasses.replace(
        lookup,
        forms=joined(lookup.forms, update.forms),
        offsets=joined(lookup.offsets, update.offsets),
        lengths=joined(lookup.lengths, update.lengths),
        keep=joined(lookup.keep, update.keep),
        # (grants of the first rows were in the draw itself, and most are used up by now)
        grants=np.concatenate([lookup.grants[lookup.grants[:, 0] < first], _grants(update.grants)]),
    )


def _grants(data: bytes) -> Ids:
    return np.frombuffer(data, np.int64).reshape(-1, 4)
