"""Batches of samples whose targets differ in size: what a recipe with boxes has for a collate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# torch is imported where batches are made: whoever gets them has it. None of its operations is used, because their
# threads do not survive the fork of a worker.


def stacked_images(samples: list[Any]) -> Any:
    """Images of one size as one tensor, and their targets in a list."""
    import torch

    images, targets = _parts(samples)
    by_pixel = [image.transpose(1, 2, 0) for image in images]
    if all(image.flags.c_contiguous for image in by_pixel):  # they stay in channels_last format
        return [torch.from_numpy(np.stack(by_pixel)).movedim(-1, 1), targets]
    return [torch.from_numpy(np.stack(images)), targets]


def listed_images(samples: list[Any]) -> Any:
    """Images of any sizes and their targets, both in lists."""
    import torch

    images, targets = _parts(samples)
    return [[torch.from_numpy(np.ascontiguousarray(image)) for image in images], targets]


def _parts(samples: list[Any]) -> tuple[Sequence[NDArray[Any]], list[dict[str, Any]]]:
    images, targets = zip(*samples, strict=True)
    return images, [_tensors(target) for target in targets]


def _tensors(target: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {
        name: torch.from_numpy(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        else value
        for name, value in target.items()
    }
