"""Batches by torch's own rules, for samples that are not all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# torch is imported where batches are made: whoever gets them has it. None of its operations is used on large data,
# because their threads do not survive the fork of a worker.


def collated(samples: list[Any]) -> Any:
    """As ``torch.utils.data.default_collate``: arrays are stacked, numbers become tensors, texts a list."""
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    return collate(samples, collate_fn_map={**default_collate_fn_map, np.ndarray: _stacked})


def _stacked(batch: Sequence[NDArray[Any]], *, collate_fn_map: Any = None) -> Any:
    import torch

    if len({array.shape for array in batch}) > 1:
        raise ValueError(
            f"arrays of shapes {batch[0].shape} and others cannot be stacked; make all samples equal, or pass "
            "collate= to put unequal ones together"
        )
    if batch[0].ndim == 3:
        by_pixel = [array.transpose(1, 2, 0) for array in batch]
        if all(array.flags.c_contiguous for array in by_pixel):  # images in channels_last format stay so
            return torch.from_numpy(np.stack(by_pixel)).movedim(-1, 1)
    return torch.from_numpy(np.stack(batch))
