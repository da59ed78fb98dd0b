"""Fashion-MNIST from Debian's package: a part of its training images as PNG files, its test images in memory."""

from __future__ import annotations

import gzip
import subprocess
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from benchmarks.common.progress import say
from numpy.typing import NDArray

PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
SIDE = 28


class DataUnavailable(RuntimeError):
    """The dataset is not there and cannot be installed; the message says what to do."""


@dataclass(frozen=True)
class Fashion:
    """What a job trains on and is tested on."""

    paths: list[str]
    labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    """Of shape (samples, 1, 28, 28)."""
    test_labels: NDArray[np.int64]

    @property
    def targets(self) -> NDArray[np.int64]:
        """The label and the index of each sample in one number, so that a batch says which samples are in it."""
        return self.labels + CLASSES * np.arange(len(self.labels))


def install(repository: Path) -> None:
    """Have Debian's package on the machine."""
    if not INSTALLED.is_dir():
        say(f"installing Debian's {PACKAGE}")
        subprocess.run([str(repository / "scripts" / "debian-packages"), PACKAGE], check=False)
    if not INSTALLED.is_dir():
        raise DataUnavailable(f"Fashion-MNIST is not there; run: sudo apt-get install {PACKAGE}")


def load(repository: Path, count: int) -> Fashion:
    """The first ``count`` training images as files below ``.data``, and all test images."""
    install(repository)
    folder = repository / ".data" / "fashion-mnist"
    paths = [folder / f"{at:05d}.png" for at in range(count)]
    if not all(path.exists() for path in paths):
        say(f"writing {count} images to .data/fashion-mnist")
        folder.mkdir(parents=True, exist_ok=True)
        for path, image in zip(paths, read_images("train")[:count], strict=True):
            partial = path.with_suffix(".partial")
            partial.write_bytes(cv2.imencode(".png", image)[1].tobytes())
            partial.rename(path)
    return Fashion(
        [str(path) for path in paths],
        read_labels("train")[:count],
        read_images("t10k")[:, None],
        read_labels("t10k"),
    )


def read_images(part: str) -> NDArray[np.uint8]:
    """Of "train" or "t10k"."""
    with gzip.open(INSTALLED / f"{part}-images-idx3-ubyte.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, SIDE, SIDE)


def read_labels(part: str) -> NDArray[np.int64]:
    """Of "train" or "t10k"."""
    with gzip.open(INSTALLED / f"{part}-labels-idx1-ubyte.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
