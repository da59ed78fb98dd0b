"""A shift in mid-run: one job is settled on fast storage; then storage slows down, and two more jobs join.

Takes its orders as JSON on the command line and answers with a line of JSON: what all jobs together got in the epochs
before, in the first one after the shift, and in those that follow.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from typing import Any

from benchmarks.common.rounds import take_stdout
from benchmarks.model.throttle import limit_group

from headrace.host import control

PATIENCE_S = 120.0
Batches = list[tuple[float, int]]


class SharingJob:
    """A process, and the batches that it got, epoch by epoch."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.model.shift_job", json.dumps(wanted)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._said: queue.Queue[str | None] = queue.Queue()
        self.epochs: list[Batches] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put(None)

    def wait(self, epochs: int) -> None:
        """Until it is through so many epochs."""
        while len(self.epochs) < epochs:
            if not self._hear():
                raise SystemExit("a job ended too soon")

    def _hear(self) -> bool:
        """One more epoch; False if there is none."""
        line = self._said.get(timeout=PATIENCE_S)
        if line is not None:
            self.epochs.append([(when, images) for when, images in json.loads(line)["batches"]])
        return line is not None

    def end(self) -> None:
        """Tell it to end, and take in all that it says."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while self._hear():
            pass
        self._process.wait(PATIENCE_S)


def rate(jobs: list[SharingJob], begin: float, end: float) -> float:
    """Images per second of all jobs between two times."""
    batches = [batch for job in jobs for epoch in job.epochs for batch in epoch]
    return sum(images for when, images in batches if begin < when <= end) / (end - begin)


def main() -> None:
    """Run."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    out = take_stdout()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HEADRACE_RUNTIME_DIR=home, HEADRACE_HOST_IDLE="1")
        limit_group(wanted["group"], wanted["device"], wanted["before"])
        jobs = [SharingJob(wanted)]
        jobs[0].wait(wanted["settle"])
        limit_group(wanted["group"], wanted["device"], wanted["after"])
        jobs += [SharingJob(wanted) for _ in range(wanted["join"])]
        newcomers = jobs[1:]
        for job in newcomers:
            job.wait(1 + wanted["epochs"])
        status = control.status()
        for job in jobs:
            job.end()
        control.stop()
    settled = jobs[0].epochs[wanted["settle"] - 1]
    joined = max(job.epochs[0][0][0] for job in newcomers)
    adapted = max(job.epochs[0][-1][0] for job in newcomers)
    end = min(job.epochs[wanted["epochs"]][-1][0] for job in newcomers)
    found = {
        "before": sum(images for _, images in settled) / (settled[-1][0] - settled[0][0]),
        "first": rate(jobs, joined, adapted),
        "after": rate(jobs, adapted, end),
        "shelves": [] if status is None else [[s.form, s.samples, s.bytes] for s in status.shelves],
    }
    print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
