"""A headrace cluster on a real Ray cluster of three nodes: jobs on each, and what comes of losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import write_photos

REPO = Path(__file__).resolve().parents[2]
PHOTOS = 90

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def drive(what: str, folder: Path, runtime: Path) -> Any:
    """Run the driver; what it found."""
    runtime.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "HEADRACE_RUNTIME_DIR": str(runtime),
        "HEADRACE_RECORD": "0",
        "HEADRACE_PROFILES": "0",
        "PYTHONPATH": f"{REPO / 'src'}:{REPO}",
        "RAY_DEDUP_LOGS": "0",
    }
    command = [sys.executable, "-m", "tests.cluster.ray_driver", what, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, PHOTOS)
    return folder


def test_jobs_on_all_nodes_read_storage_once(photos: Path, tmp_path: Path) -> None:
    found = drive("jobs", photos, tmp_path / "run")
    assert found["nodes"] == 3
    assert found["fetched"] == PHOTOS == sum(found["held"])
    for job in found["jobs"]:
        assert all(job["exact"]), job
        nodes, samples, helped = job["pool"]
        assert nodes == 3 and samples + helped > 0
        assert "cluster     " in job["text"]
    # (those that found the cluster by themselves share nothing else: every sample came from there, in both epochs, or
    # was prepared by helpers, which read by way of it)
    assert all(job["pool"][1] + job["pool"][2] >= 2 * PHOTOS for job in found["jobs"][1:])
    assert found["commands"] == [3, 0, 0, 0, 3], "status, start, status, stop, status"
    assert "3, with 192.0 MiB together" in found["said"] and "from storage" in found["said"]


def test_a_server_the_manager_and_a_node_are_lost(photos: Path, tmp_path: Path) -> None:
    found = drive("kills", photos, tmp_path / "run")
    job = found.pop("job")
    assert found.pop("again") is False
    assert all(found.values()), found
    assert len(job["exact"]) >= 6 and all(job["exact"]), job
    assert job["pool"][1] + job["pool"][2] > len(job["exact"]) * PHOTOS // 2, (
        "most samples came from the cluster all the same"
    )


def test_ports_that_a_firewall_leaves_open(photos: Path, tmp_path: Path) -> None:
    found = drive("ports", photos, tmp_path / "run")
    assert found["commands"] == [0, 0, 0, 1, 1], (
        "start, again, stop, where nothing is free, where too little is"
    )
    assert len(set(found["used"])) == 6, "three servers and a helper of each"
    assert all(0 <= port - found["first"] < 12 for port in found["used"])
    assert "was running already" in found["said"]
    assert "0 of 3 nodes have a server" in found["said"] and "none of them is free on" in found["said"]
    assert found["left"] is False, "nothing is left of what could not start"
    assert "2 of 3 nodes have a server" in found["said"] and "they are tried again" in found["said"]
    assert found["back"], "once there is a port"


def test_a_start_that_does_not_come_to_its_end(photos: Path, tmp_path: Path) -> None:
    found = drive("interrupts", photos, tmp_path / "run")
    assert found["ctrl-c"].startswith("KeyboardInterrupt") and found["left after ctrl-c"] == []
    assert "was stopped while it was being started" in found["stop"] and found["left after stop"] == []
