"""headrace: a recipe with nothing cached, the same with every decoded sample cached, and the drop-in."""

from __future__ import annotations

from typing import Any

from benchmarks.common.contenders import Iterated, Setup

import headrace as hr
from headrace import DataLoader
from headrace.recipes.image import kernels

CACHE = "3GiB"
"""Room for all photos decoded: 4000 of about 500x375 are 2.1 GiB, 256 large ones at their cached size 1.0 GiB."""


class HeadraceLoader(Iterated):
    """A headrace DataLoader over a recipe or a dataset."""

    def __init__(self, dataset: Any, setup: Setup, **options: Any) -> None:
        self.loader = DataLoader(
            dataset,
            batch_size=setup.batch,
            shuffle=True,
            drop_last=True,
            num_workers=setup.workers,
            **options,
        )

    @property
    def notes(self) -> dict[str, Any]:
        """Which kernels there are, and what is cached by now."""
        decoded = self.loader.stats().cache.get("decoded")
        cached = {} if decoded is None else {"cached": decoded.samples, "cached_bytes": decoded.bytes}
        return {"kernels": kernels.describe(), **cached}

    def close(self) -> None:
        """End the workers."""
        self.loader.close()


def recipe(
    setup: Setup,
    source: Any = None,
    scale: tuple[float, float] = (0.08, 1.0),
    flip: float = 0.5,
    reduce: bool = True,
) -> hr.Recipe:
    """The same work as everybody's; on another ``source`` than all photos, or augmented otherwise, where asked."""
    return hr.Recipe(
        source=hr.folder(str(setup.photos)) if source is None else source,
        decode=hr.image.decode(reduce=reduce),
        augment=[hr.image.random_resized_crop(setup.size, scale=scale), hr.image.horizontal_flip(flip)],
    )


def open_uncached(setup: Setup) -> HeadraceLoader:
    """Nothing cached: every sample is read and decoded in every epoch."""
    return HeadraceLoader(recipe(setup), setup, cache=None)


def open_decoded(setup: Setup) -> HeadraceLoader:
    """Every sample is kept decoded: the first epoch fills the cache, later ones crop and resize from it."""
    return HeadraceLoader(recipe(setup), setup, cache=CACHE, split=(0, 1, 0))


def open_dropin(setup: Setup) -> HeadraceLoader:
    """The torch dataset with OpenCV, as it is, with the loader exchanged."""
    from benchmarks.single.contenders.datasets import OpenCVPhotos, one_thread

    return HeadraceLoader(OpenCVPhotos(setup), setup, persistent_workers=True, worker_init_fn=one_thread)
