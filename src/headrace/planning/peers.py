"""Whether samples are asked of the node that has them, or read from storage. Pure: times are passed in.

A node is asked as long as nobody knows better: storage is to be read once, by the whole cluster. What requests take
is measured, of each node and of storage, and a node that is clearly slower than storage is left alone for a time.
Then it is tried again, and it is back as soon as a few tries were fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STORAGE = ""
"""The way that is no node."""
_SLOWER = 1.5
"""A node that takes so many times as long as storage is clearly slower."""
_NOT_SLOWER = 1.25
"""And it is not any more at this."""
_SLACK = 0.03
"""Seconds more that do not count: samples are read ahead of need, and storage is everybody's."""
_WINDOW = 16
"""Requests of each way that are remembered. What half of them took counts, so a few that are off do not."""
_ENOUGH, _ENOUGH_STORED = 8, 3
"""Requests after which it is known what a node takes, and what storage does."""
_FAST = 3
"""Tries in a row that were fast: so many and a node is back."""
_REST, _LONGEST = 1.0, 60.0
"""Seconds until a node that was slower is tried again: at first, and at most."""
_WELL = 10.0
"""A node that was well for so many times its rest had a new trouble, if it is slow again."""
_APART = 0.25
"""Requests tell what a byte takes if their sizes are so far apart, as a part of the largest."""
_PAIRS = 4
"""And if there are so many such pairs."""


class Taken:
    """What requests took by one way, of late: a time to begin with, and one for each byte."""

    def __init__(self) -> None:
        self._requests: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        """Bytes and seconds."""
        self._fitted: _Line | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, nbytes: float, seconds: float) -> None:
        """A request took so long."""
        self._requests.append((max(1.0, nbytes), max(0.0, seconds)))
        self._fitted = None

    def forget_but(self, last: int) -> None:
        """Only the last so many requests count."""
        self._requests = deque(list(self._requests)[-last:], maxlen=_WINDOW)
        self._fitted = None

    @property
    def usual(self) -> float | None:
        """Bytes of a request, where all are of about one size; None: what others would take is known as well."""
        return self._line().usual

    def seconds(self, nbytes: float) -> float:
        """What a request of so many bytes would take, or the least that it might. There has to be one to go by."""
        line = self._line()
        if line.usual is not None:
            return line.first * min(1.0, nbytes / line.usual)
        return line.first + line.byte * nbytes

    def _line(self) -> _Line:
        if self._fitted is None:
            self._fitted = _fit(*np.array(self._requests).T)
        return self._fitted


class _Line(NamedTuple):
    """Seconds to begin with, and for each byte; or, if that cannot be told apart, of a request of ``usual`` bytes."""

    first: float
    byte: float
    usual: float | None


def _fit(sizes: Floats, took: Floats) -> _Line:
    """The median of the slopes between requests, and then that of the rest."""
    first, second = _pairs(len(sizes))
    apart = sizes[first] - sizes[second]
    tell = np.abs(apart) >= _APART * sizes.max()
    if np.count_nonzero(tell) < _PAIRS:
        return _Line(_median(took), 0.0, _median(sizes))
    slope = _median((took[first] - took[second])[tell] / apart[tell])
    slope = min(max(slope, 0.0), _median(took / sizes))
    return _Line(max(0.0, _median(took - slope * sizes)), slope, None)


def _median(values: Floats) -> float:
    return float(np.sort(values)[len(values) // 2])


@cache
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(count, 1)


class _Node:
    """What is known of one node."""

    def __init__(self) -> None:
        self.taken = Taken()
        self.left = False
        """It was slower."""
        self.until, self.rest = 0.0, 0.0
        """When it is tried again, and for how long it was left alone."""
        self.fast = 0
        """Tries in a row that were."""
        self.back = 0.0
        """When it was well again."""


class Ways:
    """What each way takes one process, and which of them is gone."""

    def __init__(self) -> None:
        self._storage = Taken()
        self._nodes: dict[str, _Node] = {}
        self.size = 0.0
        """Bytes of a sample, of late."""

    def read(
        self, way: str, samples: int, nbytes: int, seconds: float, *, now: float, kept: int | None = None
    ) -> None:
        """A request was answered. ``way``: a node's incarnation, or ``STORAGE``, whoever of this machine read there.
        Who holds a part of the samples does so anyway: nobody has to read one twice to know what that takes.

        ``seconds``: from when it was sent. ``kept``: the samples that the node had; the others it had to read itself,
        and what storage takes is no fault of its own.
        """
        if samples <= 0:
            return
        self.size += (nbytes / samples - self.size) / 16 if self.size else nbytes / samples
        if way == STORAGE:
            self._storage.add(nbytes, seconds)
            return
        if kept is not None and kept < samples:
            if len(self._storage) < _ENOUGH_STORED:
                return
            seconds -= self._storage.seconds(nbytes * (samples - kept) / samples)
        node = self._nodes.setdefault(way, _Node())
        node.taken.add(nbytes, seconds)
        if node.left:
            self._tried(node, nbytes, seconds, now)

    def by_node(self, way: str, nbytes: float, *, now: float) -> bool:
        """Whether a request of so many bytes goes to the node, rather than to storage."""
        node = self._nodes.get(way)
        if node is None or len(self._storage) < _ENOUGH_STORED:
            return True
        if not node.left:
            if len(node.taken) < _ENOUGH or not self._slower(node, nbytes, _SLOWER):
                return True
            well = now - node.back
            node.left, node.fast = True, 0
            node.rest = min(_LONGEST, 2 * node.rest) if node.rest and well < _WELL * node.rest else _REST
            node.until = now + node.rest
            return False
        if not self._slower(node, nbytes, _NOT_SLOWER):
            self._come_back(node, now)  # (it is storage that has become slower)
            return True
        if now < node.until:
            return False
        node.until = now + node.rest
        return True

    def only(self, ways: Collection[str]) -> None:
        """These nodes are there; what is known of others is forgotten."""
        for way in [one for one in self._nodes if one not in ways]:
            del self._nodes[way]

    def _slower(self, node: _Node, nbytes: float, times: float) -> bool:
        # (of what storage was not asked for nothing is said)
        size = self._storage.usual or nbytes
        return node.taken.seconds(size) > times * self._storage.seconds(size) + _SLACK

    def _tried(self, node: _Node, nbytes: float, seconds: float, now: float) -> None:
        """A node that was left alone has answered."""
        usual = self._storage.usual
        if usual is not None and nbytes > usual:
            nbytes, seconds = int(usual), seconds * usual / nbytes
        if seconds > _NOT_SLOWER * self._storage.seconds(nbytes) + _SLACK:
            node.fast, node.rest = 0, min(_LONGEST, 2 * node.rest)
            node.until = now + node.rest
            return
        node.fast += 1
        node.until = now
        if node.fast >= _FAST:
            node.taken.forget_but(_FAST)
            self._come_back(node, now)

    @staticmethod
    def _come_back(node: _Node, now: float) -> None:
        node.left, node.back = False, now
