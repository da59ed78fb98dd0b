"""``headrace data``, as a user calls it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from tests.datastore.archives import read_tree, some_files, tar
from tests.datastore.server import Web, web

REPO = Path(__file__).parents[2]
PART = 8 << 20


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "2")


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as running:
        running.files["flowers.tar.gz"] = tar(some_files(), "w:gz")
        yield running


def data(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    """What it prints, to its output and to where errors go."""
    assert main(["data", *arguments]) == status
    return capsys.readouterr()


def test_a_dataset_from_its_first_day_to_its_last(
    capsys: pytest.CaptureFixture[str], server: Web, tmp_path: Path
) -> None:
    folder = tmp_path / "store" / "datasets" / "flowers"
    out, err = data(capsys, "add", server.url("flowers.tar.gz"), "--name", "flowers")
    assert out == f"flowers: 88.0 KiB in 12 files, {folder}\n"
    assert re.fullmatch(r"flowers: 3\d\.\d KiB to fetch\n", err)
    assert data(capsys, "path", "flowers") == (f"{folder}\n", "")
    assert read_tree(folder) == some_files()
    out, _ = data(capsys, "list")
    assert re.search(r"^88\.0 KiB of .* in .*/store$", out, re.MULTILINE)
    assert re.search(r"^flowers +here +88\.0 KiB +12 +\d+ s ago +0 s +- ", out, re.MULTILINE)
    assert data(capsys, "pin", "flowers")[0] == "flowers stays\n"
    assert "here, pinned" in data(capsys, "list")[0]
    _, err = data(capsys, "evict", "flowers", status=1)
    assert err == "headrace: 'flowers' is pinned; first: headrace data unpin flowers\n"
    data(capsys, "unpin", "flowers")
    assert data(capsys, "verify")[0] == "flowers: 12 files, 88.0 KiB: whole\n"
    assert "88.0 KiB are free" in data(capsys, "evict", "flowers")[0]
    assert not folder.exists()
    assert re.search(r"^flowers +evicted ", data(capsys, "list")[0], re.MULTILINE)
    out, err = data(capsys, "path", "flowers")
    assert out == f"{folder}\n" and "to fetch" in err and read_tree(folder) == some_files()
    assert data(capsys, "remove", "flowers")[0] == "flowers is removed: 88.0 KiB are free\n"
    assert "flowers" not in data(capsys, "list")[0]


def test_the_list_as_json_has_every_number(capsys: pytest.CaptureFixture[str], server: Web) -> None:
    data(capsys, "add", server.url("flowers.tar.gz"), "--name", "flowers", "--pin")
    found = json.loads(data(capsys, "list", "--json")[0])
    (one,) = found["datasets"]
    assert one["name"] == "flowers" and one["state"] == "here" and one["pinned"] and one["files"] == 12
    assert found["bytes"] == one["bytes"] <= found["quota"]


def test_damage_is_named_and_repaired(
    capsys: pytest.CaptureFixture[str], server: Web, tmp_path: Path
) -> None:
    data(capsys, "add", server.url("flowers.tar.gz"), "--name", "flowers")
    broken = tmp_path / "store" / "datasets" / "flowers" / "class_1" / "0001.bin"
    broken.chmod(0o644)
    broken.write_bytes(bytes(broken.stat().st_size))
    out, err = data(capsys, "verify", "flowers", status=1)
    assert "1 damaged\n  class_1/0001.bin: its bytes have changed" in out and "--repair" in err
    assert "repaired" in data(capsys, "verify", "--repair")[0]
    assert data(capsys, "verify")[0].endswith("whole\n")
    assert "no dataset is called 'tulips'; there are flowers" in data(capsys, "verify", "tulips", status=1)[1]


def test_what_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str], server: Web) -> None:
    assert data(capsys, "quota", "64KiB")[0].startswith("64.0 KiB, of which 0 B are taken, in ")
    _, err = data(capsys, "add", server.url("flowers.tar.gz"), "--name", "flowers", status=1)
    assert "'flowers' needs 9" in err and "headrace data quota 1GiB" in err
    data(capsys, "add", server.url("flowers.tar.gz"), "--name", "flowers", "--quota", "1MiB")
    assert "GiB" in data(capsys, "quota", "auto")[0]
    for wrong, why in (("0", "of no use"), ("much", "is not a size")):
        assert why in data(capsys, "quota", wrong, status=1)[1]


@pytest.mark.parametrize("arguments", [["add", "x"], ["add", "--name", "x"], ["pin"], ["nothing"], []])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", *arguments])
    assert ended.value.code == 2


def test_ctrl_c_says_that_it_can_be_gone_on_with(server: Web, tmp_path: Path) -> None:
    """On a terminal: with a bar, which is wiped away."""
    server.files["big"] = os.urandom(3 * PART)
    server.gate, server.free = threading.Event(), 2 * PART
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "data", "add", server.url("big"), "--name", "big"],
        stderr=theirs,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "120"},
        cwd=REPO,
    )
    os.close(theirs)
    said = b""
    while b"MiB/s, fetching big" not in said:
        said += os.read(ours, 4096)
    command.send_signal(signal.SIGINT)  # it does not wait for the server, which is silent from now on
    try:
        while piece := os.read(ours, 4096):
            said += piece
    except OSError:
        pass  # the terminal is gone
    assert command.wait(60) == 130
    os.close(ours)
    text = said.decode()
    assert "headrace: ended; what has come of big is kept, and the same command goes on from there" in text
    assert "24.0 MiB" in text and "Traceback" not in text
    assert len(list((tmp_path / "store" / "incoming").iterdir())) == 1
