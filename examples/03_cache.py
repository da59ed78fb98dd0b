"""With cache=, decoded samples are kept in shared memory: what is cached is neither read nor decoded again.

Batches are prepared ahead, also those of the next epoch, so a few samples are read for the second epoch before
the first has cached them; soon after, nothing is read.

The decoded form is what comes before anything random. A leading resize is deterministic, so it belongs to it, and
the cache then holds small images: many more of them fit.
"""

from __future__ import annotations

from pathlib import Path

import headrace as hr
from _data import image_folder


def epochs(root: Path, augment: list[object]) -> None:
    """Four epochs, and what the cache did in them."""
    recipe = hr.Recipe(source=hr.folder(root), decode=hr.image.decode(), augment=augment)
    # Sizes: bytes, "64MiB", "25%" or 0.25 of this machine's (or container's) memory.
    # (two workers: with more, several epochs of so few images would be under way at once)
    with hr.DataLoader(recipe, batch_size=32, shuffle=True, cache="64MiB", num_workers=2) as loader:
        read = 0
        for epoch in range(4):
            for _ in loader:
                pass
            stats = loader.stats()
            print(f"  epoch {epoch}: {stats.fetched_samples - read} files read")
            read = stats.fetched_samples
        held = stats.cache["decoded"]
        print(f"  cached: {held.samples} samples, {held.bytes // held.samples} bytes each")


def main() -> None:
    """Whole images in the cache, then resized ones."""
    with image_folder(96, size=(320, 240)) as root:
        print("whole images")
        epochs(root, [hr.image.random_resized_crop(64), hr.image.horizontal_flip()])
        print("resized to 96 first")
        epochs(root, [hr.image.resize((96, 96)), hr.image.random_crop(64), hr.image.horizontal_flip()])


if __name__ == "__main__":
    main()
