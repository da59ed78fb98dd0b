"""The planner of one job's cache: what was measured so far, and the split that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from headrace.planning.search import Plan, Split, reconsider
from headrace.planning.terms import Terms

_ENOUGH = 64
"""Samples that have to be seen of a stage before its cost is believed."""
_STARVED = 0.1
"""Hands that wait for bytes for more than this part of their time have all that storage gives."""
_HOPE = 1.02
"""By so much more storage may give at each look after it was last seen to give all it can."""
_FORGET = 0.5
"""What the sums so far count when new ones are added: what was measured a few looks ago hardly matters."""


@dataclass(frozen=True)
class Measured:
    """Sums over a time. Seconds of stages are summed over all hands. Counts that have faded are no whole numbers."""

    seconds: float = 0.0
    """That passed."""
    delivered: float = 0
    waited: float = 0.0
    """Seconds for which the loop waited for a batch."""
    loop_cpu: float = 0.0
    """CPU seconds of the loop's own process."""
    fetched: float = 0
    fetched_bytes: float = 0
    fetch: float = 0.0
    fetch_cpu: float = 0.0
    starved: float = 0.0
    """Seconds for which hands that prepare waited for bytes."""
    decoded: float = 0
    decode: float = 0.0
    prepared: float = 0
    """Samples that were augmented, from whatever form."""
    augment: float = 0.0
    cpu: float = 0.0
    """CPU seconds of decoding and augmenting."""
    user: float = 0.0
    """Seconds of decoding and augmenting that were spent in callables of the user's."""
    user_cpu: float = 0.0
    pixels: float = 0
    """Of the images that were decoded, as they lie in storage."""
    room: float = 0.0
    """Seconds for which fetched bytes waited for hands."""
    idle: float = 0.0
    """Seconds for which hands had no order."""

    def __sub__(self, other: Measured) -> Measured:
        return Measured(
            *(getattr(self, field.name) - getattr(other, field.name) for field in fields(Measured))
        )

    def faded(self, by: float, plus: Measured) -> Measured:
        """These sums, faded, and new ones."""
        return Measured(
            *(by * getattr(self, field.name) + getattr(plus, field.name) for field in fields(Measured))
        )


@dataclass(frozen=True)
class Means:
    """What there is to work with."""

    cpus: float
    hands: int
    """Threads that prepare."""
    fetchers: int
    """Threads that fetch."""


class Planner:
    """Decides how one job's cache is split. Told what was measured, it answers with a plan.

    ``known``: what is certain from the start: samples, cache, sizes as far as they are.
    """

    def __init__(self, known: Terms, split: Split) -> None:
        self.terms: Terms | None = None
        """What the last plan rests on."""
        self.plan = Plan(split, 0.0)
        self._known = known
        self._sums = Measured()
        self._storage = known.storage
        self._fetching = Measured()
        """Sums over looks at which little was fetched."""
        self._all = math.inf
        """Bytes per second when preparing last waited for them."""

    def look(
        self, measured: Measured, means: Means, *, decoded: float = 0.0, augmented: float = 0.0
    ) -> Plan | None:
        """Take in what was measured since the last look; a plan if it differs from the one before.

        ``decoded`` and ``augmented``: mean bytes of those forms, where they are known.
        """
        self._sums = self._sums.faded(_FORGET, measured)
        self._note_storage(measured, means)
        terms = self._estimate(means, decoded, augmented)
        if terms is None:
            return None
        self.terms = terms
        before, self.plan = self.plan, reconsider(self.plan.split, terms)
        return self.plan if self.plan.split != before.split else None

    def _estimate(self, means: Means, decoded: float, augmented: float) -> Terms | None:
        """The model's terms, or None while too little is known."""
        sums, known = self._sums, self._known
        decoded, augmented = decoded or known.decoded, augmented or known.augmented
        if not decoded or not augmented or sums.prepared < _ENOUGH or sums.delivered < _ENOUGH:
            return None
        if self.terms is not None:
            known = self.terms
        elif sums.decoded < _ENOUGH or sums.fetched < _ENOUGH:
            return None
        # While some are decoded and others come decoded, what a stage costs is found stage by stage.
        wall = sums.decode + sums.augment
        cpu_per_wall = min(1.0, sums.cpu / wall) if wall else 1.0
        cpus = max(0.5, means.cpus - sums.loop_cpu / sums.seconds)
        augment_wall = sums.augment / sums.prepared

        def rate(seconds: float) -> float:
            """Samples per second, where one takes so long: limited by the hands, and by the CPUs."""
            return min(means.hands / seconds, cpus / max(seconds * cpu_per_wall, 1e-9))

        augment = rate(max(augment_wall, 1e-9))
        prepare = known.prepare
        if sums.decoded >= _ENOUGH:
            prepare = rate(max(augment_wall + sums.decode / sums.decoded, 1e-9))
        encoded, fetch = known.encoded, known.fetch
        if sums.fetched >= _ENOUGH:
            encoded = sums.fetched_bytes / sums.fetched
            fetch = cpus * sums.fetched / max(sums.fetch_cpu, 1e-9)
        busy = max(sums.seconds - sums.waited, 1e-9)
        return replace(
            known,
            encoded=max(encoded, 1.0),
            decoded=decoded,
            augmented=augmented,
            prepare=min(prepare, augment),
            augment=augment,
            storage=self._storage,
            fetch=fetch,
            ingest=sums.delivered / busy,
        )

    def _note_storage(self, measured: Measured, means: Means) -> None:
        """Find out how many bytes per second storage gives.

        Where preparing waits for bytes, they come as fast as they can. Where it does not, that much is certain, and
        what it would be if fetching never paused is a guess, which may go beyond what was once seen to be all.
        """
        self._fetching = self._fetching.faded(1.0, measured) if measured.fetched else Measured()
        if self._fetching.fetched < _ENOUGH:
            return
        measured, self._fetching = self._fetching, Measured()
        seen = measured.fetched_bytes / measured.seconds
        if measured.starved > _STARVED * measured.seconds * means.hands:
            self._all = seen if math.isinf(self._all) else (1 - _FORGET) * seen + _FORGET * self._all
            self._storage = self._all
        else:
            self._all *= _HOPE
            guess = means.fetchers * measured.fetched_bytes / max(measured.fetch, 1e-9)
            self._storage = max(seen, min(self._all, guess))
