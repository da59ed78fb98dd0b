"""Who is measured: one module per kind of loader, one entry here per set-up."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from benchmarks.common import contenders
from benchmarks.ranks.storage import Storage


@dataclass(frozen=True)
class Setup:
    """The work of one rank."""

    pictures: str
    samples: int
    """Of all ranks: one epoch."""
    batch: int
    ranks: int
    rank: int
    scenario: str = "fast"
    size: int = 128
    """Pixels of a crop's side."""
    workers: int | None = None
    """Per rank; None: left out, or what is usual."""
    seed: int = 1
    heavy: str | None = None
    switch: str | None = None

    def storage(self) -> Storage:
        """Where the samples lie."""
        heavy = None if self.heavy is None else Path(self.heavy)
        return Storage(Path(self.pictures), self.samples, self.scenario, heavy, self.switch)

    @property
    def cpus(self) -> int:
        """This rank's part of the machine."""
        return max(1, len(os.sched_getaffinity(0)) // self.ranks)


class Contender(Protocol):
    """A loader, constructed."""

    def batches(self) -> Iterator[int]:
        """One epoch of this rank; yields the number of images of each batch as it arrives, and keeps none."""
        ...

    def told(self) -> dict[str, Any]:
        """What the loader says of itself at the end."""
        ...

    def close(self) -> None:
        """End workers and threads."""
        ...


@dataclass(frozen=True)
class Entry(contenders.Entry):
    """One set-up."""

    package: ClassVar[str] = __name__
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""


FIXED = {"HEADRACE_STAFF": "fixed"}
"""headrace divides threads once and for all."""
EQUAL = {**FIXED, "HEADRACE_NICE": "0"}
"""And its workers do not step back behind the training loops: as if nobody looked after a machine's CPUs at all."""
READS = "HEADRACE_READS"
"""The environment variable that fixes how many reads are in flight."""
_OURS = ("headrace", "torch")
ENTRIES = (
    Entry("torch-few", "torch DataLoader, a worker per CPU", "headrace", "torch_loader:open_few", ("torch",)),
    Entry(
        "torch-four", "torch DataLoader, 4 workers a rank", "headrace", "torch_loader:open_four", ("torch",)
    ),
    Entry("dali", "DALI CPU", "peers", "dali_loader:open_loader", ("nvidia-dali-cuda120",)),
    Entry(
        "headrace-fixed", "headrace, fixed threads", "headrace", "headrace_loader:open_loader", _OURS, FIXED
    ),
    Entry(
        "headrace-equal",
        "headrace, fixed threads, equal priority",
        "headrace",
        "headrace_loader:open_loader",
        _OURS,
        EQUAL,
    ),
    Entry("headrace", "headrace", "headrace", "headrace_loader:open_loader", _OURS),
    Entry("ready", "batches that are there", "headrace", "ready:open_loader"),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
