"""Inside Ray Train and Ray Tune a loader finds the cluster without being told."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.data import SAMPLES
from tests.trainers.jobs import pictures, run_job

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(900)]

EVERY = list(range(SAMPLES))
EPOCHS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each worker and each trial wrote down."""
    for package in ("ray", "pydantic"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("out")
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as runtime:  # (a socket's path is short)
        folder = pictures(tmp_path_factory.mktemp("cluster") / "images")
        run_job("cluster_ray", 2, folder, out, Path(runtime, "run"))
    return {path.stem: json.loads(path.read_text()) for path in out.iterdir()}


def from_there(job: dict[str, Any]) -> int:
    """Samples that came from the cluster, as they lie in storage or as rows."""
    nodes, samples, helped = job["pool"]
    assert nodes == 1
    return int(samples + helped)


def test_ranks_of_ray_train_have_their_shares_from_the_cluster(found: dict[str, Any]) -> None:
    one, two = (found[f"own_ranks-{rank}"] for rank in range(2))
    for epoch in range(EPOCHS):
        assert sorted(one["seen"][epoch] + two["seen"][epoch]) == EVERY, "each sample once"
    # (workers may be ahead, into an epoch that nobody asks for)
    assert from_there(one) + from_there(two) >= EPOCHS * SAMPLES


def test_and_those_of_a_prepared_loader(found: dict[str, Any]) -> None:
    one, two = (found[f"prepared-{rank}"] for rank in range(2))
    for epoch in range(EPOCHS):
        assert set(one["seen"][epoch]) | set(two["seen"][epoch]) == set(EVERY)
        assert len(one["seen"][epoch]) == len(two["seen"][epoch]) == -(-SAMPLES // 2), "padded, as torch does"
    assert min(from_there(one), from_there(two)) >= EPOCHS * -(-SAMPLES // 2)


def test_trials_of_ray_tune_read_storage_once_together(found: dict[str, Any]) -> None:
    for trial in range(2):
        job = found[f"trial-{trial}"]
        assert [sorted(epoch) for epoch in job["seen"]] == [EVERY] * EPOCHS
        assert from_there(job) >= EPOCHS * SAMPLES
    assert found["fetched"] == SAMPLES, "whoever asked, and however often"


def test_who_is_told_not_to_does_without(found: dict[str, Any]) -> None:
    one, two = (found[f"told_not_to-{rank}"] for rank in range(2))
    assert one["pool"] is None and two["pool"] is None
    assert all(sorted(one["seen"][epoch] + two["seen"][epoch]) == EVERY for epoch in range(EPOCHS))
