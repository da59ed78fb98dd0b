"""Who is measured, as far as all benchmarks agree: the work, and how a contender is found and opened."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol


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


class Iterated:
    """A contender whose ``loader`` is iterated for pairs of images and labels, and ends when it is let go of."""

    loader: Any

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch."""
        for images, _labels in self.loader:
            yield touch(images)

    def close(self) -> None:
        """End workers and threads."""
        del self.loader


def touch(images: Any) -> int:
    """What a consumer does at least: look at the shape, and at a pixel of the last image."""
    count = int(images.shape[0])
    if int(images[-1][0, 0, 0]) < 0:
        raise AssertionError("a uint8 pixel is never negative")
    return count


@dataclass(frozen=True)
class Entry:
    """One measured set-up: ``module:function`` opens it, in the environment named."""

    package: ClassVar[str]
    """Where the modules are."""
    name: str
    label: str
    environment: str
    target: str
    distributions: tuple[str, ...] = ()

    def find(self, target: str) -> Any:
        """What ``module:function`` names."""
        module, function = target.split(":")
        return getattr(import_module(f"{self.package}.{module}"), function)

    def load(self) -> Any:
        """The function that opens it. Imports what the contender needs."""
        return self.find(self.target)

    def prepare(self, setup: Setup) -> None:
        """Make the files that the contender reads, where it has such."""
        step = getattr(import_module(self.load().__module__), "prepare", None)
        if step is not None:
            step(setup)

    def versions(self) -> dict[str, str]:
        """What is installed of its distributions; a package that is only on the path has no version."""
        found = {}
        for name in self.distributions:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "not installed"
        return found
