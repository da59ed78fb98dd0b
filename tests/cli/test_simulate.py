"""``headrace simulate`` as a user calls it."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from tests.core.test_bar import WIPED

SMALL = ("--set", "data.samples=500", "--set", "jobs.epochs=2")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "headrace.cli", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_ready_scenario_prints_tables(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    done = run("sharing", *SMALL, "--json", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Four equal jobs")
    assert "2,000 samples in" in lines[1] and "hit rate" in lines[2]
    assert [line.split()[:2] for line in lines if line.startswith("job ")] == [
        ["job", "ranks"], ["job", "0"], ["job", "1"], ["job", "2"], ["job", "3"],
    ]  # fmt: skip
    assert any(line.startswith("machine") for line in lines)
    found = json.loads(path.read_text())
    assert found["complete"] and found["images"] == 2000 and len(found["jobs"]) == 4
    assert found["course"][-1]["images"] == [1000] * 4


def test_json_alone_goes_to_standard_output() -> None:
    found = json.loads(run("overlap", *SMALL, "--json", "-").stdout)
    assert found["nodes"][0]["cpu"] > 0.5


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[data]\nsamples = 200\n[[jobs]]\nname = 'mine'\nepochs = 2\n")
    assert "\nmine " in run(str(path)).stdout


def test_what_is_wrong_is_said_in_one_line() -> None:
    done = run("sharing", "--set", "jobs.sampling=best")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("headrace: jobs[0].sampling: 'best' is none; write one of")
    assert len(done.stderr.splitlines()) == 1


def test_a_plot_or_the_name_of_what_lacks(tmp_path: Path) -> None:
    path = tmp_path / "found.png"
    done = run("sharing", *SMALL, "--plot", str(path))
    if importlib.util.find_spec("matplotlib") is None:
        assert done.returncode == 1
        assert done.stderr == (
            "headrace: --plot needs matplotlib; install it with: pip install 'headrace[plot]'\n"
        )
    else:
        assert done.returncode == 0 and path.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_with_what_was_found() -> None:
    """On a terminal there is a bar, which is gone in the end."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headrace.cli", "simulate", "sharing", "--set", "jobs.epochs=1000000"]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment)
    os.close(theirs)
    seen = b""
    while seen.count(b"virtual time") < 3:
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ended early" in printed and "job 3" in printed
    seen += os.read(ours, 1 << 16)
    os.close(ours)
    assert "━━━".encode() in seen and seen.endswith(WIPED)
