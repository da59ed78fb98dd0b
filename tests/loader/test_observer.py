"""Every loader can be asked what it waits for, and leaves a record of its run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader import observer
from headrace.measure.runs import Run, list_runs, runs_dir, state_of
from headrace.planning import Advice
from tests import prepared
from tests.loader.helpers import drain

JOB = """
import sys, time
import headrace as hr
recipe = hr.Recipe(hr.synthetic.source(400, bytes_per_sample=64), hr.synthetic.decode(cost=0.0005, shape=(4,)))
loader = hr.DataLoader(recipe, batch_size=20, num_workers=1)
until = time.time() + float(sys.argv[1])
while time.time() < until:
    for _ in loader:
        pass
    print("epoch", flush=True)
"""


@pytest.fixture(autouse=True)
def _recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_RECORD", "1")
    monkeypatch.setattr(observer, "_SHORT", 0.0)
    monkeypatch.setattr(observer, "_LOOK", 0.01)
    monkeypatch.setattr(observer, "_WRITE", 0.05)


def slow(cost: float = 0.001, samples: int = 400) -> hr.Recipe:
    """Samples that take a while to decode."""
    return hr.Recipe(
        hr.synthetic.source(samples, bytes_per_sample=64), hr.synthetic.decode(cost=cost, shape=(4,))
    )


def advice_of(loader: Any, step: float = 0.0, epochs: int = 1) -> Advice:
    for _ in range(epochs):
        for _ in loader:
            if step:
                time.sleep(step)
    found = loader.stats().advice
    assert found is not None
    return found


def test_too_early_there_is_no_advice() -> None:
    with hr.DataLoader(slow(), batch_size=10, num_workers=1) as loader:
        assert loader.stats().advice is None
        iterator = iter(loader)
        next(iterator)
        assert loader.stats().advice is None
        del iterator
    assert hr.DataLoader(slow(), batch_size=10).stats().advice is None


@pytest.mark.parametrize("cache", [None, "1MiB"])
def test_a_loop_that_waits_for_decoding_is_told_so(cache: str | None) -> None:
    with hr.DataLoader(
        slow(), batch_size=20, num_workers=1, cache=cache, split=cache and (1, 0, 0)
    ) as loader:
        advice = advice_of(loader)
        assert advice.cause == "decode" and advice.waited > 0.5
        assert "decode-bound" in str(advice)
        begun = time.process_time()
        while time.process_time() < begun + 0.2:
            pass
        assert f"advice      waited {advice.waited:.0%}" in str(loader.stats()), (
            "what comes after does not count"
        )
        now = loader.stats().advice
        assert now is not None and now.numbers["loop_cpu_s"] == pytest.approx(advice.numbers["loop_cpu_s"])
    closed = loader.stats()
    assert closed.advice is not None, "also after it was closed"
    assert msgspec.json.decode(msgspec.json.encode(closed))["situation"]["kind"] == "recipe"


def test_a_trainer_that_takes_its_time_is_told_that_it_sets_the_pace() -> None:
    for _ in range(5):  # (on a machine with much else to do, workers may really be late)
        with hr.DataLoader(slow(cost=1e-5), batch_size=20, num_workers=1) as loader:
            advice = advice_of(loader, step=0.1, epochs=2)
        if advice.cause == "trainer":
            break
    assert advice.cause == "trainer" and not advice.remedies


def spin(value: Any) -> Any:
    """Python code that takes its time, and as much on a fast machine: orders and batches cost next to nothing."""
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        pass
    return value


def test_code_of_the_users_is_named() -> None:
    recipe = hr.Recipe(hr.synthetic.source(200, bytes_per_sample=64), hr.synthetic.decode(shape=(4,)), [spin])
    with hr.DataLoader(recipe, batch_size=20, num_workers=1) as loader:
        advice = advice_of(loader)
        assert advice.cause == "python" and "spin" in str(advice)
        (remedy,) = [one for one in advice.remedies if one.kind == "user code"]
        assert remedy.gain > 2
        assert advice.numbers["user_cpu_s"] == pytest.approx(remedy.amount)


def test_a_collate_of_the_users_counts_too() -> None:
    def stack(samples: list[Any]) -> Any:
        for _ in samples:
            spin(None)
        return np.stack(samples)

    recipe = hr.Recipe(
        hr.synthetic.source(200, bytes_per_sample=64), hr.synthetic.decode(shape=(4,)), collate=stack
    )
    with hr.DataLoader(recipe, batch_size=4, num_workers=1) as loader:
        stalls = advice_of(loader).stalls
        # (the more CPUs there are, the more threads have nothing to do: a batch is collated by one of them)
        assert stalls["python"] == max(share for name, share in stalls.items() if name != "orders") > 0


class Slow(torch.utils.data.Dataset[int]):
    """Samples that take a while, and compute nothing."""

    def __init__(self, samples: int = 200, seconds: float = 0.002) -> None:
        self.samples, self.seconds = samples, seconds

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_of_a_dataset_is_said_what_can_be_known(workers: int) -> None:
    slow = Slow(90, 0.01)  # (a batch takes far longer than a busy machine keeps the loop from going on)
    with hr.DataLoader(slow, batch_size=10, num_workers=workers, persistent_workers=workers > 0) as loader:
        advice = advice_of(loader)
        assert advice.cause == "dataset" and advice.waited > 0.5
        assert [one.kind for one in advice.remedies] == ["workers"]


def test_without_workers_some_are_advised() -> None:
    with hr.DataLoader(slow(), batch_size=20, num_workers=0) as loader:
        advice = advice_of(loader)
        assert advice.cause == "decode"
        assert "workers" in [one.kind for one in advice.remedies] or os.cpu_count() == 1


def test_the_record_says_what_the_loader_says() -> None:
    with hr.DataLoader(slow(), batch_size=20, num_workers=1, rank=1, world_size=2) as loader:
        for _ in range(100):  # until it was time to write
            drain(loader)
            if list_runs():
                break
        (run,) = list_runs()
        assert state_of(run) == "running"
        assert (run.pid, run.rank, run.world_size) == (os.getpid(), 1, 2)
        stats = loader.stats()
    (run,) = list_runs()
    assert state_of(run) == "finished"
    assert (run.samples, run.batches) == (stats.samples, stats.batches)
    assert run.situation is not None and run.situation.total.delivered == pytest.approx(stats.samples, abs=40)
    assert run.label


def test_sums_go_on_from_session_to_session() -> None:
    """Workers of a torch dataset start anew in each epoch."""
    loader = hr.DataLoader(Slow(), batch_size=10, num_workers=1)
    for epoch in range(3):
        for _ in loader:
            pass
        (run,) = list_runs()
        assert run.samples == 200 * (epoch + 1)
        assert run.situation is not None
        assert run.situation.total.delivered == pytest.approx(190 * (epoch + 1), abs=10)
        assert run.situation.total.fetch > 0.3 * (epoch + 1)
    loader.close()


def test_no_record_where_none_is_wanted_or_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_RECORD", "0")
    with hr.DataLoader(slow(), batch_size=20, num_workers=1) as loader:
        assert advice_of(loader)
    assert not runs_dir().exists()
    monkeypatch.setenv("HEADRACE_RECORD", "1")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with hr.DataLoader(slow(), batch_size=20, num_workers=1) as loader:
        assert advice_of(loader)


def test_a_forked_job_leaves_the_record_alone() -> None:
    with hr.DataLoader(slow(samples=100), batch_size=20, num_workers=1) as loader:
        for _ in loader:
            pass
        before = list_runs()
        child = os.fork()
        if not child:
            loader._epochs.observer.leave(loader._epochs.session)
            os._exit(0)
        os.waitpid(child, 0)
        assert list_runs() == before


def test_a_killed_job_leaves_its_last_state(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    job = prepared.Script(script, "60")
    found: list[Run] = []
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = list_runs()
    (run,) = found
    assert run.pid == job.pid and state_of(run) == "running"
    job.kill()
    job.communicate()
    (run,) = list_runs()
    assert state_of(run) == "ended" and run.samples > 0 and run.situation is not None


def test_a_job_that_does_not_close_its_loader_leaves_a_finished_record(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    prepared.run(script, "1.5").check_returncode()
    (run,) = list_runs()
    assert state_of(run) == "finished"


def test_a_batch_costs_next_to_nothing() -> None:
    """Between two looks, two clocks are read and that is all."""
    with hr.DataLoader(slow(samples=100), batch_size=20, num_workers=1) as loader:
        for _ in loader:
            pass
        watch, session = loader._epochs.observer, loader._epochs.session
        watch._due = time.perf_counter() + 60
        called: list[str] = []

        def note(frame: Any, event: str, what: Any) -> None:
            if event in ("call", "c_call"):
                called.append(what.__name__ if event == "c_call" else frame.f_code.co_name)

        sys.setprofile(note)
        watch.batch(session, 0, 1, 1)
        sys.setprofile(None)
        assert called == ["batch", "perf_counter", "process_time", "setprofile"]
