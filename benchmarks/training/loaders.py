"""The loaders that feed the same training: torch's, and headrace with each way to draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import torch
from benchmarks.training.data import SIDE, Fashion
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace as hr

BATCH = 100
PADDING = 2
EXTENT = 1024
"""Bytes of one decoded image in the cache, its header and alignment included, and rounded up."""
CACHED = 0.2
"""The cache holds this share of the decoded images: far from all, so that what is drawn depends on what is there."""


class Shifted(Dataset[tuple[torch.Tensor, int]]):
    """The images, shifted by up to two pixels and flipped at random, for torch's loader."""

    def __init__(self, data: Fashion, seed: int) -> None:
        self._paths, self._targets = data.paths, data.targets.tolist()
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = cv2.imread(self._paths[index], cv2.IMREAD_GRAYSCALE)
        padded = np.zeros((SIDE + 2 * PADDING,) * 2, np.uint8)
        padded[PADDING:-PADDING, PADDING:-PADDING] = image
        y, x, flip = self._random.integers(0, (2 * PADDING + 1, 2 * PADDING + 1, 2)).tolist()
        crop = padded[y : y + SIDE, x : x + SIDE]
        crop = np.ascontiguousarray(crop[:, ::-1] if flip else crop)
        return torch.from_numpy(crop)[None], self._targets[index]


def torch_loader(data: Fashion, seed: int) -> Any:
    """torch's own, in the training process: images this small are not worth a worker."""
    generator = torch.Generator().manual_seed(seed)
    return TorchLoader(Shifted(data, seed), BATCH, shuffle=True, generator=generator)


def recipe(data: Fashion) -> hr.Recipe:
    """The same for headrace."""
    return hr.Recipe(
        source=hr.files(data.paths, data.targets),
        decode=hr.image.decode("L"),
        augment=[hr.image.random_crop(SIDE, padding=PADDING), hr.image.horizontal_flip()],
    )


def headrace_loader(sampling: str | None) -> Callable[[Fashion, int], Any]:
    """headrace: alone, or sharing with jobs that run beside it and draw by ``sampling``."""

    def make(data: Fashion, seed: int) -> Any:
        options: dict[str, Any] = {}
        if sampling is not None:
            cache = int(CACHED * EXTENT * len(data.paths))
            options = {"cache": cache, "share": True, "sampling": sampling}
        return hr.DataLoader(recipe(data), BATCH, shuffle=True, seed=seed, num_workers=1, **options)

    return make


SAMPLINGS = ("uniform", "opportunistic", "dependent", "auto")
LOADERS: dict[str, Callable[[Fashion, int], Any]] = {
    "torch": torch_loader,
    "alone": headrace_loader(None),
    **{sampling: headrace_loader(sampling) for sampling in SAMPLINGS},
}
LABELS = {
    "torch": "torch DataLoader",
    "alone": "headrace, not shared",
    **{sampling: f"headrace, shared, {sampling}" for sampling in SAMPLINGS},
}
