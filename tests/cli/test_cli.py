"""``headrace status`` and ``headrace stop`` against a stand-in for the host, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from headrace.channel.asking import greet
from headrace.cli import main
from headrace.cli.show import show_status, show_time
from headrace.coordinate.protocol import PROTOCOL, Hello
from headrace.core.errors import HostGone, HostUnavailable, ProtocolError
from headrace.host import control, runtime
from tests.cli.standin import example
from tests.descriptors import none_left_open

ROOT = Path(__file__).parents[2]


def start(how: str) -> int:
    """A stand-in for the host; its pid."""
    with closing(runtime.find_or_start(command=[sys.executable, "-m", "tests.cli.standin", how])) as channel:
        return channel.peer.pid


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_host(place: Path) -> None:
    for command in (["status"], ["stop"]):
        done = run(*command)
        assert (done.returncode, done.stdout, done.stderr) == (3, "no host is running\n", "")
    done = run("status", "--json")
    assert (done.returncode, done.stdout) == (3, "null\n")
    assert not place.exists()


def test_status_shows_jobs_datasets_and_cache(place: Path) -> None:
    pid = start("good")
    done = run("status")
    assert done.returncode == 0 and not done.stderr
    lines = done.stdout.splitlines()
    text = re.sub(" +", " ", done.stdout)
    assert f"host pid {pid}, headrace 0.1.0 (protocol {PROTOCOL}), up 1 h 2 min" in text
    assert "memory 2.0 GiB of 8.0 GiB in 5200 extents (25%), 35% set aside for encoded samples" in text
    assert "20500 samples decoded, 30 by idle workers; 12 evicted" in text
    assert "train 50000 2" in text
    assert text.index("augmented aaaaaaaaaaaa 1200 512.0 MiB 1") < text.index(
        "decoded dddddddddddd 4000 1.5 GiB 2"
    )
    assert "resnet-lr0.1 4711 0/2 train auto 3 12000 88000 1520 4 0 s" in text
    assert "resnet-lr0.1 0/2 77.3% 7000 60000 1000 20000" in text
    assert "evil?[2J?name 4712" in text and "\x1b" not in text
    assert max(map(len, lines)) <= 120


def test_status_as_json_has_every_number(place: Path) -> None:
    pid = start("good")
    done = run("status", "--json")
    assert done.returncode == 0
    got = json.loads(done.stdout)
    assert got["pid"] == pid
    assert got["jobs"][0]["hits"]["decoded"] == 60000
    assert set(got) == set(example(0).__struct_fields__)


def test_stop_waits_until_the_host_is_gone(place: Path) -> None:
    pid = start("good")
    done = run("stop")
    assert done.returncode == 0, done.stderr
    assert "jobs" in done.stdout and "go on by themselves" in done.stdout
    assert "ended" in (place / "host.log").read_text()
    assert not Path(f"/proc/{pid}/exe").exists()  # at most a zombie is left
    assert run("stop").returncode == 3


def test_a_host_of_another_version_says_what_to_do(place: Path) -> None:
    start("older")
    for command in ("status", "stop"):
        done = run(command)
        assert done.returncode == 1
        assert f"protocol {PROTOCOL} " in done.stderr and f"protocol {PROTOCOL + 1}:" in done.stderr
        assert "headrace stop" in done.stderr and "Traceback" not in done.stderr


def test_the_own_version_is_not_refused() -> None:
    assert control.version_refusal(PROTOCOL) is None


@pytest.mark.parametrize(
    ("how", "error", "what"),
    [
        ("older", HostUnavailable, "refuses: .*pid"),
        ("mute", HostUnavailable, "did not answer"),
        ("garbled", ProtocolError, "cannot be read"),
        ("odd", ProtocolError, "Over"),
        ("future", ProtocolError, "status cannot be read"),
    ],
)
def test_answers_that_are_none(place: Path, how: str, error: type[Exception], what: str) -> None:
    start(how)
    with none_left_open(), pytest.raises(error, match=what):
        control.status(1.0)


def test_a_host_that_hangs_up_counts_as_none(place: Path) -> None:
    start("rude")
    assert control.status() is None
    with closing(runtime.find_or_start()) as channel, pytest.raises(HostGone):
        greet(channel, Hello(PROTOCOL, "control", os.getpid()), 20)


def test_a_host_that_does_not_end(place: Path) -> None:
    pid = start("stubborn")
    with pytest.raises(HostUnavailable, match=f"pid {pid}.*did not end within 1 s"):
        control.stop(1.0)
    assert main(["stop", "--timeout", "0.2"]) == 1


@pytest.mark.faults
def test_a_host_that_is_suspended_is_reported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pid = start("good")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert main(["status", "--timeout", "0.3"]) == 1
        assert f"pid {pid}" in capsys.readouterr().err
    finally:
        os.kill(pid, signal.SIGCONT)
    assert control.stop(30.0)


def test_asking_leaves_no_descriptor(place: Path) -> None:
    start("good")
    with none_left_open():
        for _ in range(3):
            assert control.status() is not None
        assert control.stop(30.0)
        assert not control.stop()


def test_an_empty_host_can_be_shown() -> None:
    text = show_status(control.HostStatus(pid=1), now=5.0)
    assert [line.split()[0] for line in text.splitlines()] == [
        "host", "memory", "prepared", "cache", "datasets", "jobs", "hits",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3600, "1 h 0 min"), (90000, "1 d 1 h")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert show_time(seconds) == text


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["status", "--timeout", "0"], ["stop", "--timeout", "soon"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert "headrace 0." in capsys.readouterr().out


def test_the_command_needs_no_torch() -> None:
    code = "import sys, headrace.cli; sys.exit(any(name in sys.modules for name in ('torch', 'cv2', 'cloudpickle')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_command_is_installed_by_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"headrace": "headrace.cli:main"}
