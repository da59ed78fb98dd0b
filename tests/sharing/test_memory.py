"""What the shared cache takes of the machine's memory, whatever the sizes of samples."""

from __future__ import annotations

import gc
import os
import re
import struct
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.core.sparse import resident
from headrace.host import control
from tests.loader.helpers import wait_until

COUNT, MEAN = 400, 150_000
MIB = 1 << 20


class Unequal:
    """Samples whose decoded sizes differ a hundredfold; each says its number and its size."""

    def __init__(self, path: Path) -> None:
        draw = np.random.default_rng(3)
        self.sizes = np.clip(MEAN * np.exp(draw.standard_normal(COUNT)), 4096, 4 * MIB).astype(int)
        self.paths = []
        for at, size in enumerate(self.sizes.tolist()):
            self.paths.append(str(path / f"{at:04d}"))
            Path(self.paths[-1]).write_bytes(struct.pack("<qq", at, size))

    def recipe(self) -> hr.Recipe:
        """Of these samples."""
        source = hr.files(self.paths, targets=list(range(COUNT)))
        return hr.Recipe(source, decode=decode, augment=[head])


def decode(data: Any) -> np.ndarray[Any, Any]:
    """An array of the size that the sample names, full of its number."""
    at, size = struct.unpack("<qq", bytes(data))
    return np.full(size // 8, at, np.int64)


def head(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The beginning and the end of a sample."""
    return value[[0, 1, -1]]


def held(pid: int) -> int:
    """Bytes of memory that a host's cache takes."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{name}"
        if "headrace-cache" in os.readlink(link):
            fd = os.open(link, os.O_RDONLY)
            try:
                return resident(fd)
            finally:
                os.close(fd)
    raise AssertionError("it has no cache")


@pytest.mark.parametrize("eviction", ["auto", "lru"])
@pytest.mark.slow
def test_samples_of_all_sizes_fill_the_budget_and_no_more(place: Path, tmp_path: Path, eviction: str) -> None:
    samples = Unequal(tmp_path)
    budget = int(samples.sizes.sum()) // 3
    options: dict[str, Any] = {"split": (0, 1, 0), "num_workers": 1, "eviction": eviction}
    with hr.DataLoader(
        samples.recipe(), batch_size=16, shuffle=True, share=True, cache=budget, **options
    ) as loader:
        for _ in range(4):
            seen = []
            for values, targets in loader:
                assert (values.numpy() == targets.numpy()[:, None]).all()
                seen += targets.tolist()
            assert sorted(seen) == list(range(COUNT))
        status = control.status()
        assert status is not None
        assert 0.8 * budget <= status.memory.used <= budget
        # Blocks that batches ahead may fill still hold what was in them before.
        assert wait_until(lambda: held(status.pid) <= 1.25 * budget, 20), (held(status.pid), budget)
        assert loader.stats().hits > 0
    assert wait_until(lambda: held(status.pid) <= 1.05 * budget, 20), (held(status.pid), budget)


ROWS, ROW = 4000, (32, 32, 3)


def jitter(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An augmentation, so that there are instances of another size than decoded samples."""
    return value + np.uint8(np.random.randint(0, 3))


@pytest.mark.slow
def test_samples_smaller_than_a_page_fill_the_budget_and_no_more(place: Path) -> None:
    """Two jobs over rows as of CIFAR: instances come and go between decoded samples, and pages are shared."""
    recipe = hr.Recipe(hr.synthetic.source(ROWS, shape=ROW), hr.synthetic.decode(), [jitter])
    budget = 4 * MIB
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "share": True, "cache": budget}
    with (
        hr.DataLoader(recipe, num_workers=1, **options) as first,
        hr.DataLoader(recipe, num_workers=1, **options) as second,
    ):
        most = 0
        for _ in range(2):
            for _ in zip(first, second, strict=True):
                pass
            status = control.status()
            assert status is not None and status.memory.used <= budget
            most = max(most, status.memory.used)
            # What is free stays for others to fill, up to a little more than the budget.
            assert wait_until(lambda pid=status.pid: held(pid) <= budget + budget // 32, 10)
    assert most > 0.5 * budget


def what_is_held() -> Counter[str]:
    """Threads of this process, its descriptors, and what it has mapped of memory that is shared."""
    gc.collect()
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself
            descriptors.append(re.sub(r"\d+", "*", os.readlink(f"/proc/self/fd/{name}")))
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split(maxsplit=5)[5] for line in lines if "headrace" in line and " rw-s " in line]
    return Counter([f"thread {one.name}" for one in threading.enumerate()] + descriptors + mapped)


@pytest.mark.parametrize("options", [{"share": True}, {"cache": "8MiB"}, {}], ids=["shared", "own", "none"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_closed_loader_leaves_nothing_behind(place: Path, options: dict[str, Any], workers: int) -> None:
    """No thread, no descriptor and no mapping in the job's process, however many loaders there were."""

    def use() -> None:
        recipe = hr.Recipe(hr.synthetic.source(40, shape=(64,)), hr.synthetic.decode())
        with hr.DataLoader(recipe, batch_size=8, shuffle=True, num_workers=workers, **options) as loader:
            assert sum(len(batch) for batch in loader) == 40

    use()
    before = what_is_held()
    for _ in range(20 if workers == 0 else 3):
        use()
    # (what tests before have left may end meanwhile)
    assert wait_until(lambda: what_is_held() <= before, 10), what_is_held() - before
