"""headrace over the single objects of the bucket: without a disk tier, and with one of either size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.bucket.contenders import Setup, number_of

# (by name: headrace's parts, and torch, come in when they are named, and others' imports do not count either)
from headrace import DataLoader, Disk, Recipe, folder, image


def source(setup: Setup) -> Any:
    """The bucket as headrace's source. Where it is spelled otherwise, this is the one place to change."""
    return folder(f"{setup.bucket}/train", storage_options={"endpoint": setup.endpoint, "allow_http": True})


def disk_options(setup: Setup) -> dict[str, Any]:
    """What gives the loader a disk tier. It keeps the photos' own bytes, as everybody's cache does."""
    if not setup.cache_bytes:
        return {}
    return {"disk": Disk(setup.cache_bytes, setup.cache, form="encoded")}


class HeadraceLoader:
    """A recipe over the bucket; samples are told apart by their index, which stands in for their class."""

    def __init__(self, setup: Setup) -> None:
        photos = source(setup)
        self.photos = photos
        # Classes do not tell whether each photo came exactly once; the source's own order does.
        photos._targets = np.arange(len(photos))
        if not np.array_equal(photos.targets, np.arange(len(photos))):
            raise RuntimeError("the source's targets cannot be exchanged, so photos cannot be told apart")
        recipe = Recipe(
            source=photos,
            decode=image.decode(),
            augment=[image.random_resized_crop(setup.size), image.horizontal_flip()],
        )
        self.loader = DataLoader(
            recipe,
            batch_size=setup.batch,
            shuffle=True,
            num_workers=setup.workers,
            seed=setup.seed,
            cache=None,
            **disk_options(setup),
        )

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """One epoch."""
        yield from self.loader

    def numbers_of(self, indices: Any) -> Any:
        """The numbers of photos, by their place in the source. They stand in their names; no loop asks for those."""
        return np.array([number_of(self.photos.name(int(index))) for index in indices])

    def close(self) -> None:
        """End the workers."""
        self.loader.close()


def open_loader(setup: Setup) -> HeadraceLoader:
    """The loader, with a disk tier where there is room for one."""
    return HeadraceLoader(setup)
