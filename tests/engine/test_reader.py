"""Reading many samples at once, and where that is not allowed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engine.reader import Reader


class Slow:
    """A source that waits for each sample, and knows how many threads read at the same time."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.reading: set[int] = set()
        self.most = 0

    def read_many(self, indices: NDArray[np.int64]) -> Sequence[bytes]:
        self.reading.add(threading.get_ident())
        self.most = max(self.most, len(self.reading))
        time.sleep(self.latency * len(indices))
        self.reading.discard(threading.get_ident())
        return [str(index).encode() for index in indices]


def read(reader: Reader, times: int = 6) -> None:
    for _ in range(20):
        reader.prepared(100, 1e-2)
    for first in range(0, 64 * times, 64):
        blobs, _ = reader.read(np.arange(first, first + 64))
        assert blobs == [str(index).encode() for index in range(first, first + 64)]


def test_slow_storage_is_read_by_many_threads() -> None:
    source = Slow(0.01)  # so long that whoever starts late still meets the others
    read(Reader(source))  # type: ignore[arg-type]
    assert source.most > 8


@pytest.mark.parametrize("allowed", [0, 1, 5])
def test_no_more_threads_than_may_be_started(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if sum(one.is_alive() for one in begun) >= allowed:
            raise RuntimeError("can't start new thread")
        start(thread)
        begun.append(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    source = Slow(0.002)
    read(Reader(source))  # type: ignore[arg-type]
    assert source.most <= allowed + 1


AT_THE_LIMIT = """
import ctypes, faulthandler, os, resource, sys
import numpy as np
from headrace.engine.reader import Reader
from tests.engine.test_reader import Slow, read

ctypes.CDLL(None).mallopt(-8, 256)  # a heap for each thread, as on a machine of 16 CPUs and more
faulthandler.dump_traceback_later(30, exit=True)
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(float(sys.argv[1]) * (1 << 20)), resource.RLIM_INFINITY))
source = Slow(0.005)
read(Reader(source))
print(source.most, flush=True)
os._exit(0)
"""


def test_threads_do_not_take_the_last_addresses() -> None:
    """One that begins there never says so, and whoever started it waits for ever."""
    rooms = (8.5, 16.5, 24.6, 49, 145, 153, 400, 1200)  # MiB; the second to the sixth were such
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", AT_THE_LIMIT, str(room)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for room in rooms
    ]
    most = []
    for room, job in zip(rooms, jobs, strict=True):
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0 and not err, f"{room} MiB: {err}"
        most.append(int(out))
    assert most[0] == 1 and most[-1] > 4
