"""All that is known of a recipe on a machine."""

from __future__ import annotations

import math

import msgspec

from headrace.measure.cpu import CPU
from headrace.measure.machine import Machine
from headrace.measure.memory import Bandwidth
from headrace.measure.seen import Seen
from headrace.measure.sizes import Sizes
from headrace.measure.storage import Storage
from headrace.planning import Means, Terms

VERSION = 1
"""Raised when a profile means something else than before: those of other versions count as none."""
NEVER = 1e15
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
    seen: Seen | None = None
    """By loaders, while jobs trained. Parts of it that are more recent than ``taken`` go before the others."""
    version: int = VERSION

    @property
    def measured(self) -> bool:
        """Whether the recipe was measured as a whole (``take_profile``). Else there is what loaders saw."""
        return self.sizes is not None and self.cpu is not None

    @property
    def cold(self) -> float | None:
        """Bytes per second that storage itself gives, nothing being in memory; None if that is not known."""
        starved = self.seen.storage if self.seen is not None else None
        measured = self.storage.bandwidth if self.storage is not None else None
        if starved is None or (measured is not None and starved.at < self.taken):
            return measured
        return starved.bytes

    def terms(
        self, *, cache: float, jobs: int = 1, ingest: float = math.inf, means: Means | None = None
    ) -> Terms | None:
        """What a model of throughput rests on; None while sizes or the CPUs' rates are not known, or make no sense.

        ``cache``: bytes. Without any, samples are prepared by programs that never look for decoded ones.
        ``jobs``: those that share. ``ingest``: samples per second that they take, all together. ``means``: those of
        the loader that asks; by default the whole machine.
        """
        means = means or Means(self.machine.cpus, self.machine.cpus, 1)
        encoded, decoded, augmented = map(self._size, ("encoded", "decoded", "augmented"))
        stages = self._stages(means, cached=cache > 0)
        if not cache and decoded is None:
            decoded = NEVER
        if encoded is None or decoded is None or augmented is None or stages is None:
            return None
        cpu = self.cpu
        terms = Terms(
            samples=self.samples,
            encoded=encoded,
            decoded=decoded,
            augmented=max(augmented, 1.0),
            cache=cache,
            prepare=stages[0],
            augment=stages[1],
            copy=cpu.copy.machine if cpu is not None and cpu.copy is not None else math.inf,
            fetch=self._fetch(means),
            storage=self._supply(means),
            cache_link=max((at.out for at in self.memory), default=math.inf),
            ingest=ingest,
            jobs=jobs,
        )
        return terms if _sane(terms) else None

    @property
    def _later(self) -> Seen | None:
        """What was seen, if that was after the rest was measured."""
        return self.seen if self.seen is not None and self.seen.at >= self.taken else None

    def _size(self, form: str) -> float | None:
        later: float | None = getattr(self._later, form, None)
        if later is not None:
            return later
        if self.sizes is not None:
            spread = getattr(self.sizes, form)
            if spread is not None:
                return float(spread.mean)
            return None if form == "augmented" else NEVER
        return getattr(self.seen, form, None)

    def _stages(self, means: Means, *, cached: bool) -> tuple[float, float] | None:
        later = self._later.stages(means, cached=cached) if self._later is not None else None
        if later is not None:
            return later
        cpu = self.cpu
        if cpu is None:
            return self.seen.stages(means, cached=cached) if self.seen is not None else None
        prepare = cpu.prepare if cached else cpu.uncached
        # Measured with the staff that a loader chooses; one that was told to has fewer hands.
        part = min(1.0, means.hands / max(cpu.processes * cpu.threads, 1))
        return part * prepare.machine, part * (cpu.augment or prepare).machine

    def _fetch(self, means: Means) -> float:
        measured = self.storage.cpu if self.storage is not None else None
        seconds = (self._later.fetch if self._later is not None else None) or measured
        return means.cpus / seconds if seconds else math.inf

    def _supply(self, means: Means) -> float:
        later, cold = self._later, self.cold
        if later is None or later.supply is None:
            return math.inf if cold is None else cold
        # Where fewer fetched, storage may have more to give.
        return later.supply if later.fetchers >= means.fetchers else max(later.supply, cold or 0.0)


def _sane(terms: Terms) -> bool:
    """Whether a model can do with these: files can be changed by anybody."""
    sizes = (terms.samples, terms.encoded, terms.decoded, terms.augmented)
    rates = (terms.prepare, terms.augment)
    limits = (terms.copy, terms.fetch, terms.storage, terms.cache_link, terms.ingest)
    return (
        all(1.0 <= size <= NEVER for size in sizes)
        and all(1e-6 <= rate <= NEVER for rate in rates)
        and all(limit >= 1e-6 for limit in limits)
    )
