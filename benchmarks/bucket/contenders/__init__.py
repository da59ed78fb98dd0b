"""Who is measured: one module per kind of loader, one entry here per measured set-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from benchmarks.common import contenders

CACHES = ("none", "whole", "half")
"""How much of the dataset fits into a contender's local cache."""


@dataclass(frozen=True)
class Setup:
    """The work that every contender does, and where the photos are."""

    bucket: str
    """``s3://`` and the bucket's name. Below it: ``train/CLASS/NAME.jpg``, ``shards``, ``litdata``, ``mds``."""
    endpoint: str
    count: int
    shards: tuple[str, ...]
    """The tar shards' keys."""
    cache: Path
    """An empty folder on the local disk."""
    cache_bytes: int
    """What may lie in it; 0 for no cache."""
    photo_bytes: int
    batch: int
    size: int = 224
    workers: int = 2
    seed: int = 1

    @property
    def fits(self) -> bool:
        """Whether all photos fit into the cache."""
        return self.cache_bytes >= self.photo_bytes


def number_of(name: str) -> int:
    """A photo's number, which is its name: ``train/class_3/0123.jpg`` is 123."""
    return int(name.rpartition("/")[2].partition(".")[0])


class Contender(Protocol):
    """A loader, constructed and ready to be iterated."""

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """One epoch: batches of images (uint8; height, width, channels) and of the photos' numbers, or of what its
        method ``numbers_of`` makes numbers of, if it has one."""
        ...

    def close(self) -> None:
        """End workers and threads."""
        ...


class Iterated:
    """A contender whose ``loader`` is iterated for pairs of images and numbers, and ends when it is let go of."""

    loader: Any

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """One epoch."""
        yield from self.loader

    def close(self) -> None:
        """End workers and threads."""
        del self.loader


@dataclass(frozen=True)
class Entry(contenders.Entry):
    """One measured set-up."""

    package: ClassVar[str] = __name__
    cache: str = "none"
    """One of ``CACHES``."""
    reads: str = "objects"
    """What it reads of the bucket, for people."""
    batch: int = 128
    epochs: int = 5
    step_s: float = 0.0
    """Seconds that the loop takes over a batch. In the bytes of an epoch there is then nothing of the next one but
    what is ahead in every other epoch, too: whoever waits for storage has more or less of it, as it comes."""
    stubs: bool = False
    """Whether it is imported beside stand-ins for packages that it imports and does not need."""


_S3FS, _WDS = ("torch", "s3fs", "fsspec", "aiobotocore"), ("torch", "webdataset", "boto3")
_LIT, _MDS = ("torch", "litdata", "obstore"), ("torch", "mosaicml-streaming", "boto3")
_OURS = ("headrace", "torch", "obstore")


def _peers(
    name: str, label: str, target: str, distributions: tuple[str, ...], *caches: str, **more: Any
) -> list[Entry]:
    return [
        Entry(f"{name}-{cache}", label, "peers", target, distributions, cache=cache, **more)
        for cache in caches
    ]


ENTRIES = (
    *_peers("s3fs", "torch DataLoader, s3fs", "s3fs_loader:open_loader", _S3FS, "none", "whole"),
    *_peers(
        "webdataset", "WebDataset", "webdataset_loader:open_loader", _WDS, *CACHES, reads="tar shards"
    ),
    *_peers("litdata", "LitData", "litdata_loader:open_loader", _LIT, "whole", "half", reads="its chunks"),
    *_peers(
        "mosaic", "MosaicML Streaming", "mosaic_loader:open_loader", _MDS, "whole", "half",
        reads="MDS shards", stubs=True,
    ),
    *(
        Entry(
            f"headrace-{cache}", "headrace", "headrace", "headrace_loader:open_loader", _OURS, cache=cache
        )
        for cache in CACHES
    ),
    *(
        Entry(
            f"headrace-{cache}-steps", "headrace, steps of 0.1 s, batches of 32", "headrace",
            "headrace_loader:open_loader", _OURS, cache=cache, batch=32, epochs=7, step_s=0.1,
        )
        for cache in ("none", "half")
    ),
)  # fmt: skip
BY_NAME = {entry.name: entry for entry in ENTRIES}
