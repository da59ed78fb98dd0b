"""What one node holds of a dataset: encoded samples, in memory that is taken once; and what jobs put there by key.

Samples come in as they are read, until the memory is full, and stay: each is used about as often as any other, so to
let one go for another would gain nothing. Memory is given back by datasets as a whole, those first that nobody has
used for longest. What there was no room for may wait for its one use in a small part apart. What is there by key
(samples that somebody has decoded) fills what is left, and gives way to encoded samples, since these cost storage.
"""

from __future__ import annotations

import mmap
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cluster.messages import View
from headrace.cluster.placement import Placement
from headrace.core.ranges import Ranges

_AHEAD = 16
"""One part in so many of the memory is for what waits for its use."""
_QUIET = 30.0
"""Seconds without a request after which a dataset may make room for another."""

_FEW = 8
"""Samples by key that are looked up at a time, to give way."""


@dataclass
class Held:
    """What is held of one dataset."""

    starts: NDArray[np.int64]
    """Where each sample begins; -1: it is not there."""
    lengths: NDArray[np.int32]
    placement: Placement
    """By the last view by which somebody wanted to know what counts."""
    count: int = 0
    reading: int = 0
    """Those who read from it just now."""
    used: float = field(default_factory=time.monotonic)
    came: array[int] = field(default_factory=lambda: array("q"))
    """What is held, in the order in which it came."""
    before: int = 0
    """Samples that had come before those, and were let go."""
    full: bool = False
    """Whether there was no room for the last one that came."""
    let_go: bool = False
    """Others have its room: nothing is read ahead of need, until somebody needs it."""

    def is_quiet(self, now: float) -> bool:
        """Whether nobody has asked for it lately."""
        return not self.reading and now - self.used > _QUIET


@dataclass
class Kept:
    """A sample by key."""

    start: int
    length: int
    reading: int = 0
    """Those who read it just now."""
    gone: bool = False
    """Whether nobody finds it any more: its memory is free once nobody reads it."""


@dataclass
class Group:
    """What is there by key of one kind: all that was decoded in one way."""

    kept: OrderedDict[bytes, Kept] = field(default_factory=OrderedDict)
    nbytes: int = 0
    used: float = field(default_factory=time.monotonic)


class Reading:
    """Samples that somebody is about to send. They stay where they are until ``done``."""

    def __init__(
        self, memory: PoolMemory, held: Held | list[Kept], samples: list[memoryview | bytes | None]
    ) -> None:
        self._memory, self._held, self.samples = memory, held, samples

    def done(self) -> None:
        """They were sent."""
        self.samples = []
        self._memory.done(self._held)


