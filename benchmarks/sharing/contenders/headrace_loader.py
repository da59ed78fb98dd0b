"""headrace: every job for itself, or all with one shared cache."""

from __future__ import annotations

from typing import Any

from benchmarks.common.contenders import Iterated, Setup
from benchmarks.sharing.contenders import Counts
from benchmarks.single.contenders import headrace_loader as single

import headrace as hr
from headrace import DataLoader


class HeadraceLoader(Iterated):
    """One job's DataLoader. The number of workers is headrace's own choice."""

    def __init__(self, recipe: hr.Recipe, setup: Setup, **options: Any) -> None:
        self.loader = DataLoader(recipe, batch_size=setup.batch, shuffle=True, **options)

    def counts(self, images: int) -> Counts:
        """What the loader says of itself."""
        stats = self.loader.stats()
        return Counts(stats.decoded, stats.hits, stats.misses)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()


def recipe(setup: Setup, options: dict[str, Any]) -> hr.Recipe:
    """The same work as everybody's.

    ``part`` takes a stretch of the photos, in shares of all of them; ``scale`` and ``flip`` augment otherwise.
    """
    source = None
    if "part" in options:
        # Names sort by class first, so a stretch of them would be one of classes; any stretch will do.
        paths, labels = setup.samples()
        low, high = (round(share * len(paths)) for share in options["part"])
        source = hr.files(paths[low:high], labels[low:high])
    scale, flip = tuple(options.get("scale", (0.08, 1.0))), options.get("flip", 0.5)
    # Jobs that crop otherwise share what is decoded, so it must not depend on the crop.
    return single.recipe(setup, source, scale, flip, reduce=False)


def open_alone(setup: Setup, number: int, options: dict[str, Any]) -> HeadraceLoader:
    """Nothing cached, nothing shared."""
    return HeadraceLoader(recipe(setup, options), setup)


def open_shared(setup: Setup, number: int, options: dict[str, Any]) -> HeadraceLoader:
    """One of the jobs that share ``cache`` bytes."""
    more = {"split": tuple(options["split"])} if "split" in options else {}
    return HeadraceLoader(
        recipe(setup, options),
        setup,
        cache=options["cache"],
        share=True,
        sampling=options["sampling"],
        seed=None,
        **more,
    )
