"""What a node server reads from storage: each sample once, whoever asks for it and however many do at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import numpy as np
from numpy.typing import NDArray

from headrace.cluster.memory import PoolMemory
from headrace.sources.source import Source

_READS = 32
"""Threads that read what somebody waits for."""
_READS_AHEAD = 4
"""And that read before anybody does. (What jobs are given as soon as it is there is read by as many as what they ask
for: while they wait for it, they ask for nothing else.)"""
_PART = 4
"""Samples that one of them reads at a time."""
_PIECE = 32
"""Samples that are looked at together, ahead of need."""
_PATIENCE = 60.0
"""Seconds for storage to give them."""
_SLACK = 64
"""Samples by which who reads may be out of order."""
_PAUSE = 0.02
"""Seconds after which it is looked again whether there is room."""
_SELDOM = 20
"""Whoever looks for samples that were used rests for so many times as long as that took."""
_BLOCKS = 4096
"""In how many parts of an order it is looked how far somebody is."""
_CERTAIN = 3.0
"""By so many standard deviations, about, more has to be asked for at the front of an order than chance would do."""

Blobs = dict[int, bytes | memoryview]


class Dataset:
    """A dataset on a node."""

    def __init__(self, name: str, source: Source, label: str, limit: int = 0) -> None:
        """``limit``: bytes of the largest sample that the source reads, where that is for jobs to say."""
        self.name, self.source, self.label, self.limit = name, source, label, limit
        self.samples = len(source)
        self.lock = threading.Lock()
        self.pending: dict[int, Future[Blobs]] = {}
        """Samples that are being read."""
        self.stored: tuple[int, int, int, float] = (0, 0, 0, 0.0)
        """How often storage was read, and the samples, bytes and seconds of the last time."""
        self.asked: NDArray[np.bool_] = np.zeros(self.samples, np.bool_)
        """Those that somebody has asked for in the epoch that is read ahead: to read them ahead would be late."""


class Fetcher:
    """Reads samples of datasets, and has those held for which there is room."""

    def __init__(self, memory: PoolMemory) -> None:
        self._memory = memory
        self._threads = ThreadPoolExecutor(_READS, "headrace-node-read")
        self._ahead = ThreadPoolExecutor(_READS_AHEAD, "headrace-node-ahead")
        self._shared = ThreadPoolExecutor(_READS, "headrace-node-shared")
        self._counting = threading.Lock()
        self.fetched, self.fetched_bytes = 0, 0

    def fetch(
        self,
        dataset: Dataset,
        samples: Sequence[int],
        seconds: float,
        *,
        ahead: bool = False,
        shared: bool = False,
    ) -> Blobs:
        """Samples that are not held; those are missing that storage does not give, or not in time. ``ahead``: nobody
        has asked for them; ``shared``: and yet jobs wait for them, as for any others."""
        deadline = time.monotonic() + seconds
        threads = self._threads if not ahead else self._shared if shared else self._ahead
        futures: set[Future[Blobs]] = set()
        with dataset.lock:
            # (whether it is ahead of need and whether it is on its way are one question: between the two answers
            # somebody could have got it)
            if ahead:
                samples = [sample for sample in samples if not dataset.asked[sample]]
            others = [sample for sample in dict.fromkeys(samples) if sample not in dataset.pending]
            futures.update(dataset.pending[sample] for sample in samples if sample in dataset.pending)
            # (some may have come in since it was looked)
            mine = self._memory.missing(dataset.name, np.array(others, np.int64)).tolist()
            # (no more on their way than are read at a time: who asks for one of them had better be served soon)
            each = 1 if shared else _PART
            for first in range(0, len(mine), each):
                part = mine[first : first + each]
                future: Future[Blobs] = Future()
                dataset.pending.update(dict.fromkeys(part, future))
                futures.add(future)
                threads.submit(self._read, dataset, part, future, ahead)
            out = {} if ahead else self._come_in(dataset, set(others).difference(mine))
            if not ahead:
                dataset.asked[list(samples)] = True
        wanted = set(samples)
        done, _ = wait_for(futures, max(0.0, deadline - time.monotonic()))
        for future in done:
            out.update((sample, blob) for sample, blob in future.result().items() if sample in wanted)
        return out

    def _come_in(self, dataset: Dataset, samples: set[int]) -> Blobs:
        """Samples that are held after all."""
        if not samples:
            return {}
        numbers = sorted(samples)
        reading = self._memory.read(dataset.name, numbers)
        found: Blobs = {
            one: bytes(blob) for one, blob in zip(numbers, reading.samples, strict=True) if blob is not None
        }
        reading.done()
        return found

    def _read(self, dataset: Dataset, part: list[int], future: Future[Blobs], ahead: bool) -> None:
        found: Blobs = {}
        try:
            begun = time.monotonic()
            # (what is wrong with a sample, or with storage, those find out and say who wanted it)
            blobs = dataset.source.read_many(part)
            took = time.monotonic() - begun
            for sample, blob in zip(part, blobs, strict=True):
                if not isinstance(blob, BaseException):
                    found[sample] = blob
                    # (before it stops being on its way: else somebody would read it again)
                    if not self._memory.keep(dataset.name, sample, blob) and ahead:
                        self._memory.keep_ahead(dataset.name, sample, bytes(blob))
            dataset.stored = dataset.stored[0] + 1, len(found), sum(map(len, found.values())), took
        except Exception:
            pass
        finally:
            with self._counting:
                self.fetched += len(found)
                self.fetched_bytes += sum(map(len, found.values()))
            with dataset.lock:
                for sample in part:
                    dataset.pending.pop(sample, None)
            future.set_result(found)

    def close(self) -> None:
        """Read no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._ahead.shutdown(wait=False, cancel_futures=True)
        self._shared.shutdown(wait=False, cancel_futures=True)


