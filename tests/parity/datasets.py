"""Datasets, samples and functions shared by the parity tests.

All of them are at module level, so that workers started with ``spawn`` can import them.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Mapped(Dataset[Any]):
    """A map-style dataset that holds ``sample(i)`` for every ``i`` below ``size``."""

    def __init__(self, sample: Callable[[int], Any], size: int) -> None:
        self.sample = sample
        self.size = size

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is outside of {self.size} samples")
        return self.sample(index)

    def __len__(self) -> int:
        return self.size


class Numbers(Dataset[int]):
    """The integers below ``size``, each plus ``offset``, which a test may change between epochs."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self.size = size
        self.offset = offset

    def __getitem__(self, index: int) -> int:
        return index + self.offset

    def __len__(self) -> int:
        return self.size


class Keyed(Dataset[Any]):
    """A dataset whose keys are whatever its dictionary has; it knows no length."""

    def __init__(self, items: dict[Any, Any]) -> None:
        self.items = items

    def __getitem__(self, key: Any) -> Any:
        return self.items[key]


class Batched(Dataset[Any]):
    """A dataset that fetches many samples in one call and says so in each sample."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, index: int) -> tuple[int, str]:
        return index, "one"

    def __getitems__(self, indices: list[int]) -> list[tuple[int, str]]:
        return [(index, f"{type(indices).__name__} of {len(indices)}") for index in indices]

    def __len__(self) -> int:
        return self.size


class Failing(Dataset[int]):
    """Numbers, but the samples in ``errors`` raise what is given there."""

    def __init__(self, size: int, errors: dict[int, Callable[[], BaseException]]) -> None:
        self.size = size
        self.errors = errors

    def __getitem__(self, index: int) -> int:
        if index in self.errors:
            raise self.errors[index]()
        return index

    def __len__(self) -> int:
        return self.size


class Whereabouts(Dataset[dict[str, Any]]):
    """Each sample tells in which process and thread it was made and what the worker knows of itself.

    Which worker makes which batch is the loader's business. Where a test needs all of them to take part, it
    names a ``meeting``, a folder in which no sample is made before ``workers`` processes have come.
    """

    def __init__(self, size: int, meeting: Path | None = None, workers: int = 0) -> None:
        self.size = size
        self.meeting = meeting
        self.workers = workers

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.meeting is not None:
            self.meeting.mkdir(exist_ok=True)
            (self.meeting / str(os.getpid())).touch()
            folder = self.meeting
            wait_until(lambda: len(list(folder.iterdir())) >= self.workers)
        return whereabouts(self)

    def __len__(self) -> int:
        return self.size


def wait_until(reached: Callable[[], bool]) -> None:
    """Wait for something that another process does; raise when it does not."""
    deadline = time.monotonic() + 30
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError("what this sample waits for never came")
        time.sleep(0.005)


def whereabouts(dataset: Any) -> dict[str, Any]:
    """Describe the calling process as user code sees it."""
    info = get_worker_info()
    return {
        "pid": os.getpid(),
        "thread": threading.get_ident(),
        "torch_threads": torch.get_num_threads(),
        "torch_seed": torch.initial_seed(),
        "info": None
        if info is None
        else {
            "id": info.id,
            "num_workers": info.num_workers,
            "seed": info.seed,
            "dataset": info.dataset is dataset,
        },
        "same_by_module": torch.utils.data.get_worker_info() is info,
    }


class Noisy(Dataset[Any]):
    """Each sample draws from the three global random generators, as augmentations do."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.random()), torch.rand(()).item()

    def __len__(self) -> int:
        return self.size


class Gate(Dataset[int]):
    """Sample ``closed`` waits until a file exists; sample ``opener``, where there is one, creates it."""

    def __init__(self, size: int, file: Path, closed: int, opener: int | None = None) -> None:
        self.size = size
        self.file = file
        self.closed = closed
        self.opener = opener

    def __getitem__(self, index: int) -> int:
        if index == self.opener:
            self.file.touch()
        if index == self.closed:
            wait_until(self.file.exists)
        return index

    def __len__(self) -> int:
        return self.size


class Stream(IterableDataset[int]):
    """The integers in ``[start, stop)``; with ``shard`` each worker takes every n-th of them."""

    def __init__(self, stop: int, start: int = 0, *, shard: bool = False, length: int | None = None) -> None:
        self.start = start
        self.stop = stop
        self.shard = shard
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if self.shard and info is not None:
            return iter(range(self.start + info.id, self.stop, info.num_workers))
        return iter(range(self.start, self.stop))

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("this stream has no length")
        return self.length


class Lopsided(IterableDataset[int]):
    """Worker ``i`` has ``sizes[i]`` samples: 100 * i, 100 * i + 1, ..."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter(range(100 * worker, 100 * worker + self.sizes[worker]))


def split_stream(worker_id: int) -> None:
    """A ``worker_init_fn`` that gives each worker its consecutive part of a Stream."""
    info = get_worker_info()
    assert info is not None
    stream = info.dataset
    assert isinstance(stream, Stream)
    share = -(-(stream.stop - stream.start) // info.num_workers)
    first = stream.start + worker_id * share
    stream.start, stream.stop = first, min(first + share, stream.stop)


class Pair(NamedTuple):
    """A named tuple in a sample."""

    left: Any
    right: Any


class Tagged(dict[str, Any]):
    """A dictionary that carries more than its items."""

    tag = "none"


class TaggedList(list[Any]):
    """A list that carries more than its items."""

    tag = "none"


@dataclass
class Sentence:
    """A sample that only its own collate function understands."""

    words: list[str]
    ids: torch.Tensor


@dataclass
class Sentences:
    """A batch of a type of its own."""

    words: list[list[str]]
    ids: torch.Tensor
    lengths: torch.Tensor
    pinned: bool = False

    def pin_memory(self) -> "Sentences":
        """Answer to the loader's pinning of custom batches."""
        self.pinned = True
        return self


def sentence(index: int) -> Sentence:
    """Return a sample whose size depends on its index."""
    return Sentence([f"w{index}"] * (index % 4 + 1), torch.arange(index % 4 + 1) + index)


def collate_sentences(samples: list[Sentence]) -> Sentences:
    """Pad the ids of a batch to one length."""
    ids = torch.nn.utils.rnn.pad_sequence([s.ids for s in samples], batch_first=True, padding_value=-1)
    return Sentences([s.words for s in samples], ids, torch.tensor([len(s.words) for s in samples]))


def identity(samples: Any) -> Any:
    """A collate function that leaves the list of samples as it is."""
    return samples


# What a process that was not forked from the tests cannot have inherited.
inherited = "imported"


def read_inherited(index: int) -> tuple[int, str, int]:
    """Tell whether this process inherited the memory of the one that iterates."""
    return index, inherited, os.getpid()
