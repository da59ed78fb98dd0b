"""How many processes run a dataset where nobody said it: more than CPUs where they wait, and no more where they
work."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import headrace as hr
from headrace.loader import worker_tuning
from headrace.loader.worker_tuning import WorkerTuning
from headrace.planning import Spent


class Sleepy(Dataset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor(index)


def plant(monkeypatch: pytest.MonkeyPatch, *, fetch: float, cpu: float, request: float, cpus: int = 2) -> Any:
    """A made-up host: each batch takes a worker ``fetch`` seconds, a CPU for the share ``cpu`` of them, and the loop
    ``request``."""
    clock = SimpleNamespace(now=0.0)
    totals = SimpleNamespace(spent=Spent(), waited=0.0, orders=0)
    workers = [SimpleNamespace(pid=1)] * cpus
    host: Any = SimpleNamespace(
        totals=totals, workers=workers, add_worker=lambda: workers.append(SimpleNamespace(pid=1))
    )
    monkeypatch.setattr(worker_tuning, "cpus_per_rank", lambda: cpus)
    monkeypatch.setattr(worker_tuning.time, "perf_counter", lambda: clock.now)
    tuning = WorkerTuning(host, cpus)

    def step() -> int:
        rate = min(len(workers) / fetch, cpus / max(fetch * cpu, 1e-9))
        seconds = max(request, 1 / rate)
        clock.now += seconds
        totals.waited += seconds - request
        totals.orders += 1
        totals.spent.add(Spent(fetch=fetch, fetch_cpu=fetch * cpu))
        return tuning.taken()

    step.workers = workers  # type: ignore[attr-defined]
    return step


def after(step: Any, batches: int) -> int:
    return [step() for _ in range(batches)][-1]


def test_who_waits_for_storage_gets_as_many_as_keep_up(monkeypatch):
    assert after(plant(monkeypatch, fetch=0.2, cpu=0.02, request=0.02), 200) == 10, "fetch over request"


def test_who_computes_gets_no_more_than_cpus(monkeypatch):
    assert after(plant(monkeypatch, fetch=0.2, cpu=1.0, request=0.02), 200) == 2
    assert after(plant(monkeypatch, fetch=0.2, cpu=0.5, request=0.02), 200) == 4, "half the time it waits"


def test_a_loop_that_is_fed_has_enough(monkeypatch):
    assert after(plant(monkeypatch, fetch=0.2, cpu=0.02, request=0.2), 200) == 2


def test_memory_is_a_limit(monkeypatch):
    monkeypatch.setattr(worker_tuning, "_own_memory", lambda pid: 1 << 30)
    step = plant(monkeypatch, fetch=0.2, cpu=0.02, request=0.005)
    monkeypatch.setattr(worker_tuning, "available_memory", lambda: (10 - len(step.workers)) << 30)
    assert after(step, 200) == 9, "of what was left at each look, half"


def test_a_dataset_that_sleeps_gets_more_processes_and_the_same_batches():
    with hr.DataLoader(Sleepy(0.004), batch_size=8, num_workers="auto", persistent_workers=True) as loader:
        first = loader._epochs
        found = []
        for batch in loader:
            found += batch.tolist()
            if len(found) == 2000:
                break
        assert found == list(range(2000))
        assert first.session.processes > loader.num_workers
        assert len(first.session.host.workers) == first.session.processes


def test_a_number_that_was_given_is_obeyed():
    with hr.DataLoader(Sleepy(0.004), batch_size=8, num_workers=2, persistent_workers=True) as loader:
        for at, _ in enumerate(loader):
            if at == 100:
                break
        assert len(loader._epochs.session.host.workers) == 2


def test_a_run_whose_number_was_chosen_is_recorded(monkeypatch, tmp_path):
    """The number that stands for "not given" is no plain integer, and a record has to be written all the same."""
    monkeypatch.setenv("HEADRACE_RECORD", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with hr.DataLoader(Sleepy(0.03), batch_size=4, num_workers="auto", persistent_workers=True) as loader:
        begun = time.monotonic()
        for _ in loader:
            if list(tmp_path.rglob("*.json")) or time.monotonic() - begun > 60:
                break
    assert list(tmp_path.rglob("*.json"))
