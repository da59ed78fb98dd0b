"""torch's DataLoader over a dataset that reads objects with s3fs, a whole batch at once.

With a cache the dataset keeps what it has read as local files, without a limit on their bytes. (fsspec's own caches
do the same with two requests for each object.)
"""

from __future__ import annotations

import os
from typing import Any

import fsspec
import torch
from benchmarks.bucket.contenders import Iterated, Setup, number_of
from benchmarks.bucket.contenders.work import prepare, start_worker
from torch.utils.data import DataLoader, Dataset

AT_ONCE = 32
"""Reads that a worker has in flight."""


class Objects(Dataset[tuple[torch.Tensor, int]]):
    """Map-style. ``__getitems__`` is what DataLoader calls with the indices of a batch where a dataset has it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.keys = sorted(self.open_files().find(setup.bucket.removeprefix("s3://") + "/train"))
        self.files: Any = None
        self.owner = 0

    def open_files(self) -> Any:
        """The file system. One concurrent read per object, because more ask for its size first."""
        options = {"endpoint_url": self.setup.endpoint, "max_concurrency": 1, "use_listings_cache": False}
        return fsspec.filesystem("s3", skip_instance_cache=True, **options)

    def read(self, keys: list[str]) -> list[bytes]:
        """Many objects; the file system belongs to the process that opened it."""
        if self.owner != os.getpid():
            self.files, self.owner = self.open_files(), os.getpid()
        if not self.setup.cache_bytes:
            found = self.files.cat(keys, batch_size=AT_ONCE)
            return [found[key] for key in keys]
        places = {key: self.setup.cache / key.replace("/", "+") for key in keys}
        todo = [key for key, place in places.items() if not place.exists()]
        found = self.files.cat(todo, batch_size=AT_ONCE) if todo else {}
        for key, content in found.items():
            partial = places[key].with_suffix(f".{self.owner}")
            partial.write_bytes(content)
            partial.rename(places[key])
        return [found[key] if key in found else places[key].read_bytes() for key in keys]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        keys = [self.keys[index] for index in indices]
        pairs = zip(keys, self.read(keys), strict=True)
        return [(prepare(content, self.setup.size), number_of(key)) for key, content in pairs]


class S3FSLoader(Iterated):
    """The loader."""

    def __init__(self, setup: Setup) -> None:
        self.loader = DataLoader(
            Objects(setup),
            batch_size=setup.batch,
            shuffle=True,
            num_workers=setup.workers,
            persistent_workers=True,
            worker_init_fn=start_worker,
        )


def open_loader(setup: Setup) -> S3FSLoader:
    """The loader."""
    return S3FSLoader(setup)
