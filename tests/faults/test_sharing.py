"""Hosts, workers and jobs that share are killed: whoever is left gets every sample once per epoch, and no memory,
file or process stays behind."""

# ruff: noqa: F811

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import HeadraceError
from headrace.host import control
from headrace.host.runtime import LOG
from tests.faults.helpers import SOAK
from tests.loader.helpers import is_dead, kill, wait_until
from tests.sharing.driver import Job, assert_exact, state_of_host
from tests.sharing.fixtures import Start, keep_nursery, place, processes_of, start  # noqa: F401

PATIENCE = 10
"""Seconds after which jobs give up a host that was stopped. The host itself goes when it has stood still for half as
long, which it may by no fault of its own where a hypervisor runs others."""
SAMPLINGS = ["auto", "opportunistic", "dependent", "uniform"]
DATA = {"size": 300, "augment": "stamp", "latency": 0.0005}

nursery = pytest.fixture(scope="module", name="nursery")(keep_nursery)


@pytest.fixture(autouse=True)
def _no_processes_left() -> None:
    """``start`` and ``place`` see to that here; the process that jobs are forked from stays."""


def host_pid() -> int:
    """The host that lives now; 0 for none."""
    with suppress(HeadraceError, OSError):
        status = control.status(2.0)
        return status.pid if status is not None else 0
    return 0


def log_of_host() -> str:
    """Why there is none."""
    with suppress(OSError):
        return (Path(os.environ["HEADRACE_RUNTIME_DIR"]) / LOG).read_text()
    return "no log"


def kill_host(sign: int = signal.SIGKILL) -> int:
    """End the host, as soon as there is one."""
    assert wait_until(lambda: host_pid() > 0, 20), log_of_host()
    pid = host_pid()
    with suppress(ProcessLookupError):
        os.kill(pid, sign)
    assert sign != signal.SIGKILL or wait_until(lambda: is_dead(pid))
    return pid


def finish(*jobs: Job) -> None:
    """All jobs come to their end, and every epoch is exact."""
    for job in jobs:
        job.end()
    for job in jobs:
        job.check()


def only_the_cache_is_left() -> bool:
    """Whether no job is known and no block of memory is held but by cached extents."""
    status = control.status()
    return status is not None and not status.jobs and not status.memory.granted


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_host_is_killed_in_the_middle_of_an_epoch(start: Start, sampling: str) -> None:
    spec = {"data": DATA, "loader": {"sampling": sampling}, "epochs": 3, "act_in": 1, "pause_at": 5}
    jobs = [start(**spec) for _ in range(2)]
    for job in jobs:
        job.until("paused")
    before = kill_host()
    for job in jobs:
        job.tell()
    finish(*jobs)
    assert all(job.stats["client_takeovers"] == 1 for job in jobs)
    assert host_pid() not in (0, before)


@pytest.mark.slow
def test_the_host_is_killed_again_and_again(start: Start) -> None:
    jobs = [start(data=DATA, epochs=1000, endless=True, slow=0.005) for _ in range(2)]
    for job in jobs:
        job.until("epoch")
    for kills in range(1, 5):
        kill_host()
        for job in jobs:
            while job.until("epoch")["takeovers"] < kills:
                pass  # (of before, or of before the job has noticed)
    for job in jobs:
        job.tell()
    finish(*jobs)
    assert all(job.stats["client_takeovers"] >= 4 for job in jobs)


def test_takeovers_are_counted(start: Start) -> None:
    job = start(data=DATA, pause_at=5, epochs=2)
    job.until("paused")
    kill_host()
    job.tell()
    finish(job)
    assert job.stats["takeovers"] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_the_host_is_asked_to_end_in_the_middle_of_an_epoch(start: Start, workers: int) -> None:
    job = start(data=DATA, loader={"num_workers": workers}, pause_at=5, epochs=2)
    job.until("paused")
    before = host_pid()
    assert control.stop()
    job.tell()
    finish(job)
    assert host_pid() not in (0, before)


