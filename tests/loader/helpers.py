"""Recipes and datasets that the loader's tests share."""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

import headrace as hr
from headrace.sources.simulated import SyntheticSource


def recipe(size: int = 40, shape: tuple[int, ...] = (4, 5, 3), **options: Any) -> hr.Recipe:
    """Synthetic samples; the target of each is its index."""
    return hr.Recipe(
        hr.synthetic.source(size, shape=shape, classes=size, **options), decode=hr.synthetic.decode()
    )


def jpeg_folder(root: Path, count: int = 24, classes: int = 3, size: int = 48) -> Path:
    """Smooth noise as JPEG files of varying height and width, class by class."""
    noise = np.random.default_rng(7)
    for number in range(count):
        folder = root / f"class-{number % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        small = noise.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        height, width = size + number % 5, size + number % 7
        assert cv2.imwrite(str(folder / f"{number:03}.jpg"), cv2.resize(small, (width, height)))
    return root


def images(root: Path, **options: Any) -> hr.Recipe:
    """Images with random steps, to float tensors."""
    return hr.Recipe(
        source=hr.folder(root),
        decode=hr.image.decode(),
        augment=[
            hr.image.random_resized_crop(32),
            hr.image.horizontal_flip(),
            hr.image.normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ],
        **options,
    )


def index_of(data: bytes) -> int:
    """The index that a synthetic sample's bytes start with."""
    return int.from_bytes(data[:8], "little")


def drain(loader: Iterable[Any]) -> list[list[torch.Tensor]]:
    """All batches of one epoch, copied."""
    return [[tensor.clone() for tensor in batch] for batch in loader]


def targets(loader: Iterable[Any]) -> list[list[int]]:
    """The targets of one epoch, batch by batch."""
    return [batch[1].tolist() for batch in loader]


def flat(batches: Iterable[Sequence[int]]) -> list[int]:
    """Batches one after the other."""
    return [item for batch in batches for item in batch]


def assert_same(ours: list[list[torch.Tensor]], theirs: list[list[torch.Tensor]]) -> None:
    """Equal bit for bit: values, dtypes, shapes and strides."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert torch.equal(a, b)


class CountingSource(SyntheticSource):
    """Synthetic samples; counts how often each was read, in whichever process."""

    def __init__(self, size: int, shape: tuple[int, ...] = (4, 5, 3)) -> None:
        bytes_each = int(np.prod(shape))
        super().__init__(size, bytes_each, bytes_each, shape, 0.0, None, size)
        self._shared = mmap.mmap(-1, size * 8)
        self.reads = np.frombuffer(self._shared, np.int64)

    def read_many(self, indices: Any) -> list[bytes | BaseException]:
        for index in indices:
            self.reads[int(index)] += 1
        return super().read_many(indices)


def counting(size: int = 40, **options: Any) -> tuple[hr.Recipe, CountingSource]:
    """A recipe whose reads are counted."""
    source = CountingSource(size, **options)
    return hr.Recipe(source, decode=hr.synthetic.decode()), source


class Squares(Dataset[Any]):
    """A torch dataset of numbers."""

    def __init__(self, size: int = 20) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index * index, index


def descendants() -> list[int]:
    """Pids of processes below this one that are not over, but for the two that multiprocessing keeps for itself, and
    the S3 server that tests of buckets share."""
    found, waiting = [], [os.getpid()]
    while waiting:
        parent = waiting.pop()
        for children in glob.glob(f"/proc/{parent}/task/*/children"):
            with contextlib.suppress(OSError):
                waiting += [int(pid) for pid in Path(children).read_text().split()]
        if parent != os.getpid() and not _own_helper(parent):
            found.append(parent)
    return found


def _own_helper(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    own = (b"forkserver", b"resource_tracker", b"weed\0server\0-s3")
    return command == b"" or any(part in command for part in own)


def wait_until(condition: Any, seconds: float = 30.0, every: float = 0.01) -> bool:
    """Whether ``condition()`` came true in a generous time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def is_dead(pid: int) -> bool:
    """Whether a process has ended, even if nobody has asked for its status: a signal only says that it will."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill(pid: int, sign: int = signal.SIGKILL) -> None:
    """End a process, and wait until it has."""
    os.kill(pid, sign)
    assert wait_until(lambda: is_dead(pid))
