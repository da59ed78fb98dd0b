"""What the jobs of trainers load, and how they write down what they were given."""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import headrace as hr
from headrace.sources.local import FileSource

SAMPLES = 25
"""Odd, so that two ranks cannot have equal shares without one sample coming twice."""
BATCH = 4
KINDS = ("dataset", "recipe", "cache", "share")
"""What a loader is made of; "torch" is torch's own, which the others are held against."""


class Numbers(Dataset[Any]):
    """A torch dataset: the index, and what a random transform would draw."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.rand(8), index


class CountingFiles(FileSource):
    """Files; counts how often each was read, by this process or those that it forked."""

    def __init__(self, files: FileSource) -> None:
        self.__dict__.update(files.__dict__)
        self._shared = mmap.mmap(-1, len(files) * 8)
        self.reads = np.frombuffer(self._shared, np.int64)

    def read_many(self, indices: Any) -> list[bytes | BaseException]:
        """See ``FileSource``."""
        np.add.at(self.reads, np.asarray(indices), 1)
        return super().read_many(indices)


class Data:
    """One kind of loader, over the pictures in ``folder``."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        paths = sorted(folder.glob("*.jpg"))
        assert len(paths) == SAMPLES
        self.source = CountingFiles(hr.files(paths, range(SAMPLES)))

    @property
    def recipe(self) -> hr.Recipe:
        """Crops that hardly ever come twice."""
        return hr.Recipe(
            self.source,
            decode=hr.image.decode(),
            augment=[
                hr.image.random_resized_crop(24, scale=(0.2, 1.0)),
                hr.image.color_jitter(0.5, 0.5),
                hr.image.normalize((0.5,) * 3, (0.25,) * 3),
            ],
        )

    def loader(self, **options: Any) -> Any:
        """A loader of this kind. ``seed`` is left out where torch's loader has none."""
        options = {"batch_size": BATCH, "num_workers": 0, **options}
        if self.kind == "torch":
            return DataLoader(
                Numbers(), **{k: v for k, v in options.items() if k not in ("seed", "rank", "world_size")}
            )
        if self.kind == "dataset":
            return hr.DataLoader(Numbers(), **options)
        if self.kind == "recipe":
            return hr.DataLoader(self.recipe, **options)
        if self.kind == "cache":
            return hr.DataLoader(self.recipe, cache="16MiB", split=(0, 1, 0), **options)
        # One worker at least: a loader that shares and has none fills the cache only as it goes.
        options["num_workers"] = max(1, options["num_workers"])
        return hr.DataLoader(self.recipe, share=True, cache="16MiB", **options)


class Log:
    """What one rank was given, epoch by epoch."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.epochs: dict[int, list[tuple[int, int]]] = {}
        self.notes: dict[str, Any] = {}

    def batch(self, epoch: int, batch: Iterable[Any]) -> None:
        """A batch of ``epoch``."""
        values, numbers = batch
        rows = self.epochs.setdefault(epoch, [])
        for value, number in zip(values, numbers, strict=True):
            rows.append((int(number), zlib.crc32(value.numpy().tobytes())))

    def write(self, path: Path) -> None:
        """For those who look at it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        reads = self.data.source.reads.tolist()
        path.write_text(json.dumps({"epochs": self.epochs, "reads": reads, "notes": self.notes}))


Case = Callable[[Data, Log], None]


def run_cases(cases: dict[str, Case], kinds: Iterable[str], folder: Path, out: Path, rank: int) -> None:
    """Run each case over each kind; what goes wrong is written down, too."""
    import traceback

    for name, case in cases.items():
        for kind in kinds:
            data = Data(kind, folder)
            log = Log(data)
            torch.manual_seed(1000 + rank)  # what ranks draw is not to be alike
            try:
                case(data, log)
            except Exception:
                log.notes["error"] = traceback.format_exc()
            log.write(out / name / kind / f"{rank}.json")
