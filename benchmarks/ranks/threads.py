"""How many threads prepare at once on the node, seen from outside: the runnable ones of the worker processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.common.tree import descendants

NAME = "headrace-prepar"
"""What the system keeps of a preparing thread's name, where the interpreter tells it names."""
SHARE = 0.02
"""The part of a CPU that looking may take."""


class Seen(NamedTuple):
    """Runnable threads: those that surely prepare, and all."""

    first: int
    all: int


def runnable(pids: Iterable[int]) -> Seen:
    """Threads of these processes that run or want to.

    A worker's first thread prepares, and so do those that bear the name. (Only a recent interpreter tells the system
    the names of its threads. Without names, some of those that are not the first may be reading.)
    """
    sure = total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/stat") as file:
                    name, state = parse(file.read())
                if state == "R":
                    total += 1
                    sure += thread == str(pid) or name.startswith(NAME)
        except OSError:  # it ends just now
            continue
    return Seen(sure, total)


def parse(line: str) -> tuple[str, str]:
    """Name and state of a thread, from its line in /proc."""
    begin, end = line.index("(") + 1, line.rindex(")")
    return line[begin:end], line[end + 2 : end + 3]


class Watch:
    """Looks from time to time, in a thread of its own; ``first`` and ``all`` are the largest so far."""

    def __init__(self, ranks: Iterable[int], every_s: float = 0.05) -> None:
        """``ranks``: the training processes, whose own threads do not count."""
        self.first = self.all = self.looks = 0
        self._ranks, self._every_s = set(ranks), every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        pause, workers, until = 0.0, list[int](), 0.0
        while not self._stop.wait(pause):
            began = time.thread_time()
            if time.monotonic() >= until:
                # Who is there changes seldom, and finding out is most of the work.
                workers = [one.pid for one in descendants(os.getpid()) if one.pid not in self._ranks]
                until = time.monotonic() + 1.0
            seen = runnable(workers)
            self.first, self.all = max(self.first, seen.first), max(self.all, seen.all)
            self.looks += 1
            pause = max(self._every_s, (time.thread_time() - began) / SHARE)