class PoolMemory:
    """Memory for samples of several datasets. Threads share it."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept = budget - budget // _AHEAD
        self._memory = mmap.mmap(
            -1, max(self._kept, mmap.PAGESIZE), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
        )
        self._view = memoryview(self._memory)
        self._free = Ranges()
        if self._kept > 0:
            self._free.free(0, self._kept)
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._groups: dict[str, Group] = {}
        self._ahead: dict[tuple[str, int], bytes] = {}
        self._ahead_bytes = 0
        self._here = "", View(0)

    @property
    def used(self) -> int:
        """Bytes of it that are in use."""
        with self._lock:
            return self._kept - self._free.total + self._ahead_bytes

    def open(self, dataset: str, samples: int) -> None:
        """There may be samples of this dataset from now on."""
        with self._lock:
            if dataset not in self._held:
                placement = Placement(self._here[1], dataset, samples)
                self._held[dataset] = Held(
                    np.full(samples, -1, np.int64), np.zeros(samples, np.int32), placement
                )

    def see(self, node: str, view: View) -> None:
        """Which node it is of, and which others there are: what has become theirs stays as long as the rest of its
        dataset, but does not count."""
        with self._lock:
            if view.number > self._here[1].number:
                self._here = node, view

    def read(self, dataset: str, samples: Sequence[int]) -> Reading:
        """What there is of some samples; None in the place of one that is not there."""
        with self._lock:
            held = self._held.get(dataset)
            if held is None:  # (it was forgotten just now)
                return Reading(self, [], [None] * len(samples))
            held.reading += 1
            held.used, held.let_go = time.monotonic(), False
            starts = held.starts[samples].tolist()
            lengths = held.lengths[samples].tolist()
            out: list[memoryview | bytes | None] = []
            for sample, start, length in zip(samples, starts, lengths, strict=True):
                if start >= 0:
                    out.append(self._view[start : start + length])
                    continue
                waiting = self._ahead.pop((dataset, sample), None)
                if waiting is not None:
                    self._ahead_bytes -= len(waiting)
                out.append(waiting)
            return Reading(self, held, out)

    def done(self, held: Held | list[Kept]) -> None:
        """Somebody has read."""
        with self._lock:
            if isinstance(held, Held):
                held.reading -= 1
                return
            for kept in held:
                kept.reading -= 1
                self._free_if_gone(kept)

    def missing(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that are not there."""
        with self._lock:
            held = self._held.get(dataset)
            absent = samples if held is None else samples[held.starts[samples] < 0]
            if not self._ahead:
                return absent
            return np.array([one for one in absent.tolist() if (dataset, one) not in self._ahead], np.int64)

    def keep(self, dataset: str, sample: int, data: Any) -> bool:
        """Hold a sample, if there is room; whether it is held now."""
        nbytes = len(data)
        if not nbytes or nbytes >= 1 << 31:
            return False
        with self._lock:
            held = self._held.get(dataset)
            if held is None or held.starts[sample] >= 0:
                return held is not None
            start = self._free.take(nbytes)
            if start is None:
                start = self._give_way(nbytes)
            if start is None and self._make_room(dataset):
                start = self._free.take(nbytes)
            held.full = start is None
            if start is None:
                return False
            # (nobody reads there before it is written down)
            self._view[start : start + nbytes] = data
            held.starts[sample], held.lengths[sample] = start, nbytes
            held.count += 1
            held.came.append(sample)
            return True

    def came(self, dataset: str, since: int, most: int) -> tuple[int, bytes, bool]:
        """What has come since so many had: how many have by now, up to ``most`` of them (int64), and whether there is
        room for more."""
        with self._lock:
            held = self._held.get(dataset)
            if held is None:  # (it was forgotten just now)
                return 0, b"", False
            first = since - held.before
            if not 0 <= first <= len(held.came):  # (it was let go since then, or forgotten)
                first = 0
            some = held.came[first : first + most]
            return held.before + first + len(some), some.tobytes(), not (held.full or held.let_go)

    def room_for(self, dataset: str, nbytes: int) -> int:
        """How many samples of this size may come in now, to stay or to wait for their use."""
        with self._lock:
            held = self._held.get(dataset)
            if held is None or held.let_go:
                return 0
            waiting = max(0, self.budget - self._kept - self._ahead_bytes)
            if self._ahead and waiting < nbytes and self._quiet_go(dataset):
                waiting = max(0, self.budget - self._kept - self._ahead_bytes)
            gives_way = sum(group.nbytes for group in self._groups.values())
            return (self._free.total + gives_way) // nbytes + (
                waiting // nbytes if self._ahead else max(1, waiting // nbytes)
            )

    def keep_ahead(self, dataset: str, sample: int, data: bytes) -> bool:
        """Hold a sample for its next use alone, if there is some room; whether it waits now."""
        with self._lock:
            held = self._held.get(dataset)
            if held is None or held.let_go or (dataset, sample) in self._ahead:
                return (dataset, sample) in self._ahead
            # (samples are of many sizes, and room was made for the usual one)
            if self._ahead and self._ahead_bytes >= self.budget - self._kept:
                return False
            self._ahead[dataset, sample] = data
            self._ahead_bytes += len(data)
            return True

    def drop_ahead(self, dataset: str, served: NDArray[np.bool_] | None = None) -> None:
        """Let those go that wait for a use which they have had; None: all of the dataset, as another begins."""
        with self._lock:
            self._drop_ahead(dataset, served)
            held = self._held.get(dataset)
            if served is None and held is not None:
                held.used, held.let_go = time.monotonic(), False

    def _drop_ahead(self, dataset: str, served: NDArray[np.bool_] | None = None) -> None:
        for key in [one for one in self._ahead if one[0] == dataset and (served is None or served[one[1]])]:
            self._ahead_bytes -= len(self._ahead.pop(key))

    def _quiet_go(self, wanted: str) -> bool:
        """Let go of what waits for a use by jobs that have not asked for anything lately; whether there are such."""
        now, some = time.monotonic(), False
        for name, held in self._held.items():
            if name != wanted and not held.let_go and held.is_quiet(now):
                self._drop_ahead(name)
                held.let_go = some = True
        return some

    def was_let_go(self, dataset: str) -> bool:
        """Whether others have the room that it had, and nobody has asked for it since."""
        with self._lock:
            held = self._held.get(dataset)
            return held is not None and held.let_go

    def used_at(self, dataset: str) -> float:
        """When somebody has asked for samples last."""
        with self._lock:
            held = self._held.get(dataset)
            return 0.0 if held is None else held.used

    # -- by key --------------------------------------------------------------------------------------------------

    def find(self, group: str, keys: Sequence[bytes]) -> Reading:
        """What there is by some keys; None in the place of one that is not there."""
        out: list[memoryview | bytes | None] = [None] * len(keys)
        reading = []
        with self._lock:
            found = self._groups.get(group)
            if found is not None:
                found.used = time.monotonic()
                for at, key in enumerate(keys):
                    kept = found.kept.get(key)
                    if kept is not None:
                        kept.reading += 1
                        reading.append(kept)
                        out[at] = self._view[kept.start : kept.start + kept.length]
        return Reading(self, reading, out)

    def lengths(self, group: str, keys: Sequence[bytes]) -> list[int]:
        """Bytes of what there is by some keys; -1 in the place of one that is not there."""
        with self._lock:
            found = self._groups.get(group, Group()).kept
            return [found[key].length if key in found else -1 for key in keys]

    def put(self, group: str, key: bytes, data: memoryview) -> bool | None:
        """Hold something by a key, if there is room; None: there is none. False: it was there already."""
        if not len(data):
            return False
        with self._lock:
            found = self._groups.setdefault(group, Group())
            found.used = time.monotonic()
            if key in found.kept:
                return False
            start = self._free.take(len(data))
            if start is None and self._drop_idle(found):
                start = self._free.take(len(data))
            if start is None:
                return None
            self._view[start : start + len(data)] = data
            found.kept[key] = Kept(start, len(data))
            found.nbytes += len(data)
            return True

    def drop(self, group: str, keys: Sequence[bytes]) -> None:
        """Let go of what is there by some keys. (Something else may take its place at once; its memory is free when
        whoever reads it is done.)"""
        with self._lock:
            found = self._groups.get(group, Group())
            for key in keys:
                if key in found.kept:
                    self._drop(found, key)

    def _drop(self, group: Group, key: bytes) -> None:
        kept = group.kept.pop(key)
        group.nbytes -= kept.length
        kept.gone = True
        self._free_if_gone(kept)

    def _free_if_gone(self, kept: Kept) -> None:
        if kept.gone and not kept.reading:
            self._free.free(kept.start, kept.length)

    def _drop_idle(self, wanted: Group) -> bool:
        """Let go of what nobody has asked for lately."""
        now, some = time.monotonic(), False
        for group in self._groups.values():
            if group is not wanted and now - group.used > _QUIET:
                for key in [key for key, kept in group.kept.items() if not kept.reading]:
                    self._drop(group, key)
                    some = True
        return some

    def _give_way(self, nbytes: int) -> int | None:
        """Room for an encoded sample, in the place of others that are there by key: those first that nobody has asked
        for lately, and of these what came first."""
        for group in sorted(self._groups.values(), key=lambda one: one.used):
            # (a few at a time: there may be millions, and one is enough)
            while keys := list(islice((key for key, kept in group.kept.items() if not kept.reading), _FEW)):
                for key in keys:
                    self._drop(group, key)
                    start = self._free.take(nbytes)
                    if start is not None:
                        return start
        return None

    @property
    def by_key(self) -> tuple[int, int]:
        """How much is there by key, and its bytes."""
        with self._lock:
            groups = self._groups.values()
            return sum(len(one.kept) for one in groups), sum(one.nbytes for one in groups)

    # -- all of it -----------------------------------------------------------------------------------------------

    def _make_room(self, wanted: str) -> bool:
        """Let the dataset go that was not used for longest, if there is one that nobody uses."""
        now = time.monotonic()
        idle = [
            (held.used, name)
            for name, held in self._held.items()
            if name != wanted and held.count and held.is_quiet(now)
        ]
        if not idle:
            return False
        self._empty(min(idle)[1])
        return True

    def _empty(self, name: str) -> None:
        held = self._held[name]
        there = np.flatnonzero(held.starts >= 0)
        self._free.free_all(zip(held.starts[there].tolist(), held.lengths[there].tolist(), strict=True))
        held.starts[:] = -1
        held.before += len(held.came)
        held.came = array("q")
        held.count = 0
        held.let_go = True
        self._drop_ahead(name)

    def forget(self) -> str | None:
        """Forget the dataset that was not used for longest, if there is one that nobody uses: which it was."""
        now = time.monotonic()
        with self._lock:
            idle = [(held.used, name) for name, held in self._held.items() if held.is_quiet(now)]
            if not idle:
                return None
            name = min(idle)[1]
            self._empty(name)
            del self._held[name]
            return name

    def describe(self) -> dict[str, tuple[int, int, int]]:
        """Of each dataset: its samples, how many of this node's part are held, and their bytes. (What was its part
        before others came, these read for themselves: counted here, too, it would be there twice.)"""
        found, out = [], {}
        with self._lock:
            node, view = self._here
            for name, held in self._held.items():
                there = np.flatnonzero(held.starts >= 0)
                found.append((name, held, there, held.lengths[there]))
        # (while others go on: of millions of samples it takes a while)
        for name, held, there, lengths in found:
            placement = held.placement = held.placement.follow(view)
            mine = placement.place_of(node)
            if mine >= 0:
                lengths = lengths[placement.nodes_of(there) == mine]
            out[name] = len(held.starts), len(lengths), int(lengths.sum(dtype=np.int64))
        return out

    def close(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._held.clear()
            self._groups.clear()
            self._ahead.clear()
            self._view.release()
            self._memory.close()
