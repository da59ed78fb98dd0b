"""The host around its jobs: options that make no sense, its idle end, and what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import TensorDataset

import headrace as hr
from headrace.core.errors import OptionError
from headrace.host import control
from headrace.host.runtime import LOCK, LOG
from tests.loader.helpers import wait_until
from tests.sharing import recipes
from tests.sharing.fixtures import Start, processes_of


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampling": "auto"}, "needs share=True"),
        ({"sampling": "dependent"}, "needs share=True"),
        ({"eviction": "auto"}, "needs share=True"),
        ({"share": True, "sampling": "auto", "shuffle": False}, "shuffle=True"),
        ({"share": True, "sampling": "best"}, "choose one of"),
        ({"share": True, "eviction": "best"}, "choose one of"),
        ({"share": True, "sampler": [1, 2, 3], "shuffle": None, "sampling": "dependent"}, "sampler"),
    ],
)
def test_options_that_make_no_sense(place: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        hr.DataLoader(recipes.recipe(20), **{"shuffle": True, "cache": "1MiB", **options})
    assert control.status() is None


def test_a_dataset_cannot_be_shared(place: Path) -> None:
    import torch

    with pytest.raises(OptionError, match="needs a recipe"):
        hr.DataLoader(TensorDataset(torch.zeros(3)), share=True)


def test_a_dataset_is_left_alone_by_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("HEADRACE_SHARE", "1")
    assert len(list(hr.DataLoader(TensorDataset(torch.zeros(3))))) == 3
    assert control.status() is None


@pytest.mark.slow
def test_a_host_without_jobs_ends_by_itself(start: Start, place: Path) -> None:
    job = start({"HEADRACE_HOST_IDLE": "1"}, data={"size": 60}, hold=True)
    job.until("holding")
    status = control.status()
    assert status is not None
    assert [entry.pid for entry in status.jobs] == [job.pid]
    job.tell()
    job.end()
    job.check()
    assert wait_until(lambda: not processes_of(place), 15)
    assert control.status() is None
    assert {name for name in os.listdir(place) if not name.startswith("roster-")} <= {LOCK, LOG}


@pytest.mark.slow
def test_a_host_with_a_job_does_not_end(start: Start) -> None:
    job = start({"HEADRACE_HOST_IDLE": "0.2"}, data={"size": 100}, pause_at=2, epochs=2)
    job.until("paused")
    before = control.status()
    assert before is not None
    assert not wait_until(lambda: control.status() is None, 3)
    job.tell()
    job.end()
    job.check()
    assert job.stats["client_takeovers"] == 0


def test_the_host_is_nobodys_child_and_leaves_no_zombie(start: Start) -> None:
    job = start(data={"size": 60}, hold=True)
    job.until("holding")
    status = control.status()
    assert status is not None
    job.note_family()
    assert status.pid not in job.family
    job.tell()
    job.end()
    assert not [pid for pid in job.family if recipes.alive(pid)]


def test_the_command_shows_the_jobs(start: Start) -> None:
    job = start(data={"size": 60}, hold=True)
    job.until("holding")
    got = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "status", "--json"], capture_output=True, text=True, timeout=60
    )
    assert got.returncode == 0, got.stderr
    assert [entry["pid"] for entry in json.loads(got.stdout)["jobs"]] == [job.pid]
    job.tell()
    job.end()
