"""headrace: a recipe over storage that is slow, with nothing cached."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.contenders import touch
from benchmarks.ranks.contenders import Setup
from benchmarks.ranks.storage import Storage
from numpy.typing import NDArray

import headrace as hr
from headrace import DataLoader

MOST = ("preparing_most",)
"""Fields of ``loader.stats()`` that may say how many threads prepared at once on the node, at most."""


class SlowSource:
    """The storage as a source. No ``FileSource``: where its files lie must not be a way around the delays."""

    encoded = True

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.targets = storage.labels

    def __len__(self) -> int:
        return len(self._storage)

    def read_many(self, indices: Sequence[int] | NDArray[Any]) -> list[bytes | BaseException]:
        """One after the other, as on a file system."""
        return [self._storage.read(int(index)) for index in indices]

    def name(self, index: int) -> str:
        """The file."""
        paths = self._storage.paths
        return paths[index % len(paths)]

    def identity(self, index: int) -> str:
        """The file, and which of the samples that it stands for."""
        return f"{self.name(index)}\0{index}"

    def fingerprint(self) -> str:
        """A digest of the files."""
        paths = self._storage.paths
        return hashlib.sha256(f"{len(self)} {len(paths)} {paths[0]}".encode()).hexdigest()


class HeadraceLoader:
    """A headrace DataLoader, which finds its place among the ranks in the environment."""

    def __init__(self, setup: Setup) -> None:
        recipe = hr.Recipe(
            source=SlowSource(setup.storage()),
            decode=hr.image.decode(),
            augment=[hr.image.random_resized_crop(setup.size), hr.image.horizontal_flip()],
        )
        # Left out is left out: that is a case of its own.
        chosen: dict[str, Any] = {} if setup.workers is None else {"num_workers": setup.workers}
        self._loader = DataLoader(
            recipe, batch_size=setup.batch, shuffle=True, drop_last=True, seed=setup.seed, **chosen
        )

    def batches(self) -> Iterator[int]:
        """See ``Contender``."""
        for images, _labels in self._loader:
            yield touch(images)

    def told(self) -> dict[str, Any]:
        """See ``Contender``."""
        stats = self._loader.stats()
        found = {name: getattr(stats, name) for name in ("workers", "threads", "slots")}
        found["seconds"] = {
            name: round(getattr(stats, name), 3)
            for name in ("waited", "fetch", "decode", "augment", "wait_order", "wait_fetch", "wait_room")
        }
        most = [value for name in MOST if (value := getattr(stats, name, None)) is not None]
        return {**found, "preparing": int(most[0])} if most else found

    def close(self) -> None:
        """See ``Contender``."""
        self._loader.close()


def open_loader(setup: Setup) -> HeadraceLoader:
    """The loader."""
    return HeadraceLoader(setup)
