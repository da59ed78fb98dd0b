"""What the fault tests share: killers, and jobs that are processes of their own."""

from __future__ import annotations

import os
import random
import signal
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import headrace as hr
from tests.loader.helpers import wait_until
from tests.prepared import Script

SOAK = int(os.environ.get("HEADRACE_SOAK", "1"))
"""How many times longer than usual random faults go on."""


def recipe(size: int, decode: Any = None, latency: float = 0.0) -> hr.Recipe:
    """Synthetic samples; the target of each is its index."""
    source = hr.synthetic.source(size, shape=(4, 4), classes=size, latency=latency)
    return hr.Recipe(source, decode=decode or hr.synthetic.decode())


@contextmanager
def killing(loader: Any, seed: int, pause: float, sign: int = signal.SIGKILL) -> Iterator[list[int]]:
    """Send a signal to the loader's workers at random moments, from another thread; yields the pids that were hit."""
    over, hit = threading.Event(), []
    chance = random.Random(seed)

    def run() -> None:
        finished = 0
        while not over.wait(chance.random() * 2 * pause):
            session = loader._epochs.session
            # Workers have to get something done in between, on however busy a machine.
            if session is None or session.host.totals.orders < finished + 3:
                continue
            try:
                # Nor may the same sample be hit again and again, or it is taken to be the cause: where processors are
                # few, it is long in the making.
                if any(opened.attempts for opened in list(session.host.coordinator._orders.values())):
                    continue
                victim = chance.choice(session.host.workers).pid
                os.kill(victim, sign)
                hit.append(victim)
                finished = session.host.totals.orders
            except (ProcessLookupError, KeyError, IndexError, RuntimeError):
                continue

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield hit
    finally:
        over.set()
        thread.join()


class Job:
    """A training script in a process (and process group) of its own."""

    def __init__(self, script: str, folder: Path, **environment: str) -> None:
        path = folder / f"job-{time.monotonic_ns()}.py"
        path.write_text(textwrap.dedent(script))
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = Script(path, environment={**os.environ, "TMPDIR": str(self.temporary), **environment})
        self.family: set[int] = set()

    def wait_for(self, line: str) -> None:
        """Read the job's output up to a line."""
        for got in self.process.stdout:
            if got.strip() == line:
                break
        else:
            raise AssertionError(f"the job ended before it said {line!r}: {self.finish()}")
        self.note_family()

    def note_family(self) -> None:
        """Remember which processes belong to the job."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.family |= {process.pid for process in children if _is_worker(process)}

    def finish(self, timeout: float = 60) -> tuple[int, str, str]:
        """Exit status, output and errors, when the job is over."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def left(self) -> list[int]:
        """Processes of the job that are still there."""
        return [pid for pid in self.family if psutil.pid_exists(pid) and not _is_zombie(pid)]

    def assert_nothing_left(self) -> None:
        """No process and no file of the job remains."""
        assert wait_until(lambda: not self.left(), 20), [psutil.Process(pid) for pid in self.left()]
        mine = f"-{self.process.pid}-"
        files = [name for name in os.listdir("/dev/shm") if "headrace" in name and mine in name]
        assert files + list(self.temporary.iterdir()) == []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
