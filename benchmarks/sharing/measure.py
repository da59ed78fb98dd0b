"""One measured run of several jobs: starts them, holds them at the barrier, reads the meters.

    python -m benchmarks.sharing.measure '{"contender": ..., "jobs": [...], ...}'

Prints JSON of what happened. Everything below this process counts, also the shared host, which the first job
starts and which outlives it. ``plan`` is made by ``cases``; what the traces mean is read by ``analyse``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.common.contenders import Setup
from benchmarks.common.rounds import take_stdout
from benchmarks.common.tree import adopt_orphans, descendants, tree_cpu
from benchmarks.sharing.contenders import BY_NAME, Entry

Event = tuple[int, dict[str, Any]]


class Gave(RuntimeError):
    """The run was given up; the message says why."""


class Job:
    """A job's process, seen from here."""

    def __init__(self, plan: dict[str, Any], environment: dict[str, str], events: SimpleQueue[Event]) -> None:
        self.number: int = plan["number"]
        self.trace: list[list[float]] = []
        self.done = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sharing.job", json.dumps(plan)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()

    def _listen(self, events: SimpleQueue[Event]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.put((self.number, json.loads(line)))
        events.put((self.number, {"event": "gone"}))

    def say(self, word: str) -> None:
        """A line to the job; one that is gone need not hear it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()

    @property
    def images(self) -> int:
        """Delivered, as far as it said."""
        return int(self.trace[-1][2]) if self.trace else 0


class Measured:
    """The run."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.entry: Entry = BY_NAME[plan["contender"]]
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.epoch = 0.0
        """That every job has reached."""
        self.cpu: list[tuple[float, float]] = []
        self.moved = time.monotonic()
        self.until = self.moved + plan["limit_s"]
        self.runtime = tempfile.mkdtemp(prefix="headrace-bench-")
        self.environment = {"HEADRACE_RUNTIME_DIR": self.runtime}
        extra = {"ports": _free_ports(4)} if self.entry.producer else {}
        shared = {key: plan[key] for key in ("contender", "photos", "data", "batch", "workers", "barrier")}
        self.jobs: dict[int, Job] = {}
        self.producer = self._start({"number": -1, "options": extra, "seed": 1}, shared) if extra else None
        for number, job in enumerate(plan["jobs"]):
            mine = {**job, "number": number, "options": {**job["options"], **extra}}
            self.jobs[number] = self._start(mine, shared)

    def _start(self, plan: dict[str, Any], shared: dict[str, Any]) -> Job:
        return Job({**shared, **plan}, self.environment, self.events)

    def run(self) -> dict[str, Any]:
        """Start, run, read."""
        plan, jobs = self.plan, list(self.jobs.values())
        self.hear_all("loaded", jobs)
        opened = time.monotonic()
        if plan["stagger"]:
            self.start_staggered(jobs, plan["stagger"])
        else:
            for job in jobs:
                job.say("go")
        if plan["barrier"]:
            self.hear_all("ready", jobs)
        began = self.read_cpu()
        if plan["barrier"]:
            for job in jobs:
                job.say("go")
        self.hear_end(jobs)
        ended = self.read_cpu()
        result = {
            "jobs": len(jobs),
            "start_s": began - opened,
            "began": began,
            "ended": ended,
            "cpu": self.cpu,
            "traces": [job.trace for job in jobs],
        }
        if self.producer is not None:
            result["made"] = self.producer.trace
        if self.entry.shares:
            result["host"] = self.ask("status", "--json")
        for job in jobs:
            job.say("end")
        return result

    def start_staggered(self, jobs: list[Job], images: int) -> None:
        """Each job begins when the one before has delivered so many images."""
        for job, before in zip(jobs, [None, *jobs], strict=False):
            while before is not None and before.images < images:
                self.hear()
            job.say("go")

    def hear_end(self, jobs: list[Job]) -> None:
        """Until all are done; jobs without an end are stopped when the others are."""
        told = False
        while not all(job.done for job in jobs):
            self.hear()
            ending = [job for job, plan in zip(jobs, self.plan["jobs"], strict=True) if plan["epochs"]]
            if not told and all(job.done for job in ending):
                told = True
                for job in jobs:
                    job.say("stop")

    def hear_all(self, event: str, jobs: list[Job]) -> None:
        """Until each job has said ``event``."""
        waiting = {job.number for job in jobs}
        while waiting:
            number, said = self.hear()
            if said == event:
                waiting.discard(number)

    def hear(self) -> tuple[int, str]:
        """The next event of any job."""
        # A producer that goes on by itself moves nothing.
        patience = min(self.moved + self.entry.stall_s, self.until) - time.monotonic()
        try:
            number, event = self.events.get(timeout=max(0.0, patience))
        except Empty:
            far = ", ".join(str(job.images) for job in self.jobs.values())
            still = time.monotonic() - self.moved
            raise Gave(f"nothing moved for {still:.0f} s; images delivered by each job: {far}") from None
        kind = event["event"]
        if number >= 0:
            self.moved = time.monotonic()
        if kind == "failed":
            raise Gave(event["reason"])
        if kind == "gone":
            job = self.jobs.get(number, self.producer)
            who = f"job {number}" if number in self.jobs else "the producer"
            raise Gave(f"{who} ended with status {job.process.wait() if job else '?'}")
        if kind == "mark":
            self.jobs[number].trace.append(event["point"])
            epoch = min(job.trace[-1][1] if job.trace else 0 for job in self.jobs.values())
            if epoch > self.epoch:
                self.epoch = epoch
                self.read_cpu()
        elif kind == "made" and self.producer is not None:
            self.producer.trace.append(event["point"])
        elif kind == "done":
            self.jobs[number].done = True
        return number, kind

    def read_cpu(self) -> float:
        """Note what all processes have used by now; returns the moment."""
        now = time.monotonic()
        self.cpu.append((now, tree_cpu(os.getpid())))
        return now

    def ask(self, *words: str) -> Any:
        """Ask the shared host something."""
        command = [sys.executable, "-m", "headrace.cli", *words]
        run = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=30
        )
        return json.loads(run.stdout) if run.returncode == 0 and "--json" in words else run.returncode

    def close(self) -> None:
        """End all that was started."""
        started = {stat.pid for stat in descendants(os.getpid())}
        if self.entry.shares:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.ask("stop")
        for job in [*self.jobs.values(), *([self.producer] if self.producer else [])]:
            assert job.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                # The end of its input ends a job, and the producer.
                job.process.stdin.close()
            try:
                job.process.wait(5)
            except subprocess.TimeoutExpired:
                job.process.kill()
        # Workers of a job that hung would keep this run's pipes open.
        for stat in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stat.pid, signal.SIGKILL)
        # What torch shares by name stays when its owner is killed; the owner's id is in the name.
        for pid in started:
            for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
                path.unlink(missing_ok=True)
        shutil.rmtree(self.runtime, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def prepare(plan: dict[str, Any]) -> dict[str, Any]:
    """Make what the contender reads; which versions it has."""
    entry = BY_NAME[plan["contender"]]
    entry.prepare(
        Setup(Path(plan["photos"]), Path(plan["data"]), batch=plan["batch"], workers=plan["workers"])
    )
    return {"versions": entry.versions()}


def main() -> None:
    """Measure, print."""
    plan = json.loads(sys.argv[1])
    out = take_stdout()
    adopt_orphans()
    if plan.get("prepare"):
        result = prepare(plan)
    else:
        measured = Measured(plan)
        try:
            result = measured.run()
        except Gave as gave:
            measured.close()
            sys.exit(str(gave))
        measured.close()
    with out:
        json.dump(result, out)


if __name__ == "__main__":
    main()
