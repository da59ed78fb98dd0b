"""The planner of a cache: what was measured so far, and the split that follows from it."""

from __future__ import annotations

from dataclasses import replace

from headrace.planning.measured import Means, Measured
from headrace.planning.search import Plan, Split, reconsider
from headrace.planning.supply import Supply
from headrace.planning.terms import Terms

LOOK_EVERY = 1.0
"""Seconds between two looks: long enough to say something, short enough that a shift is soon made up for."""
_ENOUGH = 64
"""Samples that have to be seen of a stage before its cost is believed."""
_FORGET = 0.5
"""What the sums so far count when new ones are added: what was measured a few looks ago hardly matters."""


class Planner:
    """Decides how a cache is split. Told what was measured, it answers with a plan.

    ``known``: what is certain from the start: samples, cache, sizes as far as they are. ``before``: what was found
    out by those who ran before, all of it. The first plan follows from that; what is measured takes its place.
    ``joint``: decoded and augmented samples have what encoded ones leave in common.
    """

    def __init__(
        self, known: Terms, split: Split, before: Terms | None = None, *, joint: bool = False
    ) -> None:
        if before is not None:
            before = replace(before, overhead=known.overhead)
        self.terms = before
        """What the last plan rests on."""
        self.plan = Plan(split, 0.0) if before is None else reconsider(split, before, joint=joint)
        self._joint = joint
        self._known = known if before is None else before
        self._sums = Measured()
        self._supply = Supply(self._known.storage)

    def look(
        self,
        measured: Measured,
        means: Means,
        *,
        decoded: float = 0.0,
        augmented: float = 0.0,
        **changes: float,
    ) -> Plan | None:
        """Take in what was measured since the last look; a plan if it differs from the one before.

        ``decoded`` and ``augmented``: mean bytes of those forms, of samples that were seen in them. ``changes``:
        terms that are not what they were: samples, cache, jobs, window.
        """
        # (a slow job's looks say little each, and would never say enough)
        self._sums = self._sums.faded(_FORGET if self._enough() else 1.0, measured)
        self._supply.note(measured, means)
        terms = self._estimate(means, decoded, augmented)
        if terms is None:
            return None
        self.terms = terms = replace(terms, **changes)  # type: ignore[arg-type]
        before, self.plan = self.plan, reconsider(self.plan.split, terms, joint=self._joint)
        return self.plan if self.plan.split != before.split else None

    def _enough(self) -> bool:
        """Whether the sums say something: of every stage, as long as nothing is known of it."""
        sums = self._sums
        seen = min(sums.prepared, sums.delivered)
        if self.terms is None:
            seen = min(seen, sums.decoded, sums.fetched)
        return seen >= _ENOUGH

    def _estimate(self, means: Means, decoded: float, augmented: float) -> Terms | None:
        """The model's terms, or None while too little is known."""
        sums, known, apart = self._sums, self._known, decoded > 0
        decoded, augmented = decoded or known.decoded, augmented or known.augmented
        if not decoded or not augmented or not self._enough():
            return None
        if self.terms is not None:
            known = self.terms
        # While some are decoded and others come decoded, what a stage costs is found stage by stage.
        wall = sums.decode + sums.augment
        cpu_per_wall = min(1.0, sums.cpu / wall) if wall else 1.0
        cpus = max(0.5, means.cpus - sums.loop_cpu / sums.seconds)
        augment_wall = sums.augment / sums.prepared

        def rate(seconds: float) -> float:
            """Samples per second, where one takes so long: limited by the hands, and by the CPUs."""
            return min(means.hands / seconds, cpus / max(seconds * cpu_per_wall, 1e-9))

        # While none were kept decoded, both stages may be one, all of which counts as decoding.
        augment = rate(max(augment_wall, 1e-9)) if apart else known.augment
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
            storage=self._supply.rate,
            fetch=fetch,
            ingest=sums.delivered / busy,
        )
