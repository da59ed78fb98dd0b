"""The real host and real jobs on two machines, as far as the network can tell: nothing but messages passes.

The host's memory does not, so rows come from the source. Everything else holds: each sample once an epoch, reports,
status, and that nobody dies unnoticed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.channel.channel import wait
from headrace.core.forms import CACHEABLE
from tests.channel.namespaces import Namespace, existing, linked
from tests.loader.helpers import wait_until
from tests.sharing.driver import Job

pytestmark = pytest.mark.slow

PORT = 4711
SIZE = 200
DATA = {"size": SIZE, "augment": "stamp"}


@dataclass
class Machines:
    """The host's, and the jobs'."""

    near: Namespace
    far: Namespace
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)

    def run(self, at: Namespace, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start something of ``tests.channel.far`` there."""
        command = [
            sys.executable,
            "-m",
            "tests.channel.far",
            arguments[0],
            self.near.address,
            str(PORT),
            *arguments[1:],
        ]
        self.processes.append(subprocess.Popen(at.command(*command), start_new_session=True, **options))
        return self.processes[-1]

    def start_host(self) -> subprocess.Popen[Any]:
        """The host, which listens."""
        host = self.run(self.near, "host", stdout=subprocess.PIPE)
        assert host.stdout is not None
        assert wait(host.stdout.fileno(), 60) and host.stdout.readline() == b"listening\n"
        return host

    def start(self, spec: dict[str, Any], environment: dict[str, str], streams: list[int]) -> int:
        """As a nursery: a job on the other machine."""
        keys = ("stdin", "stdout", "stderr")
        options: dict[str, Any] = dict(zip(keys, streams, strict=True))
        return self.run(self.far, "job", json.dumps(spec), env=environment, **options).pid

    def ask(self, at: Namespace, what: str) -> Any:
        """What a command says."""
        asked = self.run(at, what, stdout=subprocess.PIPE)
        said, _ = asked.communicate(timeout=60)
        assert asked.returncode == 0
        return json.loads(said)

    def close(self) -> None:
        """End whatever runs."""
        for process in self.processes:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def machines() -> Iterator[Machines]:
    with linked() as (near, far):
        made = Machines(near, far)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def start(machines: Machines) -> Iterator[Callable[..., Job]]:
    """Starts jobs on the far machine."""
    jobs: list[Job] = []

    def begin(**spec: Any) -> Job:
        spec = {"data": DATA, **spec}
        jobs.append(Job(machines, spec, HEADRACE_HOST_PATIENCE="6"))  # type: ignore[arg-type]
        return jobs[-1]

    yield begin
    for job in jobs:
        job.sweep()


def test_jobs_far_away_draw_whole_epochs_report_and_leave(
    machines: Machines, start: Callable[..., Job]
) -> None:
    host = machines.start_host()
    jobs = [start(epochs=3, hold=True), start(epochs=2, hold=True, loader={"num_workers": 0})]
    for job in jobs:
        job.until("holding")
        job.check()
        assert "alone" not in job.errors and job.stats["client_takeovers"] == 0
        assert job.stats["samples"] == SIZE * job.spec["epochs"]

    def all_back() -> bool:
        """What they might have filled, and could not, is granted to nobody, but for what is drawn of a next epoch:
        of each sample a block in each form."""
        status = machines.ask(machines.far, "status")
        print(status["memory"], status["jobs"])
        ahead = sum(job["delivered"] % SIZE for job in status["jobs"])
        return bool(status["memory"]["granted"] <= len(CACHEABLE) * ahead)

    assert wait_until(all_back, 120)
    status = machines.ask(machines.far, "status")
    # (a job may have had some of its next epoch drawn, ahead of need)
    assert [drawn // SIZE for drawn in sorted(one["delivered"] for one in status["jobs"])] == [2, 3]
    assert status["datasets"][0]["samples"] == SIZE and status["memory"]["entries"] == 0
    for job in jobs:
        job.tell()
        job.end()
    assert wait_until(lambda: machines.ask(machines.far, "status")["jobs"] == [], 30)
    assert machines.ask(machines.far, "stop") is True
    assert host.wait(20) == 0
    assert machines.ask(machines.far, "stop") is False


@pytest.mark.faults
def test_a_host_that_is_killed_far_away_is_noticed_and_the_epoch_is_whole(
    machines: Machines, start: Callable[..., Job]
) -> None:
    host = machines.start_host()
    job = start(epochs=2, pause_at=2)
    job.until("paused")
    host.kill()
    host.wait()
    machines.start_host()
    job.tell()
    job.end()
    job.check()
    assert job.stats["client_takeovers"] == 1
    assert machines.ask(machines.near, "status")["pid"] != host.pid


@pytest.mark.faults
@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_job_that_goes_far_away_is_noticed(machines: Machines, start: Callable[..., Job], how: str) -> None:
    """Also if its whole machine does: then nothing comes, not even the end."""
    machines.start_host()
    job = start(epochs=2, pause_at=2)
    job.until("paused")
    assert len(machines.ask(machines.near, "status")["jobs"]) == 1
    if how == "killed":
        job.kill()
    else:
        machines.far.cut()

    def forgotten() -> bool:
        status = machines.ask(machines.near, "status")
        return status["jobs"] == [] and status["memory"]["granted"] == 0

    assert wait_until(forgotten, 60)


def test_namespaces_are_gone_after_a_test_that_failed() -> None:
    names: list[str] = []
    with pytest.raises(ZeroDivisionError), linked() as both:
        names = [one.name for one in both]
        assert set(names) <= existing()
        left = subprocess.Popen(both[0].command("sleep", "600"))
        raise ZeroDivisionError
    assert not set(names) & existing()
    assert left.wait(20) == -signal.SIGKILL
