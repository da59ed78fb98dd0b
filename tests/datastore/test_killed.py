"""Processes that die at any point: nothing is served wrong, nothing is left over, the quota is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.datastore import killing
from tests.datastore.server import Web

REPO = Path(__file__).parents[2]


def run(root: Path, server: Web, kills: int, seed: int) -> str:
    server.files.update(killing.served())
    server.pause = 0.001
    done = subprocess.run(
        [sys.executable, "-m", "tests.datastore.killing", str(root), server.url(""), str(kills), str(seed)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_kills(seed: int, root: Path, server: Web) -> None:
    assert "'kills': 8" in run(root, server, 8, seed)


@pytest.mark.slow
@pytest.mark.faults
def test_many_kills(root: Path, server: Web) -> None:
    assert "'kills': 100" in run(root, server, 100, 7)
