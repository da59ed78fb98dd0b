"""One training job over the photos on slow storage: epochs until the cache is settled, then some that count.

Takes its orders as JSON on the command line and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.sources.local import FileSource


class ColdFiles(FileSource):
    """Files that are read from the disk each time: what was read is dropped from the system's memory."""

    def read_many(self, indices: Sequence[int]) -> list[bytes | BaseException]:
        """See ``Source``."""
        found = super().read_many(indices)
        for path in self._table.many(indices):
            drop(path)
        return found


def drop(path: bytes | Path) -> None:
    """Let the system forget what it holds of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def photos(root: str, count: int) -> hr.Recipe:
    """The recipe of the benchmark photos, which are read from the disk."""
    folder = hr.folder(root)
    source = ColdFiles(folder._table, folder.targets, classes=folder.classes)
    assert len(source) == count
    return hr.Recipe(
        source=source,
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(224), hr.image.horizontal_flip()],
    )


def main() -> None:
    """Run."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    Path(wanted["group"]).write_text(str(os.getpid()))
    recipe = photos(wanted["photos"], wanted["count"])
    split = wanted["split"]
    loader = hr.DataLoader(
        recipe,
        batch_size=64,
        shuffle=True,
        cache=wanted["cache"],
        split=None if split == "auto" else split,
        persistent_workers=True,
        seed=wanted["seed"],
    )
    rates, splits = [], []
    for _ in range(wanted["settle"] + wanted["epochs"]):
        begun, images = time.perf_counter(), 0
        for batch, _targets in loader:
            images += len(batch)
        rates.append(images / (time.perf_counter() - begun))
        stats = loader.stats()
        splits.append({name: form.budget for name, form in stats.cache.items()})
    own_split = loader._epochs.session.cache.own_split
    terms = own_split.planner.terms if own_split is not None else None
    print(
        json.dumps(
            {
                "rates": rates,
                "splits": splits,
                "cached": {name: form.samples for name, form in stats.cache.items()},
                "hit_rate": stats.hit_rate,
                "terms": None if terms is None else asdict(terms),
            }
        )
    )
    loader.close()


if __name__ == "__main__":
    main()
