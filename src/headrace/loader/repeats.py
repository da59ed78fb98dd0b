"""Samplers that name a sample more than once: each time it comes, it is augmented anew."""

from __future__ import annotations

import base64
import zlib

import numpy as np
from numpy.typing import NDArray

from headrace.core import random
from headrace.core.errors import StateError

Ids = NDArray[np.int64]


class Repeats:
    """How often each sample was named so far in an epoch."""

    def __init__(self, size: int) -> None:
        """``size``: samples of the dataset."""
        self._times = np.zeros(size, np.uint32)

    def count(self, indices: Ids) -> Ids | None:
        """The words by which random numbers of these rows go; None where all of them come for the first time."""
        times = self._times[indices]
        places = _places(indices)
        if places is not None:
            times += places
        self._times[indices] = times + 1  # (of equal indices the last one counts)
        return random.again(indices, times) if times.any() else None

    def uncount(self, indices: Ids) -> None:
        """These rows were not delivered."""
        np.subtract.at(self._times, indices, 1)

    def copy(self) -> Repeats:
        """One that counts on by itself."""
        other = Repeats(0)
        other._times = self._times.copy()
        return other

    def pack(self) -> str:
        """All of it as text."""
        # (low bytes first, then all higher ones, which are zeros but for a few)
        planes = self._times.astype("<u4").view(np.uint8).reshape(-1, 4).T
        return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode()

    @classmethod
    def unpack(cls, text: str, size: int) -> Repeats:
        """What ``pack`` wrote. The dataset may have another size by now."""
        try:
            raw = zlib.decompress(base64.b64decode(text, validate=True))
            planes = np.frombuffer(raw, np.uint8).reshape(4, -1)
        except (ValueError, zlib.error) as error:
            raise StateError(f"how often the state's samples came cannot be read: {error}") from None
        times = np.ascontiguousarray(planes.T).view("<u4").ravel()[:size]
        repeats = cls(size)
        repeats._times[: len(times)] = times
        return repeats


def words_within(indices: Ids) -> Ids | None:
    """As ``Repeats.count``, where nothing came before."""
    places = _places(indices)
    return None if places is None else random.again(indices, places)


def _places(indices: Ids) -> NDArray[np.uint32] | None:
    """For each row, how many rows before it are of the same sample; None: no sample is there twice."""
    named = indices.tolist()
    if len(set(named)) == len(named):
        return None
    came: dict[int, int] = {}
    places = np.empty(len(named), np.uint32)
    for row, index in enumerate(named):
        places[row] = came[index] = came.get(index, -1) + 1
    return places
