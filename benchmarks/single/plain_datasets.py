"""Ordinary torch datasets, of the kinds that people have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

SIDE = 224
PIXELS = SIDE * SIDE * 3


class Crops(Dataset[Any]):
    """Images cut out of noise: they cost a copy each, so that what the loader itself costs shows."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.noise = np.random.default_rng(0).integers(0, 256, 4 * PIXELS, np.uint8)

    def __len__(self) -> int:
        return self.count

    def image(self, index: int) -> torch.Tensor:
        """Height, width, channels; uint8."""
        start = index * 7919 % (3 * PIXELS)
        return torch.from_numpy(self.noise[start : start + PIXELS].reshape(SIDE, SIDE, 3).copy())

    def __getitem__(self, index: int) -> Any:
        return self.image(index), index % 10


class FloatCrops(Crops):
    """As a network takes them."""

    def __getitem__(self, index: int) -> Any:
        return self.image(index).permute(2, 0, 1).to(torch.float32).div_(255), index % 10


class Records(FloatCrops):
    """Several fields by name, as for segmentation."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return {
            "image": image,
            "mask": (image[0] > 0.5).to(torch.uint8),
            "label": label,
            "name": f"sample-{index:06d}",
        }


class StreamedCrops(IterableDataset[Any]):
    """One after another; each worker has its share."""

    def __init__(self, count: int) -> None:
        self.crops = Crops(count)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self.crops), step):
            yield self.crops[index]


def _small_tensors(_photos: Path) -> Dataset[Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (16384, 3, 32, 32), np.uint8)
    return TensorDataset(torch.from_numpy(pixels), torch.arange(len(pixels)) % 10)


def _photos(photos: Path) -> Dataset[Any]:
    from benchmarks.common.contenders import Setup
    from benchmarks.single.contenders.datasets import OpenCVPhotos

    return OpenCVPhotos(Setup(photos, photos))


@dataclass(frozen=True)
class Kind:
    """A dataset, and the batches that are made of it."""

    label: str
    batch: int
    make: Callable[[Path], Any]


KINDS = {
    "tensors": Kind("3x32x32 uint8 tensors in memory", 256, _small_tensors),
    "uint8": Kind("224x224x3 uint8 images", 128, lambda _: Crops(4096)),
    "float32": Kind("3x224x224 float32 images", 64, lambda _: FloatCrops(2048)),
    "records": Kind("dicts of image, mask, label, name", 32, lambda _: Records(2048)),
    "stream": Kind("iterable, 224x224x3 uint8 images", 128, lambda _: StreamedCrops(4096)),
    "photos": Kind("JPEG photos, decoded and cropped to 224x224x3 uint8", 128, _photos),
}