def front_of(asked: NDArray[np.bool_]) -> int:
    """How far somebody is in an order, of whose samples it is known which were asked for; 0: that does not show.

    Not all before that place need have been asked for (of some, a job has copies of its own), and some behind it may
    have been, by another job with another order. What shows is that it is more before it than behind it.
    """
    size = -(-len(asked) // _BLOCKS) or 1
    counts = np.add.reduceat(asked, np.arange(0, len(asked), size), dtype=np.int64) if len(asked) else None
    if counts is None or not counts.any():
        return 0
    total = int(counts.sum())
    ends = np.minimum(size * np.arange(1, len(counts) + 1), len(asked))
    more = np.cumsum(counts) - total / len(asked) * ends
    place = int(more.argmax())
    # (of the block that they are in, they may have asked for the first sample alone)
    return int(ends[place]) - size + 1 if more[place] > _CERTAIN * total**0.5 else 0


class Preload:
    """Reads a node's part of a dataset in the order in which it will be used."""

    def __init__(
        self,
        fetcher: Fetcher,
        memory: PoolMemory,
        dataset: Dataset,
        order: Callable[[], NDArray[np.int64]],
        *,
        shared: bool = False,
    ) -> None:
        """``order``: the samples that are this node's, by when they are used. ``shared``: jobs wait for them."""
        self._fetcher, self._memory, self._dataset, self._order = fetcher, memory, dataset, order
        self._shared = shared
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-preload", daemon=True)
        self._thread.start()

    @property
    def reads(self) -> bool:
        """Whether there is more to read."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def stop(self) -> None:
        """No more of it is needed."""
        self._stopped.set()

    def _used(self, order: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Samples that need not wait any more. Some were given to somebody while they were on their way here. Others
        went to who was ahead, before this epoch was said to begin: they lie behind what is asked for by now."""
        asked = self._dataset.asked
        used: NDArray[np.bool_] = asked.copy()
        used[order[: max(0, front_of(asked[order]) - _SLACK)]] = True
        return used

    def _run(self) -> None:
        name, order, at = self._dataset.name, self._order(), 0
        count = nbytes = 0
        look = seen = 0.0
        while at < len(order) and not self._stopped.is_set():
            # No more is read than there is room for: what nobody finds would be read again.
            size = -(-nbytes // count) if count else 0
            room = min(_PIECE, self._memory.room_for(name, max(1, size)))
            room = room if size else min(room, 1)
            if not room:
                begun, last = time.monotonic(), self._memory.used_at(name)
                if begun >= look and last > seen:
                    seen = last
                    self._memory.drop_ahead(name, self._used(order))
                    # (of millions of samples that takes a while, in which nobody else is served)
                    look = time.monotonic() + _SELDOM * (time.monotonic() - begun)
                self._stopped.wait(_PAUSE)
                continue
            piece = order[at : at + room]
            at += len(piece)
            piece = self._memory.missing(name, piece)
            if not len(piece):
                continue
            found = self._fetcher.fetch(
                self._dataset, piece.tolist(), _PATIENCE, ahead=True, shared=self._shared
            )
            count, nbytes = count + len(found), nbytes + sum(map(len, found.values()))
