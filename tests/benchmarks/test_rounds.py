"""A measured process leaves nothing behind, and nobody else is harmed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from benchmarks.common import rounds, tree
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


@pytest.mark.parametrize("shares", [[0.05], [0.3, 0.05], [0.3, 0.5, 0.2], [0.5, 0.2, 0.4]])
def test_what_others_disturbed_is_measured_again_and_the_best_run_counts(
    monkeypatch: pytest.MonkeyPatch, shares: list[float]
) -> None:
    clock, stolen, done, told = 0.0, 0.0, [], []

    def measure() -> dict[str, float]:
        nonlocal clock, stolen
        clock, stolen = clock + 10.0, stolen + 10.0 * shares[len(done)]
        done.append(len(done))
        return {"number": done[-1]}

    monkeypatch.setattr(rounds, "stolen_cpu", lambda: (stolen, clock))
    monkeypatch.setattr(tree, "stolen_cpu", lambda: (stolen, clock))
    run = rounds.least_stolen(measure, 3, told.append)
    assert run is not None and run["number"] == shares.index(min(shares))
    assert len(done) == len(shares) and told == pytest.approx(shares[:-1])
    assert rounds.least_stolen(lambda: None, 3, told.append) is None
