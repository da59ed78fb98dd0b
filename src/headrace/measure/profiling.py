"""Take the profile of a recipe."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.core.memory import usable_cpus
from headrace.measure.cpu import as_in_workers, cpu_ticks, measure_cpu
from headrace.measure.loaded_samples import load_samples
from headrace.measure.machine import Machine
from headrace.measure.memory import measure_memory
from headrace.measure.profile import Profile
from headrace.measure.profile_files import fingerprint_of, label_of
from headrace.measure.sizes import Sizes, Spread
from headrace.measure.storage import THREAD_COUNTS, measure_storage
from headrace.measure.timed_threads import thread_counts
from headrace.recipes.recipe import Recipe
from headrace.sampling.uniform import epoch_order

SECONDS = 15.0
_SHARES = {"storage": 0.4, "samples": 0.06, "cpu": 0.46, "memory": 0.08}
"""Of the time, for each part."""
_SEED = 0x70726F66
"""Which samples are taken is random, and the same each time."""

Progress = Callable[[str, float], None]
"""Called with what is being measured, and the share of all that is done."""


def take_profile(recipe: Recipe, seconds: float = SECONDS, progress: Progress | None = None) -> Profile:
    """Measure what a recipe costs on this machine, in about ``seconds`` seconds. Nothing is kept.

    Runs the recipe's own code in this process and in forks of it. A recipe without a fingerprint gets an empty one,
    by which it will not be found again.
    """
    cpus = usable_cpus()
    order = epoch_order(len(recipe.source), _SEED, 0)[: 1 << 20].tolist()
    parts = _Parts(progress or (lambda what, share: None))
    with as_in_workers():
        parts.begin("storage", len(THREAD_COUNTS))
        storage = None
        if recipe.encoded:
            storage = measure_storage(recipe.source, order, seconds * _SHARES["storage"], parts.tick)
        parts.begin("samples", 1)
        loaded = load_samples(recipe, order, seconds * _SHARES["samples"])
        try:
            parts.begin("cpu", cpu_ticks(cpus))
            cpu = measure_cpu(loaded, cpus, seconds * _SHARES["cpu"], parts.tick)
        finally:
            loaded.close()
        parts.begin("memory", 2 * len(thread_counts(cpus)))
        memory = measure_memory(cpus, seconds * _SHARES["memory"], parts.tick)
    encoded = list(map(len, loaded.encoded)) if recipe.encoded else []
    return Profile(
        fingerprint=fingerprint_of(recipe) or "",
        machine=Machine.here(),
        label=label_of(recipe),
        samples=len(recipe.source),
        taken=time.time(),
        sizes=Sizes(Spread.of(encoded), Spread.of(loaded.decoded_sizes), Spread.of(loaded.augmented_sizes)),
        storage=storage,
        cpu=cpu,
        memory=memory,
    )


class _Parts:
    """How far it has come."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._what, self._done, self._share, self._tick = "", 0.0, 0.0, 0.0

    def begin(self, what: str, ticks: int) -> None:
        """The next part, of so many measurements."""
        self._done += self._share
        self._what, self._share, self._tick = what, _SHARES[what], _SHARES[what] / ticks
        self._at = self._done
        self._progress(what, self._at)

    def tick(self) -> None:
        """One measurement is done."""
        self._at = min(self._at + self._tick, self._done + self._share)
        self._progress(self._what, self._at)
