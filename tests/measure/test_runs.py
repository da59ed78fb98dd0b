"""Records of runs: written whole or not at all, few, and never in anybody's way."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.measure import runs
from headrace.measure.runs import (
    Run,
    list_runs,
    load_run,
    process_start,
    prune_runs,
    run_name,
    runs_dir,
    save_run,
    state_of,
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def run(number: int = 0, **changes: Any) -> Run:
    started = 1e9 + number
    known: dict[str, Any] = {
        "name": run_name(started, 123, 0),
        "label": "/data",
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
        "process_started": process_start(os.getpid()),
        "started": started,
        "updated": started + 1,
    }
    return Run(**{**known, **changes})


def test_a_record_is_kept_for_its_owner_alone(state: Path) -> None:
    assert save_run(run())
    assert runs_dir() == state / "headrace" / "runs"
    assert stat.S_IMODE(runs_dir().stat().st_mode) == 0o700
    (path,) = runs_dir().iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_run(path) == run()
    assert save_run(run(samples=5)) and list_runs() == [run(samples=5)], "the next state takes its place"


def test_only_the_last_ones_are_kept() -> None:
    for number in range(70):
        save_run(run(number))
    mine = runs_dir() / "notes.json"
    mine.write_text("mine")
    partial = runs_dir() / ".abc.partial"
    partial.write_text("")
    os.utime(partial, (0, 0))
    fresh = runs_dir() / ".def.partial"
    fresh.write_text("")
    prune_runs()
    assert [one.started for one in list_runs()] == [1e9 + number for number in reversed(range(6, 70))]
    assert mine.exists() and fresh.exists() and not partial.exists()


def test_what_cannot_be_written_is_no_error(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "headrace").write_text("a file where the directory should be")
    assert not save_run(run())
    prune_runs()
    assert list_runs() == []
    monkeypatch.setenv("XDG_STATE_HOME", str(state / "other"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.os, "replace", full)
    assert not save_run(run())
    assert list(runs_dir().iterdir()) == [], "nothing half-written is left"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"version": 99}', b"\xff\x00"])
def test_what_is_no_record_counts_as_none(text: bytes) -> None:
    assert save_run(run())
    damaged = runs_dir() / f"{run_name(2e9, 1, 0)}.json"
    damaged.write_bytes(text)
    assert load_run(damaged) is None
    assert list_runs() == [run()]
    later = msgspec.to_builtins(run())
    later["version"] = runs.VERSION + 1
    damaged.write_bytes(msgspec.json.encode(later))
    assert load_run(damaged) is None, "another version means something else"


def test_whether_a_run_still_runs() -> None:
    assert state_of(run()) == "running"
    assert state_of(run(finished=True)) == "finished"
    assert state_of(run(process_started=1)) == "ended", "another process has its number now"
    assert state_of(run(hostname="elsewhere")) == "elsewhere"
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    theirs = run(pid=child.pid, process_started=process_start(child.pid))
    assert state_of(theirs) == "running"
    child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while state_of(theirs) == "running" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state_of(theirs) == "ended", "one that nobody has waited for is dead all the same"
    child.wait()
    assert state_of(theirs) == "ended"


def test_without_a_directory_of_its_own_the_home_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert runs_dir() == Path("/home/me/.local/state/headrace/runs")
