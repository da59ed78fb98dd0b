"""Jobs that share need not have asked for the same cache: what others cached has to fit them all the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import headrace as hr
from headrace.host import control


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A few images, and a host of the test's own."""
    draw = np.random.default_rng(0)
    for number in range(32):
        path = tmp_path / f"class_{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), draw.integers(0, 255, (48, 64, 3), np.uint8))
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as place:  # a socket's path is short
        monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{place}/run")
        yield tmp_path
        control.stop()


@pytest.mark.parametrize(
    "options", [{"cache": 0}, {"cache": "1MiB", "split": (1, 0, 0)}], ids=["none", "encoded"]
)
def test_a_job_that_asked_for_no_decoded_cache_takes_what_others_decoded(
    pictures: Path, options: dict[str, Any]
) -> None:
    recipe = hr.Recipe(
        source=hr.folder(pictures), decode=hr.image.decode(), augment=[hr.image.random_resized_crop(16)]
    )
    common: dict[str, Any] = {"batch_size": 8, "shuffle": True, "share": True, "num_workers": 1}
    with hr.DataLoader(recipe, cache="8MiB", **common) as one:
        for _ in range(2):
            assert sum(len(labels) for _, labels in one) == 32
        with hr.DataLoader(recipe, sampling="uniform", seed=0, **options, **common) as two:
            assert sum(len(labels) for _, labels in two) == 32
            assert two.stats().cache["decoded"].hits > 0
