"""Samples of a batch do not pile up beside it."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import headrace as hr

COUNT, SIZE = 96, 32
SIDE = 128


class Living(Dataset[Any]):
    """Says with each sample how many of those before it are still there."""

    def __init__(self, arrays: bool, fail: bool = False) -> None:
        self.arrays, self.fail = arrays, fail
        self.given: list[Any] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.fail and index % 8 == 5:
            raise ValueError("bad")
        self.given = [given for given in self.given if given() is not None]
        alive = len(self.given)
        made: Any = torch.full((SIDE, SIDE), float(index))
        if self.arrays:
            made = np.full((SIDE, SIDE), float(index))
        self.given.append(weakref.ref(made))
        return made, alive, index


class Stream(IterableDataset[Any]):
    """The same, one after the other."""

    def __init__(self) -> None:
        self.samples = Living(False)

    def __iter__(self) -> Any:
        return (self.samples[index] for index in range(COUNT))


@pytest.mark.parametrize("kind", ["tensors", "arrays", "stream", "skip", "substitute"])
def test_samples_go_as_they_come(kind: str) -> None:
    dataset: Any = Stream() if kind == "stream" else Living(kind == "arrays", kind in ("skip", "substitute"))
    on_error = kind if kind in ("skip", "substitute") else "raise"
    seen = []
    with hr.DataLoader(
        dataset, batch_size=SIZE, num_workers=1, on_error=on_error, error_budget=0.5
    ) as loader:
        for images, alive, indices in loader:
            assert torch.equal(images[:, 0, 0].to(torch.int64), indices)
            assert torch.equal(images, images[:, :1, :1].expand_as(images))
            if kind != "stream" or seen:  # (it may be the only batch of a stream)
                assert int(alive.max()) <= SIZE // 16 + 2, "but for the first ones, and the one before"
            seen += indices.tolist()
    good = [index for index in range(COUNT) if on_error == "raise" or index % 8 != 5]
    assert sorted(set(seen)) == good
    assert len(seen) == (len(good) if on_error == "skip" else COUNT)


def shared_memory() -> dict[tuple[int, int], os.stat_result]:
    """All shared memory that this process has open: what it is, and what is known of it."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(("/memfd:", "/dev/shm/")):
                stat = os.stat(f"/proc/self/fd/{name}")
                found[stat.st_dev, stat.st_ino] = stat
    return found


def sums(before: Any, field: str) -> int:
    """Of all that was not there before."""
    return sum(getattr(stat, field) for key, stat in shared_memory().items() if key not in before)


def test_streams_that_end_within_a_batch_leave_nothing() -> None:
    others = shared_memory()
    with hr.DataLoader(
        Stream(), batch_size=SIZE - 1, drop_last=True, num_workers=1, persistent_workers=True
    ) as loader:
        sizes = []
        for _ in range(12):
            assert sum(len(indices) for _, _, indices in loader) == COUNT // (SIZE - 1) * (SIZE - 1)
            sizes.append(sums(others, "st_blocks"))
    assert max(sizes[4:]) <= max(sizes[:4]), "no epoch takes more than the ones before"


def test_a_stream_that_is_shorter_than_a_batch_takes_no_room_for_a_whole_one() -> None:
    others = shared_memory()
    with hr.DataLoader(Stream(), batch_size=8 * COUNT, num_workers=1, persistent_workers=True) as loader:
        for _ in range(3):
            assert [len(indices) for _, _, indices in loader] == [COUNT]
        assert sums(others, "st_size") < 8 * COUNT * SIDE * SIDE * 4
