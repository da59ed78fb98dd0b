"""All that is known of a recipe on a machine."""

from __future__ import annotations

import math

import msgspec

from headrace.measure.cpu import CPU
from headrace.measure.machine import Machine
from headrace.measure.memory import Bandwidth
from headrace.measure.sizes import Sizes
from headrace.measure.storage import Storage
from headrace.planning.terms import Terms

VERSION = 1
"""Raised when a profile means something else than before: those of other versions count as none."""
_NEVER = 1e15
"""Bytes of a form that cannot be cached: more than any cache has."""


class Profile(msgspec.Struct, frozen=True):
    """What was measured of a recipe, and on what machine. None, or empty: not known."""

    fingerprint: str
    """That of the recipe's augmented form."""
    machine: Machine
    label: str
    """What people call the data."""
    samples: int
    """Of the dataset."""
    taken: float
    """When, in seconds since 1970."""
    sizes: Sizes | None = None
    storage: Storage | None = None
    cpu: CPU | None = None
    memory: list[Bandwidth] = []
    """Of shared memory, by number of threads."""
    consumption: dict[str, float] = {}
    """Samples per second that a job takes if it need not wait, by the job's name; the latest last."""
    version: int = VERSION

    def terms(self, *, cache: float, jobs: int = 1, ingest: float = math.inf) -> Terms | None:
        """What a model of throughput rests on; None while sizes or the CPUs' rates are not known.

        ``cache``: bytes. Without any, samples are prepared by programs that never look for decoded ones.
        ``jobs``: those that share. ``ingest``: samples per second that they take, all together.
        """
        sizes, cpu = self.sizes, self.cpu
        if sizes is None or sizes.augmented is None or cpu is None:
            return None
        encoded = sizes.encoded.mean if sizes.encoded is not None else _NEVER
        prepare = (cpu.prepare if cache else cpu.uncached).machine
        storage = self.storage
        bandwidth = storage.bandwidth if storage is not None else None
        return Terms(
            samples=self.samples,
            encoded=encoded,
            decoded=sizes.decoded.mean if sizes.decoded is not None else _NEVER,
            augmented=max(sizes.augmented.mean, 1.0),
            cache=cache,
            prepare=prepare,
            augment=cpu.augment.machine if cpu.augment is not None else prepare,
            copy=cpu.copy.machine if cpu.copy is not None else math.inf,
            fetch=self.machine.cpus / storage.cpu if storage is not None and storage.cpu else math.inf,
            storage=math.inf if bandwidth is None else bandwidth,
            cache_link=max((at.out for at in self.memory), default=math.inf),
            ingest=ingest,
            jobs=jobs,
        )
