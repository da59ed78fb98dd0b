"""Processes that die at any point: nothing is served wrong, nothing is left over, the quota is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.datastore import dying, killing
from tests.datastore.archives import tar
from tests.datastore.server import Web

REPO = Path(__file__).parents[2]


def run(program: str, root: Path, server: Web, *arguments: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.datastore.{program}", str(root), server.url(""), *map(str, arguments)],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kill(root: Path, server: Web, kills: int, seed: int) -> str:
    server.files.update(killing.served())
    server.pause = 0.001
    return run("killing", root, server, kills, seed)


def die(root: Path, server: Web, every: int) -> int:
    server.files.update({f"{name}.tar": tar(dying.expected(name)) for name in ("old", "new")})
    return int(run("dying", root, server, every).split()[0])


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_kills(seed: int, root: Path, server: Web) -> None:
    assert "'kills': 8" in kill(root, server, 8, seed)


@pytest.mark.faults
@pytest.mark.slow
def test_a_death_at_some_steps(root: Path, server: Web) -> None:
    assert die(root, server, 17) > 10


@pytest.mark.slow
@pytest.mark.faults
def test_many_kills(root: Path, server: Web) -> None:
    assert "'kills': 100" in kill(root, server, 100, 7)


@pytest.mark.slow
@pytest.mark.faults
def test_a_death_at_every_step(root: Path, server: Web) -> None:
    assert die(root, server, 1) > 200
