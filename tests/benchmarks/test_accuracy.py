"""The accuracy benchmark: when accuracies count as equal, and pictures that are carried to another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.accuracy import bench, data
from benchmarks.accuracy.network import resnet18
from PIL import Image


def runs(torch_: list[float], ours: list[float]) -> dict[str, list[Any]]:
    return {"torch": [{"accuracy": one} for one in torch_], "headrace": [{"accuracy": one} for one in ours]}


@pytest.mark.parametrize(
    ("theirs", "ours", "met"),
    [
        ([90.0, 90.1, 90.2], [90.3, 90.4, 90.5], True),  # less than half a point
        ([90.0, 90.1, 90.2], [90.8, 90.9, 91.0], False),
        ([88.0, 90.0, 92.0], [90.0, 92.0, 94.0], True),  # 2 points, but the standard error is 1.6
    ],
)
def test_accuracies_are_equal_within_noise(theirs: list[float], ours: list[float], met: bool) -> None:
    found = bench.compare(runs(theirs, ours))
    assert found.met is met
    assert found.value == pytest.approx(abs(np.mean(theirs) - np.mean(ours)))
    assert bench.compare(runs(ours, theirs)).met is met


def test_runs_that_failed_are_no_result() -> None:
    failed = runs([90.0, 91.0], [])
    failed["headrace"] = ["it failed", {"accuracy": 90.0}]
    assert bench.compare(failed).value is None


def test_pictures_that_were_packed_are_written_by_class(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 6), ("test", 3)):
        arrays[f"{part}_images"] = draw.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = np.arange(count, dtype=np.uint8)
    data.pack(arrays, tmp_path / "pack.npz")
    found = data.packed(tmp_path / "pack.npz", (4, 2))
    assert [len(found[f"{part}_labels"]) for part in data.PARTS] == [4, 2]
    data.write(found, tmp_path / "out", side=56)
    files = sorted(
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.jpg")
    )
    assert files == sorted(
        f"{part}/{data.NAMES[at]}/{at:05d}.jpg"
        for part, count in (("train", 4), ("test", 2))
        for at in range(count)
    )
    with Image.open(tmp_path / "out" / files[0]) as image:
        assert (image.size, image.mode) == ((56, 56), "RGB")


def test_the_network_has_the_papers_layers() -> None:
    network = resnet18(1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == 11_689_512
    assert resnet18(10, width=8)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
