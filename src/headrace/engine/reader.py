"""Reading from a source, as many samples at once as storage needs to keep up with preparing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from headrace.core.memory import thread_room
from headrace.sources.source import Source

_WIDEST = 32
"""Reads at once, at most, where storage is slow."""


class Reader:
    """Reads the samples of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pool: ThreadPoolExecutor | None = None
        self._widest = 0
        """Reads at once, at most; 0: no two were needed yet."""
        self._read_time = 0.0
        self._prepare_time = 1e-3

    def prepared(self, rows: int, seconds: float) -> None:
        """Take note of how long preparing takes: reading need not be faster."""
        if rows:
            self._prepare_time += 0.3 * (seconds / rows - self._prepare_time)

    def read(self, indices: NDArray[np.int64]) -> tuple[Sequence[bytes | BaseException], float]:
        """The bytes of each sample, or why there are none; and the seconds that one of them took."""
        count = len(indices)
        begun = time.perf_counter()
        need = math.ceil(1.5 * self._read_time / max(self._prepare_time, 1e-6))
        if need > 1 and not self._widest:
            self._widest = max(1, thread_room(_WIDEST))
        width = max(1, min(self._widest, count, need))
        blobs = self._part(indices) if width == 1 else self._at_once(np.array_split(indices, width))
        each = (time.perf_counter() - begun) * max(1, min(width, self._widest)) / count
        self._read_time += 0.3 * (each - self._read_time)
        return blobs, each

    def _at_once(self, parts: list[NDArray[np.int64]]) -> list[bytes | BaseException]:
        """All parts, each by a thread; by as many as may be started where threads or addresses are limited."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._widest, thread_name_prefix="headrace-fetch")
        begun: list[Future[list[bytes | BaseException]]] = []
        try:
            for part in parts:
                begun.append(self._pool.submit(self._part, part))  # noqa: PERF401  what came before an error counts
        except RuntimeError:  # no thread can be started; from now on with those that could
            self._widest = max(1, len(begun))
            self._pool.shutdown(wait=False)
            self._pool = None
        rest = [self._part(part) for part in parts[len(begun) :]]
        return [blob for part in (*(future.result() for future in begun), *rest) for blob in part]

    def _part(self, indices: NDArray[np.int64]) -> list[bytes | BaseException]:
        """What the source gives. One that raises is asked again for each sample, to find the one at fault."""
        try:
            blobs = list(self._source.read_many(indices))
            if len(blobs) != len(indices):
                raise ValueError(f"the source was asked for {len(indices)} samples and gave {len(blobs)}")
            return blobs
        except Exception as error:
            if len(indices) == 1:
                return [error]
        return [blob for at in range(len(indices)) for blob in self._part(indices[at : at + 1])]
