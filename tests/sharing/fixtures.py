"""A private host for each test, and a look at what is left when the test is over."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.host import control
from headrace.host.runtime import LOCK, LOG, SOCKET
from tests.loader.helpers import wait_until
from tests.sharing.driver import Job, Nursery, session_of

Start = Callable[..., Job]


def processes_of(home: Path) -> list[int]:
    """Every host that was started with this runtime directory, and what it started."""
    mark = str(home)
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error):
            if process.environ().get("HEADRACE_RUNTIME_DIR") == mark:
                found.append(process.pid)
    return found


def _ended(home: Path) -> bool:
    """Stop the host. (One of two that were started at once may begin late, when the other one has been stopped.)"""
    with suppress(Exception):
        control.stop()
    return not processes_of(home)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The runtime directory of a test's host. Nothing but the host's three files may be left of the test."""
    directory = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    home = directory / "run"
    shared = set(os.listdir("/dev/shm"))
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(home))
    monkeypatch.delenv("HEADRACE_SHARE", raising=False)
    try:
        yield home
        assert wait_until(lambda: _ended(home), 20), [
            psutil.Process(pid).cmdline() for pid in processes_of(home)
        ]

        def left() -> set[str]:
            return {name for name in set(os.listdir("/dev/shm")) - shared if "headrace" in name}

        assert wait_until(lambda: not left(), 20), (
            left()
        )  # (other tests may run, and have files there for a moment)
        if home.is_dir():
            assert {name for name in os.listdir(home) if not name.startswith("roster-")} <= {
                LOCK,
                LOG,
                SOCKET,
            }
            log = home / LOG
            assert not log.exists() or "Traceback" not in log.read_text(), log.read_text()
    finally:
        for pid in processes_of(home):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


def keep_nursery() -> Iterator[Nursery]:
    """Where jobs come from. It ends with its package or module: other tests count the processes that are there."""
    made = Nursery()
    yield made
    made.close()


nursery = pytest.fixture(scope="package")(keep_nursery)


@pytest.fixture
def start(place: Path, nursery: Nursery) -> Iterator[Start]:
    """Starts a job: ``start(data={...}, loader={...}, ...)``. None may leave a process behind."""
    jobs: list[Job] = []

    def run(environment: dict[str, str] | None = None, **spec: Any) -> Job:
        jobs.append(Job(nursery, spec, **(environment or {})))
        return jobs[-1]

    def left() -> list[int]:
        return [pid for job in jobs for pid in session_of(job.pid)]

    try:
        yield run
        assert wait_until(lambda: not left(), 10), f"still running: {left()}"
    finally:
        for job in jobs:
            job.sweep()
