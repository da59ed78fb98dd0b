"""A measured process leaves nothing behind, and nobody else is harmed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from benchmarks.common.rounds import _Seen, run_process
from benchmarks.common.tree import adopt_orphans

OUTLIVED = """
import subprocess, sys
nothing = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **nothing)
print('{"child": %d}' % child.pid)
"""


@pytest.fixture(autouse=True)
def _no_orphans_stay() -> Iterator[None]:
    yield
    adopt_orphans(False)


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as made:
        yield made
        made.kill()


def test_what_outlives_the_measured_process_is_ended(
    tmp_path: Path, neighbour: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Seen.end, "__defaults__", (0.5,))
    found = run_process([sys.executable, "-c", OUTLIVED], tmp_path, {}, 60)
    assert not psutil.pid_exists(found["child"])
    assert neighbour.poll() is None, "it was there before"
