"""Collating samples straight into a slot: torch's own rules, other memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.loader.codec import SlotMemory

_SLACK = 4096
"""Bytes for what lies between the fields."""


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

    memory.expected = len(samples) * _bytes_of(samples[0]) + _SLACK
    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: tensors})


def _bytes_of(sample: Any) -> int:
    """What collating a sample adds to a batch, at most: all samples of a batch are alike."""
    if type(sample) is torch.Tensor:
        return sample.nbytes if sample.layout == torch.strided and not sample.is_nested else 0
    if isinstance(sample, np.ndarray):
        return sample.nbytes
    if isinstance(sample, int | float):
        return 8
    if isinstance(sample, Mapping):
        return sum(_bytes_of(value) for value in sample.values())
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        return sum(_bytes_of(value) for value in sample)
    return 0


def _stack(batch: Any, *, collate_fn_map: Any) -> Any:
    first = batch[0]
    if type(first) is torch.Tensor and first.layout == torch.strided and not first.is_nested:
        return torch.stack(list(batch), 0)
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
