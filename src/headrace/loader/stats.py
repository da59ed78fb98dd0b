"""Numbers that a loader keeps about itself."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from headrace.cluster.joining import Joined
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sizes import show_size
from headrace.engine.disk_stage import DiskUse
from headrace.host.base import Host
from headrace.loader.dataset_sessions import ObjectSession
from headrace.loader.progress import Progress
from headrace.loader.recipe_session import RecipeSession
from headrace.loader.sessions import ErrorBook, Session
from headrace.loader.spec import LoaderSpec
from headrace.planning import Advice, Situation, Spent, advise


class FormStats(msgspec.Struct, frozen=True):
    """The cache of one form."""

    budget: int = 0
    bytes: int = 0
    samples: int = 0
    hits: int = 0


class DiskStats(msgspec.Struct, frozen=True):
    """The disk tier, as this loader used it."""

    path: str
    budget: int
    """Bytes that all jobs' samples may take there."""
    hits: int = 0
    """Samples that it had."""
    bytes: int = 0
    """Of those."""


class PoolStats(msgspec.Struct, frozen=True):
    """The memory of a cluster, as this loader used it."""

    nodes: int
    """Servers, as they are now."""
    samples: int = 0
    """That came from there."""
    bytes: int = 0
    kept: int = 0
    """Of these samples, those that were in memory; the others a server read from storage."""
    helped: int = 0
    """Rows that other nodes prepared."""


class DeviceStats(msgspec.Struct, frozen=True):
    """What was copied to a device."""

    name: str
    bytes: int
    copied: int
    """Of these, bytes that the job had to copy first: they did not lie in locked pages."""
    finished: tuple[str, ...]
    """Steps that are done there."""
    decoded: int = 0
    """Images that were decoded there."""
    refused: int = 0
    """Images that could not be, and were decoded by the job instead."""
    held: int = 0
    """Images that stay there,"""
    held_bytes: int = 0
    hits: int = 0
    """and how often one was used."""


