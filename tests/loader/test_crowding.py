"""Workers claim no further orders while requests of earlier ones wait for their turn."""

from __future__ import annotations

import mmap
import threading
import time
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.sources.crowding import Crowd, tell
from headrace.sources.simulated import SyntheticSource


class Slow(SyntheticSource):
    """Reads that take a while; ``crowds``: and that say so, as those of a bucket whose line is full."""

    def __init__(self, size: int, *, crowds: bool) -> None:
        super().__init__(size, 60, 60, (4, 5, 3), 0.0, None, size)
        self._crowds, self._lock = crowds, threading.Lock()
        self._crowd: Crowd | None = None
        self.counts = np.frombuffer(mmap.mmap(-1, 16), np.int64)
        """Reads under way, and the sum of these as each began."""

    def read_many(self, indices: Any) -> list[bytes | BaseException]:
        with self._lock:
            self._crowd = self._crowd or Crowd()
            self.counts[0] += 1
            self.counts[1] += self.counts[0]
            self._crowd.is_now(self._crowds)
        time.sleep(0.08)  # (longer than a busy machine takes to start the threads that read)
        with self._lock:
            self.counts[0] -= 1
            room = not self.counts[0] and self._crowd.is_now(False)
        if room:
            tell()
        return super().read_many(indices)


@pytest.mark.parametrize("crowds", [False, True])
def test_a_worker_whose_requests_wait_claims_no_more(crowds: bool) -> None:
    source = Slow(60, crowds=crowds)
    recipe = hr.Recipe(source, decode=hr.synthetic.decode())
    # (batches of one: an order is one read)
    loader = hr.DataLoader(
        recipe, batch_size=1, num_workers=1, prefetch_factor=16, multiprocessing_context="fork"
    )
    with loader:
        assert sum(1 for _ in loader) == 60
    mean = source.counts[1] / 60
    # (a few are claimed until the first one's requests are there)
    assert mean < 4 if crowds else mean > 6
