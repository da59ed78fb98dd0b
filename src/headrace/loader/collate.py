"""Collating samples straight into a slot: torch's own rules, other memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.loader.codec import SlotMemory
from headrace.recipes.recipe import Recipe


def collate_into(samples: list[Any], memory: SlotMemory) -> Any:
    """What ``default_collate`` returns, with dense tensors laid into the slot as they are stacked."""

    def tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        plain = all(
            type(t) is torch.Tensor
            and t.layout == torch.strided
            and t.device.type == "cpu"
            and not t.is_nested
            for t in batch
        )
        if plain and not first.requires_grad:
            shape = (len(batch), *first.shape)
            if all(t.shape == first.shape and t.dtype == first.dtype for t in batch):
                out = memory.empty(shape, first.dtype)
                if out is not None:
                    return torch.stack(list(batch), 0, out=out)
        return _stack(batch, collate_fn_map=collate_fn_map)

    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: tensors})


def ragged_collate(recipe: Recipe) -> Callable[[list[Any]], Any] | None:
    """How samples become batches where they cannot be rows; None where they can."""
    return partial(_collate_ragged, stacked=recipe.size.fixed) if recipe.ragged else None


def _collate_ragged(samples: list[Any], *, stacked: bool) -> Any:
    """Images, stacked or in a list, and targets in a list.

    By numpy, because torch's threads do not survive the fork of a worker.
    """
    images, targets = zip(*samples, strict=True)
    return [_images(images, stacked), [_tensors(target) for target in targets]]


def _images(images: Sequence[NDArray[Any]], stacked: bool) -> Any:
    if not stacked:
        return [torch.from_numpy(np.ascontiguousarray(image)) for image in images]
    by_pixel = [image.transpose(1, 2, 0) for image in images]
    if all(image.flags.c_contiguous for image in by_pixel):  # they stay in channels_last format
        return torch.from_numpy(np.stack(by_pixel)).movedim(-1, 1)
    return torch.from_numpy(np.stack(images))


def _tensors(target: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        else value
        for name, value in target.items()
    }


def _stack(batch: Any, *, collate_fn_map: Any) -> Any:
    first = batch[0]
    if type(first) is torch.Tensor and first.layout == torch.strided and not first.is_nested:
        return torch.stack(list(batch), 0)
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
