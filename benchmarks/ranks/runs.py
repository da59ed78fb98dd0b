"""Measured runs of this folder's benchmarks: each a process of its own, which starts the ranks."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.bench import DATA, REPOSITORY
from benchmarks.common.progress import say
from benchmarks.common.rounds import DISTURBED, Run, RunFailed, interleave, run_process
from benchmarks.common.tree import wait_until_idle
from benchmarks.ranks.contenders import BY_NAME
from benchmarks.ranks.pictures import make_pictures
from benchmarks.ranks.storage import USUAL_S

Runs = dict[str, list[Run | None]]
LIMIT_S = 600
WARM = 20
"""Steps that do not count."""
HEADROOM = 1.25
"""What the CPUs could prepare over what the ranks take, with storage that is as slow as it usually is."""
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HEADRACE_HOST_IDLE": "1",
    "HEADRACE_RECORD": "0",
}
"""What all processes find in their environment."""
_CALIBRATED = 60
"""Steps, to find out what an image costs."""


class Node:
    """The machine with its pictures: runs ranks on it, one set-up after the other."""

    def __init__(self, patience_s: float, photos: Path | None, batch: int | None = None) -> None:
        self.cpus = len(os.sched_getaffinity(0))
        self.batch = batch or max(32, min(128, 8 * self.cpus))
        """Of a rank. With many CPUs steps of small batches would be too short for their parts to be told apart."""
        self.missing: dict[str, str] = {}
        self._patience_s, self._photos = patience_s, photos
        self.made_of, self._pictures = "", dict[str, Path]()

    def prepare(self) -> None:
        """Have the pictures made, and read once."""
        self.made_of, self._pictures = make_pictures(DATA, self._photos)

    def run(self, contender: str, *, pictures: str = "small", heavy: bool = False, **wanted: Any) -> Run:
        """One run; see ``node.run`` for what may be wanted. Raises ``RunFailed``."""
        peers = BY_NAME[contender].environment == "peers"
        python = str(REPOSITORY / ".venv-peers" / "bin" / "python") if peers else sys.executable
        paths = [str(REPOSITORY), *([] if peers else [str(REPOSITORY / "src")])]
        orders = {
            "contender": contender,
            "pictures": str(self._pictures[pictures]),
            "batch": self.batch,
            "warm": WARM,
            **({"heavy": str(self._pictures["heavy"])} if heavy else {}),
            **wanted,
        }
        wait_until_idle(self._patience_s)
        command = [python, "-m", "benchmarks.ranks.node", json.dumps(orders)]
        return run_process(command, REPOSITORY, {"PYTHONPATH": os.pathsep.join(paths), **VARIABLES}, LIMIT_S)

    def calibrate(self, ranks: int, **wanted: Any) -> dict[str, float]:
        """How long a training step is to be: what headrace costs by CPU seconds, and some more.

        Storage takes its usual time, and never longer. (Were it fast, reads would cost far less: one that a thread
        waits for takes three to five times the CPU time of one that it does not wait for.)
        """
        found = self.run(
            "headrace-fixed", scenario=str(USUAL_S), ranks=ranks, steps=_CALIBRATED, step_s=0.0, **wanted
        )
        cost = found["cpu_s_per_1000"] / 1000
        return {"cpu_s": cost, "step_s": HEADROOM * cost * ranks * self.batch / self.cpus}

    def rounds(
        self, case: str, names: Sequence[str], repeats: int, measure: Callable[[str, int], Run]
    ) -> Runs:
        """Measure what is named, interleaved; what fails is missing."""
        total, begun, done = len(names) * repeats, time.monotonic(), 0

        def one(name: str, number: int) -> Run | str:
            nonlocal done
            done += 1
            place = f"[{done}/{total}, {time.monotonic() - begun:.0f} s] {case}, {name}"
            try:
                found = measure(name, number)
            except RunFailed as error:
                say(f"{place}: failed: {error}")
                return str(error)
            others = found["others_cpu"]
            beside = f"  (others keep {others:.1f} CPUs busy)" if others > DISTURBED else ""
            say(f"{place}: {tell(found)}{beside}")
            return found

        runs, failed = interleave(names, repeats, one)
        self.missing |= {f"{case}, {name}": reason for name, reason in failed.items()}
        return runs


def tell(run: Run) -> str:
    """A run in a few words."""
    if "phases" in run:
        return "images/s " + ", ".join(f"{rate:,.0f}" for rate in run["phases"])
    steps = f"steps of {run['p50_ms']:.0f} to {run['p99_ms']:.0f} ms"
    late = f", {100 * run['imbalanced']:.0f} % imbalanced" if "imbalanced" in run else ""
    return f"{run['images_s']:,.0f} images/s, {steps}{late}, {run['cpu_s_per_1000']:.2f} CPU-s per 1000"


def calm(runs: Runs) -> tuple[Runs, str]:
    """The rounds that had the machine to themselves, or all if none had; and what has to be said about that."""
    loads = [
        max((run["others_cpu"] for run in row if run is not None), default=0.0)
        for row in zip(*runs.values(), strict=True)
    ]
    quiet = [at for at, load in enumerate(loads) if load <= DISTURBED]
    if not quiet:
        return runs, f"others kept up to {max(loads):.1f} CPUs busy" if loads else ""
    note = "" if len(quiet) == len(loads) else f"{len(quiet)} of {len(loads)} rounds were undisturbed"
    return {name: [row[at] for at in quiet] for name, row in runs.items()}, note
