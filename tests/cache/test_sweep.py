"""What killed processes leave behind: nothing, or what the next start removes, and never anything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cache.arena import _started, sweep

UID, PID = os.getuid(), os.getpid()


def dead_pid() -> int:
    """The pid of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_only_dead_processes_files_of_this_user_go(tmp_path: Path) -> None:
    born = _started(PID)
    dead = dead_pid()
    gone = [f"headrace-{UID}-{dead}-123-abc_9x", f"headrace-{UID}-{PID}-{born + 1}-abc"]
    stay = [
        f"headrace-{UID}-{PID}-{born}-alive",
        f"headrace-{UID + 1}-{dead}-123-abc",
        f"headrace-{UID}-{dead}-123-abc.txt",
        f"headrace-{UID}-{dead}-123-",
        f"headrace-{UID}-{dead}-abc",
        f"headrace-{UID}-{dead}-123-abc\n",
        f"xheadrace-{UID}-{dead}-123-abc",
        f"headrace-x{UID}-{dead}-123-abc",
        "headrace",
        "psm_12345",
    ]
    for name in gone + stay:
        (tmp_path / name).write_bytes(b"x")
    removed = sweep(str(tmp_path))
    assert sorted(removed) == sorted(str(tmp_path / name) for name in gone)
    assert sorted(os.listdir(tmp_path)) == sorted(stay)


def test_directories_and_links_targets_are_left_alone(tmp_path: Path) -> None:
    dead = dead_pid()
    (tmp_path / f"headrace-{UID}-{dead}-1-dir").mkdir()
    target = tmp_path / "precious"
    target.write_bytes(b"x")
    link = tmp_path / f"headrace-{UID}-{dead}-1-link"
    link.symlink_to(target)
    assert sweep(str(tmp_path)) == [str(link)]
    assert sorted(os.listdir(tmp_path)) == [f"headrace-{UID}-{dead}-1-dir", "precious"]


@pytest.mark.skipif(UID != 0, reason="making another user's file needs root")
def test_another_users_file_under_our_name_stays(tmp_path: Path) -> None:
    path = tmp_path / f"headrace-{UID}-{dead_pid()}-1-abc"
    path.write_bytes(b"x")
    os.chown(path, 12345, 12345)
    assert sweep(str(tmp_path)) == []
    assert path.exists()


def test_start_times_tell_processes_apart() -> None:
    assert _started(PID) == _started(PID) > 0
    assert _started(dead_pid()) == 0
    # A name with brackets and spaces, which the kernel puts into the middle of the line, does not confuse it.
    code = (
        "import ctypes, time\nctypes.CDLL(None).prctl(15, b') R 1 1 1 ('); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert _started(process.pid) >= _started(PID)
        finally:
            process.kill()


ARENA = """
import os, sys
if {fallback}:
    del os.O_TMPFILE
from headrace.cache import arena as module
if {early}:
    os.unlink = lambda path: (print("made", flush=True), sys.stdin.read())  # killed before it can unlink
arena = module.Arena({directory!r})
arena.map(*arena.allocate(1 << 16))[:4] = b"data"
print("made", flush=True)
sys.stdin.read()
"""


@pytest.mark.faults
@pytest.mark.parametrize("fallback", [False, True], ids=["O_TMPFILE", "unlinked"])
def test_sigkill_leaves_nothing(tmp_path: Path, fallback: bool) -> None:
    _kill_with_arena(tmp_path, fallback=fallback, early=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.faults
def test_what_sigkill_leaves_at_the_worst_moment_is_swept_by_the_next_start(tmp_path: Path) -> None:
    _kill_with_arena(tmp_path, fallback=True, early=True)
    (left,) = os.listdir(tmp_path)
    assert os.stat(tmp_path / left).st_mode & 0o777 == 0o600
    _kill_with_arena(tmp_path, fallback=True, early=False)
    assert os.listdir(tmp_path) == []


def _kill_with_arena(directory: Path, *, fallback: bool, early: bool) -> None:
    code = ARENA.format(fallback=fallback, early=early, directory=str(directory))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        process.send_signal(signal.SIGKILL)
