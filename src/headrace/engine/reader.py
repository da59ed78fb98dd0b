"""Reading from a source, as many samples at once as storage needs to keep up with preparing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from headrace.sources.source import Source

_WIDEST = 32
"""Reads at once, at most, where storage is slow."""


class Reader:
    """Reads the samples of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pool: ThreadPoolExecutor | None = None
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
        width = min(_WIDEST, count, math.ceil(1.5 * self._read_time / max(self._prepare_time, 1e-6)))
        if width <= 1:
            blobs = self._part(indices)
            width = 1
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WIDEST, thread_name_prefix="headrace-fetch")
            parts = np.array_split(indices, width)
            blobs = [blob for part in self._pool.map(self._part, parts) for blob in part]
        each = (time.perf_counter() - begun) * width / count
        self._read_time += 0.3 * (each - self._read_time)
        return blobs, each

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
