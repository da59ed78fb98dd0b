"""How fast shared memory is copied: out of the cache, and into it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.cache.arena import Arena
from headrace.core.errors import OutOfSharedMemory
from headrace.core.memory import available_memory
from headrace.measure.timed_threads import Work, run_threads, thread_counts

_TOTAL = 128 << 20
"""Bytes that are copied from and to: more than the caches of most CPUs hold."""
_PIECE = 1 << 20
"""Bytes of one copy."""


class Bandwidth(msgspec.Struct, frozen=True):
    """Bytes per second that so many threads copy."""

    threads: int
    out: float
    """Out of shared memory."""
    into: float


def measure_memory(cpus: int, seconds: float, tick: Callable[[], None]) -> list[Bandwidth]:
    """The bandwidth by number of threads; empty where there is too little memory to measure with.

    ``tick`` is called after each of ``2 * len(thread_counts(cpus))`` measurements.
    """
    total = min(_TOTAL, available_memory() // 16) // _PIECE * _PIECE
    if not total:
        return []
    arena = Arena()
    try:
        try:
            offset, nbytes = arena.allocate(total)
        except OutOfSharedMemory:
            return []
        shared: NDArray[np.uint8] = np.frombuffer(arena.map(offset, nbytes), np.uint8)[:total]
        own = np.empty(total, np.uint8)
        shared[:] = 1  # so that no page has to be found while time is taken
        own[:] = 2
        found = []
        each = seconds / (2 * len(thread_counts(cpus)))
        for threads in thread_counts(cpus):
            starts = [total // threads * number // _PIECE * _PIECE for number in range(threads)]
            out = run_threads([_copying(shared, own, start) for start in starts], each).rate
            tick()
            into = run_threads([_copying(own, shared, start) for start in starts], each).rate
            tick()
            found.append(Bandwidth(threads, out, into))
        return found
    finally:
        arena.close()


def _copying(source: NDArray[np.uint8], target: NDArray[np.uint8], at: int) -> Work:
    def copy() -> int:
        nonlocal at
        np.copyto(target[at : at + _PIECE], source[at : at + _PIECE])  # without the interpreter lock
        at = (at + _PIECE) % len(source)
        return _PIECE

    return copy
