"""FFCV: the photos rewritten into its own file, as JPEG or decoded, and pipelines that numba compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.contenders import Iterated, Setup
from benchmarks.common.photos import QUALITY
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter
from PIL import Image


class _Photos:
    """What FFCV's writer reads."""

    def __init__(self, setup: Setup) -> None:
        self.paths, self.labels = setup.samples()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return Image.open(self.paths[index]).convert("RGB"), self.labels[index]


def dataset_file(setup: Setup, mode: str) -> Path:
    """FFCV's file of the photos in ``mode`` (jpg or raw)."""
    count = len(setup.samples()[0])
    return setup.data / "ffcv" / f"photos-{count}-{mode}.beton"


def prepare(setup: Setup) -> None:
    """Write FFCV's files, unless they are there; not part of any measurement."""
    for mode in ("jpg", "raw"):
        path = dataset_file(setup, mode)
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=QUALITY), "label": IntField()}
        DatasetWriter(str(partial), fields, num_workers=setup.workers).from_indexed_dataset(_Photos(setup))
        partial.rename(path)


class FfcvLoader(Iterated):
    """FFCV's loader over one of the files, mapped from the page cache."""

    def __init__(self, setup: Setup, mode: str) -> None:
        images = [
            RandomResizedCropRGBImageDecoder((setup.size, setup.size)),
            RandomHorizontalFlip(),
            ToTensor(),
        ]
        self.loader = Loader(
            str(dataset_file(setup, mode)),
            batch_size=setup.batch,
            num_workers=setup.workers,
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=True,
            seed=setup.seed,
            pipelines={"image": images, "label": [IntDecoder(), ToTensor()]},
        )


def open_jpeg(setup: Setup) -> FfcvLoader:
    """JPEG in FFCV's file."""
    return FfcvLoader(setup, "jpg")


def open_raw(setup: Setup) -> FfcvLoader:
    """Decoded images in FFCV's file."""
    return FfcvLoader(setup, "raw")
