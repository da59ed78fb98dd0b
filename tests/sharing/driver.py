"""Start jobs as processes, follow what they say, and see that nothing is left of them."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.channel.channel import wait
from headrace.host import control

ROOT = Path(__file__).resolve().parents[2]
LONGEST = float(os.environ.get("HEADRACE_TEST_PATIENCE", "60"))
"""Seconds that a job may stay silent; then its stacks are shown and the test fails."""


class Hang(AssertionError):
    """A job said nothing for far too long."""


class Nursery:
    """Where jobs come from: a process that has imported everything and forks."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sharing.jobs", "--nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )

    def start(self, spec: dict[str, Any], environment: dict[str, str], streams: list[int]) -> int:
        """Start a job; its pid."""
        order = {"spec": spec, "environment": environment}
        socket.send_fds(self._sock, [json.dumps(order).encode()], streams)
        return int.from_bytes(self._sock.recv(8), "little")

    def close(self) -> None:
        """No more jobs."""
        self._sock.close()
        self._process.wait(20)


class Job:
    """One training job in a session of its own."""

    def __init__(self, nursery: Nursery, spec: dict[str, Any], **environment: str) -> None:
        self.spec = spec
        self.events: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        everything = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.pid = nursery.start(spec, everything, theirs)
        self._ended = os.pidfd_open(self.pid)
        for fd in theirs:
            os.close(fd)
        self._in = os.fdopen(pipes[0][1], "w")
        self._out, self._err = os.fdopen(pipes[1][0]), os.fdopen(pipes[2][0])
        self.family: set[int] = {self.pid}
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._listen)]
        for reader in self._readers:
            reader.daemon = True
            reader.start()

    def _read(self) -> None:
        for line in self._out:
            self._queue.put(json.loads(line))
        self._queue.put(None)

    def _listen(self) -> None:
        for line in self._err:
            self.said.append(line)

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
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(1.0)
        got = [event["event"] for event in self.events]
        return f"no {name!r} after {LONGEST:g} s; it said {got}\n{self.errors[-9000:]}\n{state_of_host()}"

    def tell(self) -> None:
        """Let a job that waits go on."""
        self._in.write("\n")
        self._in.flush()

    def note_family(self) -> None:
        """Remember which processes belong to the job."""
        self.family |= set(session_of(self.pid))

    def wait(self, timeout: float = LONGEST) -> None:
        """Wait for the end of the job's own process."""
        if not wait(self._ended, timeout):
            raise Hang(self._stacks("its end"))

    def kill(self) -> None:
        """End the job's own process at once; its workers have to notice."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def end(self) -> dict[str, Any]:
        """Wait for the job's regular end; its last numbers."""
        self.until("end")
        self.wait()
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
        # (two samples may well have the same stamp by chance: over many epochs there are many pairs of them)
        seen: dict[tuple[int, str], list[int]] = {}
        for event in found:
            samples = [sample for batch in event["batches"] for sample in batch]
            for sample, stamp in zip(samples, event["stamps"], strict=False):
                seen.setdefault((sample, stamp), []).append(event["number"])
        twice = [(sample, epochs) for (sample, _), epochs in seen.items() if len(epochs) > 1]
        assert not twice, f"augmented instances served twice to one job, as (sample, epochs): {twice[:10]}"

    def sweep(self) -> None:
        """End whatever of the job still runs, for a test that failed, and let its descriptors go."""
        if self._ended < 0:
            return
        for pid in session_of(self.pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):  # a line that nobody read
            self._in.close()
        for reader in self._readers:
            reader.join(10)
        self._out.close()
        self._err.close()
        os.close(self._ended)
        self._ended = -1


def session_of(leader: int) -> list[int]:
    """Processes that run in the session of a job: the job itself and its workers. Zombies do not run."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
                state, _, _, session = file.read().rsplit(")", 1)[1].split()[:4]
                if int(session) == leader and state not in "ZX":
                    found.append(int(name))
    return found


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