class Stats(msgspec.Struct, frozen=True):
    """A snapshot of ``loader.stats()``. Times are seconds, summed over all workers and threads."""

    batches: int = 0
    samples: int = 0
    epoch: int = 0
    waited: float = 0.0
    """For which the training loop waited for a batch."""
    fetch: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    wait_order: float = 0.0
    """For which fetching had nothing to do: enough is prepared, the training loop is the short stage."""
    wait_fetch: float = 0.0
    """For which preparing waited for bytes: storage is the short stage."""
    wait_room: float = 0.0
    """For which fetched bytes waited to be prepared: the CPU is the short stage."""
    wait_turn: float = 0.0
    """For which preparing waited for its turn on a machine whose CPUs others needed sooner."""
    preparing_most: int = 0
    """Threads that prepared at once on this machine, over all ranks and jobs, at most; 0: there were never more than
    could."""
    fetched_samples: int = 0
    fetched_bytes: int = 0
    decoded: int = 0
    """Samples decoded by this loader's workers, also for other jobs that share."""
    shared: bool = False
    """Whether draws and cache are those of a shared host (``headrace status`` tells more)."""
    misses: int = 0
    """Samples that were in the cache in no form when their order was made; as ``hits``, where there is a cache."""
    takeovers: int = 0
    """Shared hosts that were lost and replaced."""
    cache: dict[str, FormStats] = msgspec.field(
        default_factory=lambda: {form.name.lower(): FormStats() for form in CACHEABLE}
    )
    disk: DiskStats | None = None
    """None: there is no disk tier."""
    pool: PoolStats | None = None
    """None: samples do not come from a cluster."""
    device: DeviceStats | None = None
    """None: batches are handed out in this machine's memory."""
    bad_samples: int = 0
    workers: int = 0
    threads: int = 0
    restarts: int = 0
    slots: int = 0
    leased: int = 0
    arena_bytes: int = 0
    """Shared memory in use: slots, and what the cache holds."""
    gil_held: float = -1.0
    """Share of the time for which user code held the interpreter lock; negative: not measured."""
    translated: tuple[str, ...] = ()
    """Transforms of a torchvision dataset in whose place steps of headrace run."""
    untranslated: tuple[str, ...] = ()
    """Those that run as they are, each with the reason."""
    decodes: bool = False
    """Whether headrace decodes the images of such a dataset."""
    own_code: tuple[str, ...] = ()
    """All that such a dataset, or its loader, does in the user's own code, each with the reason."""
    hint: str = ""
    """What would let headrace do more of it."""
    situation: Situation | None = None
    """What ``advice`` is given on."""

    @property
    def advice(self) -> Advice | None:
        """What the loop waits for, and what would help by how much; None while too little was measured."""
        return None if self.situation is None else advise(self.situation)

    @property
    def hits(self) -> int:
        """Samples that entered from the cache, in any form."""
        return sum(form.hits for form in self.cache.values())

    @property
    def hit_rate(self) -> float:
        """Share of samples that entered from the cache."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0

    def __str__(self) -> str:
        lines = [
            f"delivered   {self.samples} samples in {self.batches} batches (epoch {self.epoch}); "
            f"waited {self.waited:.2f} s for them",
            f"workers     {self.workers} x {self.threads} threads, {self.restarts} restarted",
            f"spent       fetch {self.fetch:.2f} s, decode {self.decode:.2f} s, augment {self.augment:.2f} s",
            f"waits       for the loop {self.wait_order:.2f} s, for storage {self.wait_fetch:.2f} s, "
            f"for the CPU {self.wait_room:.2f} s"
            + (f", for others {self.wait_turn:.2f} s" if self.wait_turn else ""),
            f"fetched     {self.fetched_samples} samples, {show_size(self.fetched_bytes)}",
            f"memory      {show_size(self.arena_bytes)} shared, {self.slots} slots, {self.leased} of them leased",
        ]
        for name, form in self.cache.items():
            if form.budget:
                lines.append(
                    f"cache       {name}: {form.samples} samples, {show_size(form.bytes)} of "
                    f"{show_size(form.budget)}, {form.hits} hits"
                )
        if self.disk is not None:
            kind = "disk" if os.path.isabs(self.disk.path) else "tier"
            lines.append(
                f"{kind:<12}{self.disk.hits} samples, {show_size(self.disk.bytes)} from {self.disk.path} "
                f"(at most {show_size(self.disk.budget)})"
            )
        if self.pool is not None:
            lines.append(
                f"cluster     {self.pool.samples} samples, {show_size(self.pool.bytes)} from {self.pool.nodes} "
                f"nodes, {self.pool.kept} of them from memory"
                + (f"; {self.pool.helped} rows prepared elsewhere" if self.pool.helped else "")
            )
        if self.device is not None:
            there = f"; {', '.join(self.device.finished)} done there" if self.device.finished else ""
            if self.device.decoded:
                there += f"; {self.device.decoded} images decoded there"
            if self.device.held:
                size = show_size(self.device.held_bytes)
                there += f"; {self.device.held} images held there ({size}), used {self.device.hits} times"
            copied = f"{show_size(self.device.copied)} of it copied by the job first"
            lines.append(f"device      {show_size(self.device.bytes)} to {self.device.name}, {copied}{there}")
        if self.shared:
            hits = ", ".join(f"{form.hits} {name}" for name, form in reversed(self.cache.items()))
            lines.append(
                f"shared      {hits} from the shared cache; {self.decoded} decoded here, for all; "
                f"{self.takeovers} hosts lost"
            )
        if self.bad_samples:
            lines.append(f"bad         {self.bad_samples} samples (loader.bad_samples)")
        if self.decodes or self.own_code:
            native = ", ".join(("decoding", *self.translated)) if self.decodes else "nothing"
            own = f"; your own code: {', '.join(self.own_code)}" if self.own_code else ""
            lines.append(f"native      {native}{own}")
            lines += [f"            {self.hint}"] if self.hint else []
        advice = self.advice
        if advice is not None:
            lines.append(f"advice      {advice}")
        return "\n".join(lines)


def take_stats(
    spec: LoaderSpec,
    session: Session | None,
    progress: Progress,
    book: ErrorBook,
    situation: Situation | None,
) -> Stats:
    """The numbers of a loader, by what it has counted, and of its session, if it has one."""
    native = spec.data.native
    mine: dict[str, Any] = {
        "batches": progress.batches,
        "samples": progress.samples,
        "epoch": max(0, progress.epoch - 1),
        "bad_samples": len(book.bad),
        "workers": spec.work.workers,
        "threads": 1,
        "situation": situation,
        "decodes": native.decodes,
        "translated": native.translated,
        "untranslated": native.untranslated,
        "own_code": native.own,
        "hint": native.hint,
    }
    if isinstance(session, RecipeSession) and spec.work.workers:
        mine["workers"], mine["threads"] = session.workers
        mine["preparing_most"] = session.preparing_most
    elif isinstance(session, ObjectSession):
        mine["workers"] = session.processes
    feed = getattr(session, "feed", None)
    if feed is not None:
        finished = getattr(session, "finished_steps", ())
        there = session.left.counts if isinstance(session, RecipeSession) and session.left else {}
        mine["device"] = DeviceStats(str(feed.device), feed.sent, feed.copied, finished, **there)
    host = getattr(session, "host", None)
    disk = session.disk if isinstance(session, RecipeSession) else None
    pool = session.pool if isinstance(session, RecipeSession) else None
    return Stats(**mine) if host is None else _of_host(host, mine, disk, pool)


def _of_pool(pool: Joined, spent: Spent) -> PoolStats:
    return PoolStats(
        pool.nodes,
        int(spent.pooled),
        int(spent.pooled_bytes),
        int(spent.pooled_kept),
        int(spent.helped),
    )


def _of_host(host: Host, mine: dict[str, Any], disk: DiskUse | None, pool: Joined | None) -> Stats:
    spent, directory = host.totals.spent, host.coordinator.directory
    cache = {
        form.name.lower(): FormStats(
            directory.budgets[form], directory.bytes[form], directory.samples[form], directory.hits[form]
        )
        for form in CACHEABLE
    }
    slots = host.slots
    cached = sum(directory.bytes.values())
    return Stats(
        **mine,
        waited=host.totals.waited,
        fetch=spent.fetch,
        decode=spent.decode,
        augment=spent.augment,
        wait_order=spent.wait_order,
        wait_fetch=spent.wait_fetch,
        wait_room=spent.wait_room,
        wait_turn=spent.wait_turn,
        fetched_samples=int(spent.fetched),
        fetched_bytes=int(spent.fetched_bytes),
        decoded=int(spent.decoded),
        shared=host.shared is not None,
        takeovers=host.shared.takeovers if host.shared is not None else 0,
        cache=cache,
        disk=None
        if disk is None or (disk.measured and not spent.from_disk)
        else DiskStats(disk.tier.path, disk.tier.budget, int(spent.from_disk), int(spent.disk_bytes)),
        pool=None if pool is None else _of_pool(pool, spent),
        misses=directory.hits[Form.NONE],
        restarts=host.totals.restarts,
        slots=slots.count,
        leased=slots.leased,
        arena_bytes=host.arena.in_use + cached,
        gil_held=host.totals.gil_held,
    )
