"""Who is measured: one module per kind of loader, one entry here per measured set-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Setup:
    """The work that every contender does."""

    photos: Path
    """Folder of class folders of JPEG files."""
    data: Path
    """Where prepared files of other formats lie."""
    batch: int = 128
    size: int = 224
    workers: int = 2
    seed: int = 1

    def samples(self) -> tuple[list[str], list[int]]:
        """Paths and labels, in the order that a folder dataset gives them."""
        classes = sorted(entry for entry in self.photos.iterdir() if entry.is_dir())
        pairs = [
            (str(path), label) for label, entry in enumerate(classes) for path in sorted(entry.glob("*.jpg"))
        ]
        return [path for path, _ in pairs], [label for _, label in pairs]


class Contender(Protocol):
    """A loader, constructed and ready to be iterated."""

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch; yields the number of images of each batch as it arrives, and keeps none."""
        ...

    def close(self) -> None:
        """End workers and threads."""
        ...


@dataclass(frozen=True)
class Entry:
    """One measured set-up: ``module:function`` opens it, in the environment named."""

    name: str
    label: str
    environment: str
    target: str
    distributions: tuple[str, ...] = ()
    loads: bool = True
    """Whether it hands batches to a consumer; the bare loops do not."""
    fills: int = 1
    """Epochs before the later ones. A cache takes more than one: incomplete batches are dropped, so each epoch
    leaves a few samples out, and those are first seen in a following one."""

    def load(self) -> Any:
        """The function that opens it: ``(Setup) -> Contender``. Imports what the contender needs."""
        module, function = self.target.split(":")
        return getattr(import_module(f"benchmarks.single.contenders.{module}"), function)


_TORCH, _SPDL, _DALI, _FFCV = (
    ("torch", "simplejpeg", "pillow"),
    ("spdl",),
    ("nvidia-dali-cuda120",),
    ("ffcv",),
)
_OURS, _BARE = ("headrace", "torch"), ("simplejpeg", "opencv-python-headless")
ENTRIES = (
    Entry("torch-pil", "torch DataLoader, PIL", "peers", "torch_loader:open_pil", _TORCH),
    Entry("torch-opencv", "torch DataLoader, OpenCV", "peers", "torch_loader:open_opencv", _TORCH),
    Entry("spdl", "SPDL, OpenCV", "peers", "spdl_loader:open_loader", _SPDL),
    Entry("dali", "DALI CPU", "peers", "dali_loader:open_loader", _DALI),
    Entry("ffcv-jpeg", "FFCV, JPEG in its own file", "peers", "ffcv_loader:open_jpeg", _FFCV),
    Entry("ffcv-raw", "FFCV, decoded in its own file", "peers", "ffcv_loader:open_raw", _FFCV),
    Entry("headrace", "headrace, nothing cached", "headrace", "headrace_loader:open_uncached", _OURS),
    Entry(
        "headrace-decoded",
        "headrace, decoded cached",
        "headrace",
        "headrace_loader:open_decoded",
        _OURS,
        fills=3,
    ),
    Entry("headrace-dropin", "headrace, torch Dataset", "headrace", "headrace_loader:open_dropin", _OURS),
    Entry("bare-full", "bare: full decode, resize", "headrace", "bare:open_full", _BARE, loads=False),
    Entry("bare-region", "bare: region decode, resize", "headrace", "bare:open_region", _BARE, loads=False),
    Entry("bare-arrays", "bare: resize of arrays in RAM", "headrace", "bare:open_arrays", _BARE, loads=False),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}


def touch(images: Any) -> int:
    """What a consumer does at least: look at the shape, and at a pixel of the last image."""
    count = int(images.shape[0])
    if int(images[-1][0, 0, 0]) < 0:
        raise AssertionError("a uint8 pixel is never negative")
    return count
