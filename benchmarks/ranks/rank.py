"""One rank of a run: for each step a batch, a barrier over all ranks, and a training step that sleeps.

A GPU would do the training, so it takes no CPU. Started by ``node``; writes its time stamps to a file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.common.tree import tree_cpu
from benchmarks.ranks.barrier import Barrier
from benchmarks.ranks.contenders import BY_NAME, Contender, Setup
from benchmarks.ranks.storage import Switch


class Loop:
    """The training loop."""

    def __init__(self, wanted: dict[str, Any], contender: Contender, barrier: Barrier) -> None:
        self._contender, self._barrier = contender, barrier
        self._warm, self._step_s = int(wanted["warm"]), float(wanted["step_s"])
        first = wanted["setup"]["rank"] == 0
        self._switch = Switch(wanted["setup"]["switch"]) if first and wanted["changes"] else None
        self._changes = {int(step): change for step, change in wanted["changes"].items()}
        self._node = os.getppid() if first else None
        self.asked: list[float] = []
        self.came: list[float] = []
        self.went: list[float] = []
        self.cpu: list[float] = []
        """CPU seconds of the node's processes, as warming up was over and at the end."""

    def run(self) -> None:
        """All steps."""
        batches = iter(self._contender.batches())
        self.asked.append(time.monotonic())
        for _ in batches:
            self.came.append(time.monotonic())
            self._barrier.wait()
            now = time.monotonic()
            self.went.append(now)
            self._between(len(self.went))
            left = now + self._step_s - time.monotonic()
            if left > 0:
                time.sleep(left)
            self.asked.append(time.monotonic())
        self.asked.pop()
        self._mark()

    def _between(self, steps: int) -> None:
        """What the first rank does besides, while all others train."""
        if steps == self._warm:
            self._mark()
        if self._switch is not None and steps in self._changes:
            self._switch.set(*self._changes[steps])

    def _mark(self) -> None:
        if self._node is not None:
            self.cpu.append(tree_cpu(self._node))


def run_rank(wanted: dict[str, Any]) -> None:
    """All of a rank's life."""
    setup = Setup(**wanted["setup"])
    barrier = Barrier(setup.ranks, tuple(wanted["barrier"]))
    entry = BY_NAME[wanted["contender"]]
    contender: Contender = entry.load()(setup)
    barrier.wait()
    loop = Loop(wanted, contender, barrier)
    loop.run()
    found = {
        "asked": loop.asked,
        "came": loop.came,
        "went": loop.went,
        "cpu": loop.cpu,
        "told": contender.told(),
        "versions": entry.versions(),
    }
    Path(wanted["out"]).write_text(json.dumps(found))
    barrier.wait()
    contender.close()
