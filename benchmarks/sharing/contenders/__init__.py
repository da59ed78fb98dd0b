"""Who is measured: what each of n jobs opens, and what runs beside them.

Peers are those of the single-job benchmark, as they are; here are the loaders that only make sense with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from benchmarks.common import contenders
from benchmarks.common.contenders import Setup
from benchmarks.single.contenders import BY_NAME as SINGLE


class Counts(NamedTuple):
    """What a job has counted so far."""

    decoded: int
    """Samples that this job's processes decoded, whoever they were for."""
    hits: int
    """Samples of this job that entered from a cache."""
    misses: int
    """Those that were looked for in the cache and entered from no form of it."""


class Contender(contenders.Contender, Protocol):
    """One job's loader, constructed and ready to be iterated."""

    def counts(self, images: int) -> Counts:
        """What was decoded and found so far; ``images`` were delivered."""
        ...


@dataclass(frozen=True)
class Entry(contenders.Entry):
    """One measured set-up. Its target opens a job's loader, or is the name of one of the single-job benchmark."""

    package: ClassVar[str] = __name__
    options: dict[str, Any] = field(default_factory=dict)
    decodes: float = 1.0
    """Decodes per delivered image of a single-job peer; those that are not peers count for themselves."""
    warm_batches: int | None = None
    """What a job does before the others are waited for: None is one epoch. Pipelines that never end need only
    be started."""
    caches: bool = False
    """Whether later epochs differ from the first; then several are measured."""
    producer: str = ""
    """``module:function`` of the process that runs beside the jobs and feeds them all."""
    shares: bool = False
    """Whether the jobs start a host that they share."""
    stall_s: float = 90.0
    """With no batch anywhere for so long, the run is given up."""

    @property
    def _peer(self) -> bool:
        return ":" not in self.target

    def load(self) -> Any:
        """See ``contenders.Entry``."""
        return SINGLE[self.target].load() if self._peer else super().load()

    def open(self, setup: Setup, number: int, options: dict[str, Any]) -> Contender:
        """Open the loader of job ``number``."""
        if self._peer:
            return _Peer(self.load()(setup), self.decodes)
        opened: Contender = self.load()(setup, number, {**self.options, **options})
        return opened

    def produce(self, setup: Setup, options: dict[str, Any], tell: Callable[[int], None]) -> None:
        """Be the process that runs beside the jobs, until it is ended; tells how many samples it decoded."""
        self.find(self.producer)(setup, {**self.options, **options}, tell)


class _Peer:
    """A loader of the single-job benchmark: what it decodes follows from what it is."""

    def __init__(self, loader: Any, decodes: float) -> None:
        self.loader, self.decodes = loader, decodes

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch."""
        return iter(self.loader.epoch(number))

    def counts(self, images: int) -> Counts:
        """By construction."""
        return Counts(round(images * self.decodes), 0, 0)

    def close(self) -> None:
        """End it."""
        self.loader.close()


SAMPLINGS = ("uniform", "opportunistic", "dependent", "auto")
_SOCKET = ("tensorsocket", "pyzmq", "torch")
_TORCH = SINGLE["torch-opencv"].distributions
ENTRIES = (
    Entry("torch", "torch DataLoader, OpenCV", "peers", "torch-opencv", _TORCH, warm_batches=16),
    Entry("spdl", "SPDL, OpenCV", "peers", "spdl", SINGLE["spdl"].distributions, warm_batches=8),
    Entry("dali", "DALI CPU", "peers", "dali", SINGLE["dali"].distributions, warm_batches=8),
    Entry(
        "ffcv", "FFCV, decoded in its own file", "peers", "ffcv-raw", SINGLE["ffcv-raw"].distributions,
        decodes=0.0, stall_s=200.0,
    ),
    *(
        Entry(
            name, label, "peers", "tensorsocket_loader:open_consumer", _SOCKET, options,
            producer="tensorsocket_loader:produce", stall_s=25.0,
        )
        for name, label, options in (
            ("tensorsocket", "TensorSocket, its own packing", {"transport": "pickle", "together": 2}),
            ("tensorsocket-shm", "TensorSocket, shared memory", {"transport": "shm", "together": 8}),
        )
    ),
    Entry(
        "headrace", "headrace, alone, nothing cached", "headrace", "headrace_loader:open_alone",
        ("headrace", "torch"), warm_batches=16,
    ),
    *(
        Entry(
            f"headrace-{name}", f"headrace, shared, {name}", "headrace", "headrace_loader:open_shared",
            ("headrace", "torch"), {"sampling": name}, caches=True, shares=True,
        )
        for name in SAMPLINGS
    ),
)  # fmt: skip
BY_NAME = {entry.name: entry for entry in ENTRIES}
