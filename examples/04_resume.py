"""Stop in the middle of an epoch and go on from there, in another process if need be.

A state is a handful of plain values. It counts the batches that you were given, never those prepared ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

import headrace as hr
from _data import image_folder


def make_loader(root: Path, **options: Any) -> hr.DataLoader:
    """The loader of a training script, made again after a restart."""
    recipe = hr.Recipe(
        source=hr.folder(root),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(32), hr.image.horizontal_flip()],
    )
    return hr.DataLoader(recipe, shuffle=True, seed=7, **options)


class Stream(IterableDataset[int]):
    """A dataset that knows its own place: nothing is read again when it goes on."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        """What ``load_state_dict`` needs."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.at = state["at"]


def main() -> None:
    """Take two batches, save, and compare what follows with an epoch that was never interrupted."""
    with image_folder(96) as root:
        with make_loader(root, batch_size=16) as loader:
            whole = [images.clone() for images, _ in loader]
        with make_loader(root, batch_size=16) as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            saved = json.dumps(loader.state_dict())  # beside the model's, in your checkpoint
        print("state:", saved)

        with make_loader(root, batch_size=16, num_workers=1) as loader:
            loader.load_state_dict(json.loads(saved))
            rest = [images.clone() for images, _ in loader]
        same = all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))
        print(f"{len(rest)} batches left, equal bit for bit: {same}")

        with make_loader(root, batch_size=8) as loader:  # other batch sizes and world sizes go on as well
            loader.load_state_dict(json.loads(saved))
            print(f"with batches of 8: {sum(len(labels) for _, labels in loader)} samples left")

    stream = hr.DataLoader(Stream(10), batch_size=2)
    print("a stream:", next(iter(stream)).tolist(), end=" ")
    saved = json.dumps(stream.state_dict())
    stream = hr.DataLoader(Stream(10), batch_size=2)
    stream.load_state_dict(json.loads(saved))
    print("and then", [batch.tolist() for batch in stream])


if __name__ == "__main__":
    main()
