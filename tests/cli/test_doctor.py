"""``headrace doctor`` as a user calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.cli import main
from headrace.cli.show_doctor import show_run
from headrace.loader import observer
from headrace.measure.runs import Run, process_start, run_name, runs_dir, save_run
from tests.planning.test_advice import MB, Machine, dataset


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def keep(number: int = 0, **changes: Any) -> Run:
    known: dict[str, Any] = {
        "name": run_name(1e9 + number, 123, 0),
        "label": "/data/train",
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
        "process_started": 1,
        "started": 1e9 + number,
        "updated": 1e9 + number + 100,
        "finished": True,
        "samples": 4000,
        "situation": Machine(cpus=1, storage=300 * MB).situation(),
    }
    run = Run(**{**known, **changes})
    assert save_run(run)
    return run


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["doctor", *arguments]) == status
    captured = capsys.readouterr()
    return re.sub(" +", " ", captured.err if status else captured.out)


def test_the_cause_comes_first_then_what_would_help_then_the_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = keep()
    text = said(capsys)
    labels = [line.split()[0] for line in text.splitlines() if line[:1].strip()]
    assert labels == ["run", "data", "cause", "waited", "stalls", "would", "numbers"]
    assert f"run {run.name} (finished, " in text and "data /data/train" in text
    assert "cause decode-bound: 91% of stalls" in text
    assert re.search(
        r"would help \d+\.\d\dx a cache of 2\.\d GiB for decoded samples [\d,]+ samples/s, then", text
    )
    assert re.search(r"\n (1\.9\d|2\.00)x one more CPU \(1 -> 2\) ", text)
    assert "CPU ms a sample fetch 0.020, decode 1.000, augment 0.100" in text


def test_it_says_what_of_a_dataset_is_native_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    keep(
        native=("decoding", "Resize"),
        own_code=("RandomPerspective: headrace has no such step", "mix\x1b[2J: the collate_fn"),
        hint="put it last",
    )
    text = said(capsys)
    assert "\nnative decoding, Resize\n" in text
    assert (
        "\nown code RandomPerspective: headrace has no such step\n mix?[2J: the collate_fn\n put it last\n"
        in text
    )
    (plain,) = json.loads(said(capsys, "--json"))
    assert plain["native"] == ["decoding", "Resize"] and plain["hint"] == "put it last"
    keep(1, own_code=("decoding: native=False",))
    assert "\nnative nothing\nown code decoding: native=False\ncause" in said(capsys)
    keep(2)
    assert "native" not in said(capsys), "recipes are all headrace's, but for the steps that users give it"


def test_jobs_that_run_now_come_before_those_that_ended(capsys: pytest.CaptureFixture[str]) -> None:
    now = process_start(os.getpid())
    mine = [keep(number, finished=False, process_started=now) for number in (1, 2)]
    keep(3)
    text = said(capsys)
    assert re.findall(r"^run (\S+) \(running", text, re.M) == [mine[1].name, mine[0].name]


def test_a_run_by_name_number_or_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [keep(number, label=f"/data/{number}") for number in range(3)]
    assert "data /data/2" in said(capsys)
    assert "data /data/0" in said(capsys, "3")
    assert "data /data/1" in said(capsys, runs[1].name)
    copy = tmp_path / "kept.json"
    copy.write_bytes((runs_dir() / f"{runs[0].name}.json").read_bytes())
    assert "data /data/0" in said(capsys, str(copy))


def test_what_was_started_in_this_directory_comes_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has run a script, and asks; another job goes on, and a third one was the last to begin."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    mine = keep(0, script="train.py", directory=str(here), updated=1e9 + 500)
    keep(1, script="longer.py", finished=False, process_started=process_start(os.getpid()), updated=1e9 + 400)
    keep(2, script="eval.py")
    text = said(capsys)
    assert re.findall(r"^run (\S+)", text, re.M) == [mine.name]
    assert f"script train.py, process {os.getpid()} in {here}" in text
    assert text.endswith("\n1 other run is under way: headrace doctor --list\n")
    monkeypatch.chdir(tmp_path)
    assert "script longer.py" in said(capsys)


def test_the_last_run_is_the_one_that_ended_last_and_its_longest_loader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keep(5, pid=5, script="short.py", updated=1e9 + 10)
    keep(0, pid=6, script="train.py", label="/data/train", updated=1e9 + 600)
    keep(1, pid=6, script="train.py", label="/data/val", updated=1e9 + 700, started=1e9 + 690)
    text = said(capsys)
    assert "script train.py" in text and "data /data/train" in text
    assert text.endswith("\nthis process had 1 other loader: headrace doctor --list\n")


def test_a_run_by_its_script(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    keep(0, script="train.py", label="/data/0")
    keep(1, script="train.py", label="/data/1")
    keep(2, script="eval.py", label="/data/2")
    assert "data /data/1" in said(capsys, "train.py")
    assert "data /data/1" in said(capsys, "./train.py")
    Path("other.py").write_text("")
    assert "of a script of that name no run is recorded" in said(capsys, "other.py", status=1)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run is recorded in" in said(capsys, "--list")
    keep(0, finished=False, label="x\x1b[2J", script="a\x1bb.py")
    keep(1, situation=None, script="train.py")
    lines = said(capsys, "--list").splitlines()
    assert lines[0].split() == [
        "number",
        "run",
        "script",
        "state",
        "rank",
        "lasted",
        "ago",
        "samples",
        "waited",
        "data",
    ]
    assert lines[1].split()[:4] == ["1", run_name(1e9 + 1, 123, 0), "train.py", "finished"]
    assert lines[2].split()[2:4] == ["a?b.py", "ended"] and "\x1b" not in lines[2]
    plain = json.loads(said(capsys, "--list", "--json"))
    assert [one["state"] for one in plain] == ["finished", "ended"]


def test_errors_say_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "HEADRACE_RECORD=0" in said(capsys, status=1)
    assert "there is no run 'nothing': no run is recorded" in said(capsys, "nothing", status=1)
    keep()
    assert "there are 1, see headrace doctor --list" in said(capsys, "7", status=1)
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "is no record of a run" in said(capsys, str(other), status=1)


def test_what_is_known_is_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    (run,) = json.loads(said(capsys, "--json"))
    assert run["state"] == "finished" and run["advice"]["cause"] == "decode"
    assert run["says"].startswith("waited 9")
    assert len(run["curve"]["cache"]) == len(run["curve"]["rate"]) == len(run["curve"]["split"])
    assert run["situation"]["recent"]["delivered"] > 0
    keep(1, situation=None)
    (run,) = json.loads(said(capsys, "--json"))
    assert run["advice"] is run["curve"] is None


def test_too_little_was_measured_or_it_was_a_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    keep(0, situation=None)
    assert "cause not known: too little was measured" in said(capsys)
    keep(1, situation=dataset(), world_size=2, rank=1)
    text = said(capsys)
    assert "rank 1 of 2" in text and "bound by the dataset's own code: 100% of stalls" in text
    assert "workers in place of 2" in text


@pytest.mark.parametrize("loop", [0.01, 1e-5])
def test_every_situation_can_be_shown(loop: float) -> None:
    for machine in (Machine(loop=loop), Machine(loop=loop, storage=5 * MB, cache=500 * MB)):
        for changes in ({}, {"shared": True}, {"inline": True}):
            run = keep(situation=machine.situation(**changes))
            for state in ("running", "finished", "ended", "elsewhere"):
                assert show_run(run, state, 2e9).startswith("run")


def test_the_curve_as_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    keep()
    path = tmp_path / "curve.png"
    assert "cause" in said(capsys, "--plot", str(path))
    assert path.read_bytes()[:4] == b"\x89PNG"
    keep(1, situation=dataset())
    assert "nothing to draw" in said(capsys, "--plot", str(path), status=1)


def test_without_matplotlib_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "headrace.cli.plot_cache", raising=False)
    assert "plot" in said(capsys, "--plot", "curve.png", status=1)


@pytest.fixture
def finished_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small job that ran for real."""
    monkeypatch.setenv("HEADRACE_RECORD", "1")
    monkeypatch.setattr(observer, "_SHORT", 0.0)
    monkeypatch.setattr(observer, "_LOOK", 0.01)
    recipe = hr.Recipe(
        hr.synthetic.source(300, bytes_per_sample=64), hr.synthetic.decode(cost=0.002, shape=(4,))
    )
    with hr.DataLoader(recipe, batch_size=20, num_workers=1) as loader:
        for _ in loader:
            pass


@pytest.mark.usefixtures("finished_job")
def test_from_a_real_job_to_its_cause() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr
    (run,) = json.loads(done.stdout)
    assert run["script"] == os.path.basename(sys.argv[0]) and run["directory"] == os.getcwd()
    assert run["advice"]["cause"] == "decode" and run["advice"]["remedies"]
    assert run["advice"]["numbers"]["decode_cpu_s"] > 0.001
    assert msgspec.json.decode((runs_dir() / f"{run['name']}.json").read_bytes(), type=Run).finished