def test_the_host_is_stopped_for_a_while(start: Start) -> None:
    job = start(data=DATA, pause_at=5, epochs=2)
    job.until("paused")
    pid = kill_host(signal.SIGSTOP)
    try:
        job.tell()
        time.sleep(1.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    finish(job)


def continue_later(pid: int) -> None:
    """Let a host go on that was stopped, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("sampling", "workers"),
    [("auto", 0), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("dependent", "uniform"))],
)
def test_the_host_stands_still_for_ever(start: Start, sampling: str, workers: int) -> None:
    """Jobs wait for it only so long; then another takes its place."""
    loader = {"sampling": sampling, "num_workers": workers}
    jobs = [
        start(
            {"HEADRACE_HOST_PATIENCE": str(PATIENCE)},
            data=DATA,
            loader=loader,
            epochs=3,
            act_in=1,
            pause_at=5,
        )
        for _ in range(2)
    ]
    for job in jobs:
        job.until("paused")
    before = kill_host(signal.SIGSTOP)
    for job in jobs:
        job.tell()
    finish(*jobs)
    continue_later(before)
    assert all(job.stats["client_takeovers"] >= 1 for job in jobs)
    assert any(f"did not answer for {PATIENCE} s and was ended" in job.errors for job in jobs)
    assert not any("alone" in job.errors for job in jobs)
    assert host_pid() not in (0, before)


def test_a_job_begins_while_the_host_stands_still(start: Start) -> None:
    first = start(data=DATA, epochs=1, hold=True)
    first.until("holding")
    before = kill_host(signal.SIGSTOP)
    second = start({"HEADRACE_HOST_PATIENCE": str(PATIENCE)}, data=DATA, epochs=2)
    finish(second)
    first.tell()
    finish(first)
    assert host_pid() not in (0, before)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_worker_is_killed(start: Start, sampling: str) -> None:
    loader = {"sampling": sampling, "num_workers": 2}
    jobs = [start(data=DATA, loader=loader, epochs=3, pause_at=4) for _ in range(2)]
    for job in jobs:
        kill(job.until("paused")["workers"][0])
    for job in jobs:
        job.tell()
    finish(*jobs)
    assert all(job.stats["restarts"] >= 1 for job in jobs)
    assert wait_until(only_the_cache_is_left, 20), state_of_host()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_job_is_killed_and_its_memory_comes_back(start: Start, sampling: str) -> None:
    data = {**DATA, "latency": 0.002}
    loader = {"sampling": sampling}
    victim = start(data=data, loader=loader, epochs=50, pause_at=4)
    other = start(data=data, loader=loader, epochs=3)
    victim.until("paused")
    victim.tell()
    time.sleep(0.1)
    victim.kill()
    finish(other)
    assert wait_until(only_the_cache_is_left, 20), state_of_host()


def test_a_job_is_killed_while_it_holds_back_its_workers(start: Start) -> None:
    """Workers that stand still keep the blocks they may write to; those that end give them back."""
    victim = start(data=DATA, epochs=2, pause_at=4)
    paused = victim.until("paused")
    for pid in paused["workers"]:
        os.kill(pid, signal.SIGSTOP)
    victim.kill()
    other = start(data=DATA, epochs=2)
    finish(other)
    for pid in paused["workers"]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert wait_until(only_the_cache_is_left, 20), state_of_host()


@pytest.mark.parametrize("sampling", ["auto", "dependent"])
def test_host_and_job_are_killed_at_once(start: Start, sampling: str) -> None:
    loader = {"sampling": sampling}
    victim, other = (start(data=DATA, loader=loader, epochs=3, pause_at=4) for _ in range(2))
    for job in (victim, other):
        job.until("paused")
    kill_host()
    victim.kill()
    other.tell()
    finish(other)
    assert wait_until(only_the_cache_is_left, 20), state_of_host()


def test_host_and_worker_are_killed_at_once(start: Start) -> None:
    jobs = [start(data=DATA, loader={"num_workers": 2}, epochs=3, pause_at=4) for _ in range(2)]
    for job in jobs:
        kill(job.until("paused")["workers"][0])
    kill_host()
    for job in jobs:
        job.tell()
    finish(*jobs)
    assert wait_until(only_the_cache_is_left, 20), state_of_host()


@pytest.mark.parametrize("sampling", ["auto", "uniform"])
@pytest.mark.parametrize("workers", [0, 1])
def test_no_other_host_can_be_had(start: Start, place: Path, sampling: str, workers: int) -> None:
    job = start(data=DATA, loader={"sampling": sampling, "num_workers": workers}, epochs=3, pause_at=4)
    job.until("paused")
    pid = kill_host()
    assert wait_until(lambda: pid not in processes_of(place), 10)
    shutil.rmtree(place)
    place.write_text("in the way")
    job.tell()
    finish(job)
    assert "goes on alone" in job.errors


def rank_of_two(start: Start, rank: int, more: dict[str, str] | None = None, **spec: Any) -> Job:
    where = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29514"}
    return start({**where, "RANK": str(rank), **(more or {})}, data=DATA, epochs=3, act_in=1, **spec)


def assert_whole(one: Job, two: Job) -> None:
    """Two ranks had every sample of each epoch between them."""
    for first, second in zip(one.epochs(), two.epochs(), strict=True):
        assert first["bad"] == second["bad"] == 0
        assert_exact(first["batches"] + second["batches"], range(300), f"epoch {first['number']}")


@pytest.mark.parametrize(
    ("sign", "sampling"),
    [(signal.SIGKILL, "auto"), (signal.SIGKILL, "dependent"), (signal.SIGSTOP, "auto")],
)
@pytest.mark.slow
def test_the_host_of_two_ranks_is_killed_or_stands_still(start: Start, sign: int, sampling: str) -> None:
    more = {"HEADRACE_HOST_PATIENCE": str(PATIENCE)} if sign == signal.SIGSTOP else {}
    loader = {"sampling": sampling}
    ranks = [rank_of_two(start, rank, more, loader=loader, pause_at=3 + 2 * rank) for rank in range(2)]
    for rank in ranks:
        rank.until("paused")
    kill_host(sign)
    for rank in ranks:
        rank.tell()
    for rank in ranks:
        rank.end()
    assert_whole(*ranks)


@pytest.mark.parametrize("cut_at", [2, 6])
def test_a_rank_loses_its_connection_and_not_its_host(start: Start, cut_at: int) -> None:
    """The other one, which is a few steps ahead or behind, does not notice."""
    other = rank_of_two(start, 1, pause_at=4)
    other.until("paused")
    cut = rank_of_two(start, 0, cut_at=cut_at)
    cut.end()
    other.tell()
    other.end()
    assert cut.stats["client_takeovers"] == 1 and other.stats["client_takeovers"] == 0
    assert_whole(cut, other)


@pytest.mark.timeout(100 + 60 * SOAK)
def test_everything_is_killed_at_random(start: Start) -> None:
    """Hosts, workers and jobs, 6 kills (or so many times more in a soak), while three jobs train."""
    chance = random.Random(11 + int(os.environ.get("HEADRACE_SOAK_SEED", "0")))
    kinds = ("auto", "opportunistic", "dependent", "uniform")

    def another() -> Job:
        loader = {
            "sampling": chance.choice(kinds),
            "num_workers": chance.choice((1, 2)),
            "cache": chance.choice((20_000, "8MiB")),
        }
        return start(data=DATA, loader=loader, epochs=10**6, endless=True)

    jobs, killed = [another() for _ in range(3)], []
    for _ in range(6 * SOAK):
        time.sleep(chance.random() * 0.6)
        jobs[chance.randrange(3)].until("epoch")
        victim = chance.choice(("host", "worker", "job"))
        at = chance.randrange(3)
        if victim == "host":
            kill_host()
        elif victim == "worker":
            jobs[at].note_family()
            workers = sorted(jobs[at].family - {jobs[at].pid})
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(workers[-1], signal.SIGKILL)
        else:
            jobs[at].until("epoch")
            jobs[at].kill()
            jobs[at].check()
            killed.append(jobs[at])
            jobs[at] = another()
        for job in [job for job in killed if all(map(is_dead, job.family))]:
            job.sweep()  # there may be more jobs than descriptors
            killed.remove(job)
    for job in jobs:
        job.tell()
    finish(*jobs)
    assert wait_until(only_the_cache_is_left, 20), state_of_host()
