"""Numbers that a loader keeps about itself."""

from __future__ import annotations

import msgspec

from headrace.core.forms import CACHEABLE, Form
from headrace.core.sizes import show_size
from headrace.host.embedded import Host


class FormStats(msgspec.Struct, frozen=True):
    """The cache of one form."""

    budget: int
    bytes: int
    samples: int
    hits: int


class Stats(msgspec.Struct, frozen=True):
    """A snapshot of ``loader.stats()``. Times are seconds, summed over all workers and threads."""

    batches: int
    samples: int
    epoch: int
    waited: float
    """For which the training loop waited for a batch."""
    fetch: float
    decode: float
    augment: float
    wait_order: float
    """For which fetching had nothing to do: enough is prepared, the training loop is the short stage."""
    wait_fetch: float
    """For which preparing waited for bytes: storage is the short stage."""
    wait_room: float
    """For which fetched bytes waited to be prepared: the CPU is the short stage."""
    fetched_samples: int
    fetched_bytes: int
    cache: dict[str, FormStats]
    bad_samples: int
    workers: int
    threads: int
    restarts: int
    slots: int
    leased: int
    arena_bytes: int
    """Shared memory in use: slots, and what the cache holds."""
    gil_held: float
    """Share of the time for which user code held the interpreter lock; negative: not measured."""

    @property
    def hits(self) -> int:
        """Samples that entered from the cache, in any form."""
        return sum(form.hits for form in self.cache.values())

    @property
    def hit_rate(self) -> float:
        """Share of samples that entered from the cache."""
        total = self.hits + self.fetched_samples
        return self.hits / total if total else 0.0

    def __str__(self) -> str:
        lines = [
            f"delivered   {self.samples} samples in {self.batches} batches (epoch {self.epoch}); "
            f"waited {self.waited:.2f} s for them",
            f"workers     {self.workers} x {self.threads} threads, {self.restarts} restarted",
            f"spent       fetch {self.fetch:.2f} s, decode {self.decode:.2f} s, augment {self.augment:.2f} s",
            f"waits       for the loop {self.wait_order:.2f} s, for storage {self.wait_fetch:.2f} s, "
            f"for the CPU {self.wait_room:.2f} s",
            f"fetched     {self.fetched_samples} samples, {show_size(self.fetched_bytes)}",
            f"memory      {show_size(self.arena_bytes)} shared, {self.slots} slots, {self.leased} of them leased",
        ]
        for name, form in self.cache.items():
            if form.budget:
                lines.append(
                    f"cache       {name}: {form.samples} samples, {show_size(form.bytes)} of "
                    f"{show_size(form.budget)}, {form.hits} hits"
                )
        if self.bad_samples:
            lines.append(f"bad         {self.bad_samples} samples (loader.bad_samples)")
        return "\n".join(lines)


def snapshot(
    host: Host | None, *, batches: int, samples: int, epoch: int, bad: int, workers: int, threads: int
) -> Stats:
    """The numbers of a host, and what the loader itself counted."""
    if host is None:
        nothing = {form.name.lower(): FormStats(0, 0, 0, 0) for form in CACHEABLE}
        return Stats(batches, samples, epoch, *([0.0] * 7), 0, 0, nothing, bad, workers, threads, 0, 0, 0, 0, -1.0)
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
        batches=batches,
        samples=samples,
        epoch=epoch,
        waited=host.totals.waited,
        fetch=spent.fetch,
        decode=spent.decode,
        augment=spent.augment,
        wait_order=spent.wait_order,
        wait_fetch=spent.wait_fetch,
        wait_room=spent.wait_room,
        fetched_samples=directory.hits[Form.NONE],
        fetched_bytes=spent.fetched_bytes,
        cache=cache,
        bad_samples=bad,
        workers=workers,
        threads=threads,
        restarts=host.totals.restarts,
        slots=slots.count,
        leased=slots.leased,
        arena_bytes=host.arena.in_use - sum(directory.budgets.values()) + cached,
        gil_held=host.totals.gil_held,
    )
