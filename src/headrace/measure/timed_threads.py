"""The same work in several threads at once, over and over for a while, and how much of it was done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Work = Callable[[], int | None]
"""Does a little and says how much that was (samples, bytes); None: there is nothing left to do."""


class Throughput(NamedTuple):
    """What came of it."""

    done: int
    seconds: float
    """Until the last thread had ended."""
    rate: float
    """Per second: the sum of what each thread did in its own time, up to the end of its last call. How long that
    call ran beyond the end does not matter then; each thread has to do several, though."""
    cpu: float
    """Seconds of processor time for one."""


def thread_counts(most: int) -> list[int]:
    """Numbers of threads to try: powers of two, and ``most``.

    >>> thread_counts(6)
    [1, 2, 4, 6]
    """
    return [*_doubled(most), most]


def _doubled(below: int) -> Iterator[int]:
    width = 1
    while width < below:
        yield width
        width *= 2


def run_threads(works: Sequence[Work], seconds: float) -> Throughput:
    """Call each of ``works`` again and again in a thread of its own; each is called at least once."""
    threads = [_Thread(work) for work in works]
    ready = threading.Barrier(len(threads))
    stop = threading.Event()
    runners = [
        threading.Thread(target=thread.run, args=(ready, stop, seconds), name="headrace-measure", daemon=True)
        for thread in threads
    ]
    try:
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
    except BaseException:
        ready.abort()
        stop.set()
        raise
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    done = sum(thread.done for thread in threads)
    seconds = max(thread.seconds for thread in threads)
    rate = sum(thread.done / thread.seconds for thread in threads if thread.done)
    return Throughput(done, seconds, rate, sum(thread.cpu for thread in threads) / done if done else 0.0)


class _Thread:
    def __init__(self, work: Work) -> None:
        self._work = work
        self.done = 0
        self.seconds = self.cpu = 0.0
        self.error: BaseException | None = None

    def run(self, ready: threading.Barrier, stop: threading.Event, seconds: float) -> None:
        try:
            ready.wait()
            cpu = time.thread_time()
            begun = now = time.perf_counter()
            while not stop.is_set():
                done = self._work()
                if done is None:
                    break
                self.done += done
                now = time.perf_counter()
                if now - begun >= seconds:
                    break
            self.seconds = max(now - begun, 1e-9)
            self.cpu = time.thread_time() - cpu
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self.error = error
            stop.set()
