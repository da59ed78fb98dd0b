"""torch's DataLoader with a DistributedSampler, over the dataset that its users write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.common.contenders import touch
from benchmarks.ranks.contenders import Setup
from benchmarks.ranks.contenders.images import LIBRARIES, crop
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

USUAL = 4


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Reads, decodes and crops one sample."""

    def __init__(self, setup: Setup) -> None:
        self._storage, self._size = setup.storage(), setup.size

    def __len__(self) -> int:
        return len(self._storage)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = crop(self._storage.read(index), self._size, random)
        return torch.from_numpy(image), int(self._storage.labels[index])


class TorchLoader:
    """A DataLoader for one rank."""

    def __init__(self, setup: Setup, workers: int) -> None:
        dataset = Pictures(setup)
        sampler: Any = DistributedSampler(dataset, setup.ranks, setup.rank, seed=setup.seed)
        self._workers = workers
        self._loader = DataLoader(
            dataset,
            batch_size=setup.batch,
            sampler=sampler,
            drop_last=True,
            num_workers=workers,
            persistent_workers=True,
        )

    def batches(self) -> Iterator[int]:
        """See ``Contender``."""
        for images, _labels in self._loader:
            yield touch(images)

    def told(self) -> dict[str, Any]:
        """See ``Contender``."""
        return {"workers": self._workers, "libraries": LIBRARIES}

    def close(self) -> None:
        """See ``Contender``."""
        del self._loader


def open_few(setup: Setup) -> TorchLoader:
    """As many workers in all as there are CPUs, but one for each rank."""
    return TorchLoader(setup, setup.workers or setup.cpus)


def open_four(setup: Setup) -> TorchLoader:
    """Four for each rank, as is usual."""
    return TorchLoader(setup, setup.workers or USUAL)
