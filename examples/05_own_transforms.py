"""Your own code in a recipe: any callable decodes, augments or collates.

It runs in the workers. Python's, numpy's and torch's global generators are seeded for each sample before a
callable runs, so plain calls to them are reproducible whatever the number of workers.
"""

from __future__ import annotations

import random
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

import headrace as hr
from _data import image_folder


def decode(data: bytes) -> NDArray[np.uint8]:
    """Bytes in, anything out. Taken to be deterministic: its result is what the cache keeps."""
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def shrink(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Depends on its input alone, and says so below: it belongs to the decoded form."""
    return np.ascontiguousarray(image[::2, ::2])


def random_strip(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Random, as callables in augment= are taken to be: a strip of 16 to 48 columns."""
    return image[:, : random.randint(16, 48)]


def pad(samples: list[tuple[NDArray[np.uint8], int]]) -> dict[str, Any]:
    """A batch of images of different widths."""
    widest = max(image.shape[1] for image, _ in samples)
    images = [np.pad(image, ((0, 0), (0, widest - image.shape[1]), (0, 0))) for image, _ in samples]
    return {"images": torch.from_numpy(np.stack(images)), "widths": [im.shape[1] for im, _ in samples]}


def main() -> None:
    """One epoch of batches of varying width."""
    with image_folder(64) as root:
        recipe = hr.Recipe(
            hr.folder(root), decode=decode, augment=[hr.deterministic(shrink), random_strip], collate=pad
        )
        with hr.DataLoader(recipe, batch_size=16, shuffle=True, seed=3, cache="16MiB") as loader:
            for batch in loader:
                widths = batch["widths"]
                print(f"{tuple(batch['images'].shape)}: {min(widths)} to {max(widths)} columns wide")


if __name__ == "__main__":
    main()
