"""What a model of throughput rests on: the data, the machines, and the jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.core.sparse import PAGE

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Terms:
    """Rates are per second; those of a node are for one of them. What is not known, or has no limit, is infinite."""

    samples: float
    """Of the dataset."""
    encoded: float
    """Bytes of a sample as it lies in storage."""
    decoded: float
    augmented: float
    cache: float
    """Bytes of cache, over all nodes."""
    prepare: float
    """Samples that the CPUs of a node decode and augment."""
    augment: float
    """Samples that they only augment."""
    copy: float = math.inf
    """Samples that they only copy from the cache into a batch."""
    fetch: float = math.inf
    """Samples that they only read from storage, were it endlessly fast."""
    storage: float = math.inf
    """Bytes that storage gives to all nodes together."""
    cache_link: float = math.inf
    """Bytes that the cache gives to all nodes together."""
    network: float = math.inf
    """Bytes that go into a node."""
    pcie: float = math.inf
    """Bytes that go to the GPUs of a node."""
    ingest: float = math.inf
    """Samples that the GPUs of a node train on."""
    nodes: int = 1
    gpus: int = 1
    """Of a node."""
    model: float = 0.0
    """Bytes of the gradients, which are exchanged once per batch."""
    batch: int = 1
    """Samples that a node trains on between two exchanges."""
    nvlink: Literal["none", "node", "cluster"] = "none"
    """Where gradients have links of their own: nowhere, within a node, or between nodes as well."""
    jobs: int = 1
    """That train on the same samples, and share what is prepared."""
    window: float = 0.0
    """Augmented samples that have to be kept at a time for each to reach all jobs."""
    overhead: float = 0.0
    """Bytes that a sample takes in the cache beyond its own: it fills whole pages."""
    disk: float = 0.0
    """Bytes of the disk tier, over all nodes."""
    disk_decoded: float = 0.0
    """The share of samples that go there decoded; the others do encoded."""
    disk_link: float = math.inf
    """Bytes that the disks give to all nodes together."""
    disk_cpu: float = 1e-9
    """Seconds of a CPU for each byte that is read from there: it is copied and checked."""
    cpus: float = 1.0
    """Of a node."""

    @classmethod
    def unknown(cls, samples: float, cache: float) -> Terms:
        """What is certain of a cache before anything was measured."""
        return cls(samples, 1.0, 0.0, 0.0, cache, prepare=1.0, augment=1.0, overhead=PAGE / 2)

    @property
    def gradients_network(self) -> float:
        """Bytes over a node's network for each sample, for the exchange of gradients between nodes in a ring."""
        return 0.0 if self.nvlink == "cluster" else _ring(self.nodes) * self.model / self.batch

    @property
    def gradients_pcie(self) -> float:
        """Bytes over a node's PCIe for each sample, for the exchange of gradients between its GPUs in a ring."""
        return 0.0 if self.nvlink != "none" else _ring(self.gpus) * self.model / self.batch


def _ring(members: int) -> float:
    return 2 * (members - 1) / members


@dataclass(frozen=True)
class Contents:
    """How many samples a cache holds in each form, and how many are in storage only. An element per split."""

    encoded: Floats
    decoded: Floats
    augmented: Floats
    storage: Floats


def contents(terms: Terms, splits: Floats) -> Contents:
    """What a cache holds, were no sample held in two forms. ``splits``: rows of (encoded, decoded, augmented).

    The more prepared forms come first: of a sample that is held augmented, no other form is wanted.
    """
    left = np.full(len(splits), float(terms.samples))
    held = []
    for share, size in zip(splits.T[::-1], (terms.augmented, terms.decoded, terms.encoded), strict=True):
        here = np.minimum(left, share * terms.cache / size)
        held.append(here)
        left = left - here
    augmented, decoded, encoded = held
    return Contents(encoded, decoded, augmented, left)
