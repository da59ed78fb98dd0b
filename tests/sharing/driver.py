"""Start jobs as processes, follow what they say, and see that nothing is left of them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from headrace.host import control

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 60.0
"""Seconds that a job may stay silent; then its stacks are shown and the test fails."""


class Hang(AssertionError):
    """A job said nothing for far too long."""


class Job:
    """One training job in a process group of its own."""

    def __init__(self, spec: dict[str, Any], **environment: str) -> None:
        self.spec = spec
        self.events: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sharing.jobs", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.family: set[int] = {self.process.pid}
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._listen)]
        for reader in self._readers:
            reader.daemon = True
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(json.loads(line))
        self._queue.put(None)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said += self.process.stderr  # grows as lines come

    @property
    def errors(self) -> str:
        """What the job wrote to its standard error."""
        return "".join(self.said)

    def until(self, name: str, timeout: float = LONGEST) -> dict[str, Any]:
        """The next event of a name."""
        while True:
            try:
                event = self._queue.get(timeout=timeout)
            except queue.Empty:
                raise Hang(self._stacks(name)) from None
            if event is None:
                self._readers[1].join(5)
                raise AssertionError(f"the job ended before it said {name!r}:\n{self.errors[-6000:]}")
            self.events.append(event)
            self.note_family()
            if event["event"] == name:
                return event

    def _stacks(self, name: str) -> str:
        self.note_family()
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(1.0)
        got = [event["event"] for event in self.events]
        return f"no {name!r} after {LONGEST:g} s; it said {got}\n{self.errors[-9000:]}\n{state_of_host()}"

    def tell(self) -> None:
        """Let a job that waits go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def note_family(self) -> None:
        """Remember which processes belong to the job."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.family |= {child.pid for child in children}

    def kill(self) -> None:
        """End the job's own process at once; its workers have to notice."""
        self.note_family()
        self.process.kill()
        self.process.wait(20)

    def end(self) -> dict[str, Any]:
        """Wait for the job's regular end; its last numbers."""
        self.until("end")
        assert self.process.wait(LONGEST) == 0, self.errors
        self._readers[1].join(5)
        return self.stats

    @property
    def stats(self) -> dict[str, Any]:
        """The numbers of the loader at the end."""
        return next(event for event in reversed(self.events) if event["event"] == "stats")

    def epochs(self, name: str = "epoch") -> list[dict[str, Any]]:
        """All epochs so far."""
        return [event for event in self.events if event["event"] == name]

    def check(self, name: str = "epoch") -> None:
        """Every epoch has every sample once, in batches of the right size, with the right content, and no augmented
        instance came twice."""
        data = self.spec["data"]
        start, size = data.get("start", 0), data["size"]
        found = self.epochs(name)
        assert found
        for event in found:
            assert_exact(event["batches"], range(start, start + size), f"{name} {event['number']}")
            assert event["bad"] == 0, f"{event['bad']} rows have the content of another sample"
            sizes = {len(batch) for batch in event["batches"][:-1]}
            assert sizes <= {self.spec.get("loader", {}).get("batch_size", 16)}
        seen: dict[str, list[tuple[int, int]]] = {}
        for event in found:
            samples = [sample for batch in event["batches"] for sample in batch]
            for sample, stamp in zip(samples, event["stamps"], strict=False):
                seen.setdefault(stamp, []).append((event["number"], sample))
        twice = [where for where in seen.values() if len(where) > 1]
        assert not twice, f"augmented instances served twice to one job, as (epoch, sample): {twice[:10]}"

    def sweep(self) -> None:
        """End whatever of the job still runs, for a test that failed."""
        self.note_family()
        for pid in self.family:
            for sign in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, sign)
                except OSError:
                    break
        self.process.wait(20)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass


def assert_exact(batches: list[list[int]], expected: Any, what: str = "epoch") -> None:
    """Every expected sample once and no other."""
    got = Counter(sample for batch in batches for sample in batch)
    missing = sorted(set(expected) - set(got))
    more = {sample: times for sample, times in got.items() if times > 1 or sample not in expected}
    assert not missing and not more, f"{what}: missing {missing[:20]} ({len(missing)}), too often {more}"


def state_of_host() -> str:
    """The host's status, for a message."""
    try:
        return f"host: {control.status(2.0)}"
    except Exception as error:
        return f"host: {error!r}"
