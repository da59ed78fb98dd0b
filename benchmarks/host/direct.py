"""What the shared host deals out: some jobs without workers ask for as much as they get. A measured process.

    python -m benchmarks.host.direct '{"jobs": 4, "batch": 64, ...}'

Prints JSON: batches/s over all jobs, and CPU milliseconds of the host and of the jobs for each batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.common.rounds import take_stdout


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, to the nanosecond where the kernel counts so."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


class Jobs:
    """Some jobs, each a process that says lines of JSON and goes on when it is told to, and their shared host."""

    module = ""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.runtime = tempfile.mkdtemp(prefix="headrace-bench-")
        os.environ["HEADRACE_RUNTIME_DIR"] = self.runtime
        self.jobs = [
            subprocess.Popen(
                [sys.executable, "-m", self.module, json.dumps({**wanted, "number": number})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(wanted["jobs"])
        ]

    def hear(self) -> list[dict[str, Any]]:
        """What each job says next."""
        said = []
        for job in self.jobs:
            assert job.stdout is not None
            line = job.stdout.readline()
            if not line:
                raise SystemExit(f"a job ended with status {job.wait()}")
            said.append(json.loads(line))
        return said

    def go(self) -> None:
        """Let all jobs go on."""
        for job in self.jobs:
            assert job.stdin is not None
            job.stdin.write("go\n")
            job.stdin.flush()

    @staticmethod
    def host_pid() -> int:
        """The shared host's process."""
        from headrace.host.control import status

        found = status(30)
        assert found is not None
        return found.pid

    def close(self) -> None:
        """End all that was started."""
        from headrace.core.errors import HeadraceError
        from headrace.host.control import stop

        for job in self.jobs:
            assert job.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                job.stdin.close()
        for job in self.jobs:
            try:
                job.wait(10)
            except subprocess.TimeoutExpired:
                job.kill()
        with contextlib.suppress(HeadraceError):
            stop()
        shutil.rmtree(self.runtime, ignore_errors=True)


class Direct(Jobs):
    """The run."""

    module = "benchmarks.host.client"

    def run(self) -> dict[str, Any]:
        """Fill, settle, measure."""
        self.hear()
        pid = self.host_pid()
        before = cpu_of(pid)
        self.go()
        first = self.hear()
        filled = cpu_of(pid) - before
        self.go()
        self.hear()
        self.go()
        before = cpu_of(pid)
        jobs = self.hear()
        host = cpu_of(pid) - before
        batches = sum(job["batches"] for job in jobs)
        seconds = max(job["seconds"] for job in jobs)
        return {
            "jobs": len(jobs),
            "batches_s": batches / seconds,
            "host_ms": 1e3 * host / batches,
            "host_busy": host / seconds,
            "job_ms": 1e3 * sum(job["cpu_s"] for job in jobs) / batches,
            "first_host_ms": 1e3 * filled / sum(job["first"] for job in first),
        }


def main() -> None:
    """Measure, print."""
    out = take_stdout()
    direct = Direct(json.loads(sys.argv[1]))
    try:
        found = direct.run()
    finally:
        direct.close()
    with out:
        json.dump(found, out)


if __name__ == "__main__":
    main()
