"""How fast samples are read from storage, by number of threads.

Samples that are files are first dropped from the system's memory, then read, then read again. Where the first
reading was no slower than the second, they had stayed in memory all the same, and nothing is known of storage.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from headrace.measure.timed_threads import Throughput, run_threads
from headrace.sources.source import Source

THREAD_COUNTS = (1, 2, 4, 8, 16, 32)
"""Reads at once. Workers do no more than the last, each."""
_SLOWER = 1.5
"""What comes from storage takes at least so many times as long as what is in memory."""
_ROUND = 4096
"""Samples that are dropped and read in one go, at most."""


class Reading(msgspec.Struct, frozen=True):
    """What so many threads read that take one sample after the other."""

    threads: int
    samples: float
    """Per second."""
    bytes: float
    """Per second."""
    median: float
    """Seconds that one read takes."""
    p99: float


class Storage(msgspec.Struct, frozen=True):
    """The rates and latencies of a source."""

    cold: list[Reading]
    """From storage, as far as that could be had."""
    warm: list[Reading]
    """The same samples again, at once."""
    cpu: float
    """Seconds of processor time for one read, where storage need not be waited for."""
    dropped: bool | None
    """Whether the system took the advice to drop the files from memory; None where samples are no files."""
    from_memory: bool
    """Files came from memory nevertheless: what is ``cold`` here is not."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that storage gives at most; None if that is not known."""
        return None if self.from_memory else max(reading.bytes for reading in self.cold)


def measure_storage(
    source: Source, order: Sequence[int], seconds: float, tick: Callable[[], None]
) -> Storage | None:
    """Read samples of ``order`` for at most about so many seconds; None where not one could be read.

    ``tick`` is called after each of ``THREAD_COUNTS``. A source whose single reads are slow takes longer.
    """
    cold: list[Reading] = []
    warm: list[Reading] = []
    cpu = 0.0
    dropped: bool | None = None
    for number, threads in enumerate(THREAD_COUNTS):
        if cold and threads > len(order):
            tick()
            continue
        first, again = _Readings(source, threads), _Readings(source, threads)
        until = time.perf_counter() + seconds / len(THREAD_COUNTS)
        for chosen in _rounds(order, number):
            gone = _drop(source, chosen)
            dropped = gone if dropped is None else dropped and gone is not False
            left = max(until - time.perf_counter(), 0.0)
            done = first.read(chosen, left / 2)
            again.read(chosen[:done], max(until - time.perf_counter(), 0.0))
            if done < len(chosen) or time.perf_counter() > until - left / 4:
                break
        if first.sizes and again.sizes:
            cold.append(first.reading())
            warm.append(again.reading())
            cpu = cpu or again.cpu
        tick()
    if not cold:
        return None
    in_memory = dropped is not None and cold[0].median < _SLOWER * warm[0].median
    return Storage(cold, warm, cpu, dropped, in_memory)


def _rounds(order: Sequence[int], number: int) -> Iterator[Sequence[int]]:
    """Samples to read in one round after the other, more and more as there seems to be time for them.

    Each of ``THREAD_COUNTS`` has samples of its own, if there are enough: those that were read before may lie in a
    cache of the disk or of a server, which cannot be told to drop them.
    """
    threads, share = THREAD_COUNTS[number], len(order) // len(THREAD_COUNTS)
    own = order[number * share : (number + 1) * share] if share >= 2 * threads else order
    at, count = 0, 8 * threads
    while at < len(own):
        yield own[at : at + count]
        at, count = at + count, min(2 * count, _ROUND)


class _Readings:
    """Reads of one width."""

    def __init__(self, source: Source, threads: int) -> None:
        self._source, self._threads = source, threads
        self._latencies: list[float] = []
        self.sizes: list[int] = []
        self._seconds = self._cpu = 0.0

    def read(self, indices: Sequence[int], seconds: float) -> int:
        """Read these samples, or as many as there is time for, and at least one per thread; how many."""
        waiting = iter(list(indices))  # taking the next of a list is one step, so threads may do it together

        def read_one() -> int | None:
            index = next(waiting, None)
            if index is None:
                return None
            begun = time.perf_counter()
            try:
                blob = self._source.read_many([index])[0]
            except Exception as error:
                blob = error
            taken = time.perf_counter() - begun
            if not isinstance(blob, BaseException):  # samples that cannot be read are not the question here
                self._latencies.append(taken)
                self.sizes.append(len(blob))
            return 1

        throughput: Throughput = run_threads([read_one] * self._threads, seconds)
        # By the clock: where reads queue up, those that come first would make each thread look fast.
        self._seconds += throughput.seconds
        self._cpu += throughput.cpu * throughput.done
        return throughput.done

    @property
    def cpu(self) -> float:
        return self._cpu / len(self.sizes)

    def reading(self) -> Reading:
        return Reading(
            threads=self._threads,
            samples=len(self.sizes) / self._seconds,
            bytes=sum(self.sizes) / self._seconds,
            median=statistics.median(self._latencies),
            p99=float(np.percentile(self._latencies, 99)),
        )


def _drop(source: Source, indices: Sequence[int]) -> bool | None:
    """Drop samples from the system's memory: whether it took the advice, or None where they are no files."""
    taken: bool | None = None
    for index in indices:
        try:
            descriptor = os.open(source.name(index), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            taken = taken is not False
        except (OSError, AttributeError):
            taken = False
        finally:
            os.close(descriptor)
    return taken
