"""Publishing: prepared forms into new extents, as far as a store has room for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cache import extents
from headrace.coordinate.messages import Order
from headrace.core.forms import Form
from headrace.engine.bodies import Body, dump
from headrace.engine.store import Store
from headrace.recipes.program import Work

Published = list[tuple[int, int, int, int]]
"""Row, form, address and bytes of each new extent."""


class Publisher:
    """Writes forms of an order's rows into extents. Each method says which rows found room, and where."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def encoded(self, order: Order, rows: list[int], inputs: list[Any]) -> Published:
        """The bytes of ``rows`` as they were fetched."""
        if not rows:
            return []
        sizes = [len(inputs[row]) for row in rows]
        published = []
        room = self._store.take(order, Form.ENCODED, sizes)
        for row, size, place in zip(rows, sizes, room, strict=True):
            if place is not None:
                place[1][:] = inputs[row]
                published.append((row, int(Form.ENCODED), place[0], size))
        return published

    def augmented(self, order: Order, rows: list[int], body: Body, out: list[NDArray[Any]]) -> Published:
        """The bodies of ``rows``, which stand in ``out``."""
        if not rows or not body.nbytes:
            return []
        room = self._store.take(order, Form.AUGMENTED, [body.nbytes] * len(rows))
        found = [(row, *place) for row, place in zip(rows, room, strict=True) if place is not None]
        dump([extent for _, _, extent in found], body.blocks(out), [row for row, _, _ in found])
        return [(row, int(Form.AUGMENTED), address, body.nbytes) for row, address, _ in found]

    def reserve(
        self,
        order: Order,
        arrays: Sequence[tuple[tuple[int, ...], str]],
        taken: dict[int, tuple[int, int]],
    ) -> list[NDArray[Any] | None]:
        """Extents of single decoded arrays, to be filled by the program; noted in ``taken`` by address."""
        sizes = [extents.array_size(shape, dtype) for shape, dtype in arrays]
        out: list[NDArray[Any] | None] = []
        room = self._store.take(order, Form.DECODED, sizes)
        for (shape, dtype), size, place in zip(arrays, sizes, room, strict=True):
            if place is None:
                out.append(None)
                continue
            array = extents.open_array(place[1], shape, dtype)
            taken[array.__array_interface__["data"][0]] = (place[0], size)
            out.append(array)
        return out

    def decoded(self, order: Order, work: Work) -> Published:
        """The decoded values that the program kept: those in reserved arrays stand, others are copied."""
        published = []
        loose: list[tuple[int, list[Any], int]] = []
        for row, value in work.kept.items():
            if row in work.faults:
                continue
            place = None
            if isinstance(value, np.ndarray):
                place = work.taken.get(value.__array_interface__["data"][0])
            if place is not None:
                published.append((row, int(Form.DECODED), *place))
            else:
                pieces = extents.dump(value)
                if pieces is not None:
                    loose.append((row, pieces, sum(len(piece) for piece in pieces)))
        if loose and not work.taken:
            room = self._store.take(order, Form.DECODED, [size for _, _, size in loose])
            for (row, pieces, size), found in zip(loose, room, strict=True):
                if found is not None:
                    at = 0
                    for piece in pieces:
                        found[1][at : at + len(piece)] = piece
                        at += len(piece)
                    published.append((row, int(Form.DECODED), found[0], size))
        return published
