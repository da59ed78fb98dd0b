"""headrace: every job for itself, or all with one shared cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.sharing.contenders import Counts
from benchmarks.single.contenders import Setup, touch

import headrace as hr
from headrace import DataLoader


class HeadraceLoader:
    """One job's DataLoader. The number of workers is headrace's own choice."""

    def __init__(self, recipe: hr.Recipe, setup: Setup, **options: Any) -> None:
        self.loader: Any = DataLoader(recipe, batch_size=setup.batch, shuffle=True, **options)

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch."""
        for images, _labels in self.loader:
            yield touch(images)

    def counts(self, images: int) -> Counts:
        """What the loader says of itself."""
        stats = self.loader.stats()
        return Counts(stats.decoded, stats.hits)

    def close(self) -> None:
        """End the workers."""
        self.loader.close()


def recipe(setup: Setup, options: dict[str, Any]) -> hr.Recipe:
    """The same work as everybody's.

    ``part`` takes a stretch of the photos, in shares of all of them; ``scale`` and ``flip`` augment otherwise.
    """
    if "part" in options:
        # Names sort by class first, so a stretch of them would be one of classes; any stretch will do.
        paths, labels = setup.samples()
        low, high = (round(share * len(paths)) for share in options["part"])
        source = hr.files(paths[low:high], labels[low:high])
    else:
        source = hr.folder(str(setup.photos))
    return hr.Recipe(
        source=source,
        decode=hr.image.decode(),
        augment=[
            hr.image.random_resized_crop(setup.size, scale=tuple(options.get("scale", (0.08, 1.0)))),
            hr.image.horizontal_flip(options.get("flip", 0.5)),
        ],
    )


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
