"""From a slot's rows to tensors, without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from headrace.core.layout import Field, RowLayout
from headrace.core.tree import Spec, unflatten

_TORCH = {
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "bfloat16": torch.bfloat16,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a field."""
    if name in _TORCH:
        return _TORCH[name]
    dtype: torch.dtype = torch.from_numpy(np.zeros(0, name)).dtype
    return dtype


def tensor_over(lease: Any, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
    """A flat tensor over a part of a slot on loan. It holds on to the lease."""
    if not lease.memory.in_reach:
        raise TypeError(f"tensors over {lease.memory.value} memory are not known yet")
    return torch.frombuffer(lease, dtype=dtype, count=count, offset=offset)


class RowWrapper:
    """Makes batches of tensors over slots of one layout."""

    def __init__(self, layout: RowLayout, *, batched: bool = True) -> None:
        self._layout = layout
        self._dtypes = [torch_dtype(field.dtype) for field in layout.fields]
        self._tree = _collated(layout.tree) if batched else layout.tree
        self._batched = batched

    def wrap(self, lease: Any, rows: int, good: int) -> Any:
        """The first ``good`` rows of a slot laid out for ``rows`` rows, nested as torch's collate would."""
        leaves = []
        for field, dtype, offset in zip(
            self._layout.fields, self._dtypes, self._layout.offsets(rows), strict=True
        ):
            leaves.append(self._tensor(field, dtype, lease, offset, good))
        return unflatten(self._tree, leaves)

    def _tensor(self, field: Field, dtype: torch.dtype, lease: Any, offset: int, good: int) -> Any:
        count = good * math.prod(field.shape)
        if count == 0:
            return torch.empty((good, *field.shape), dtype=dtype)
        tensor = tensor_over(lease, dtype, count, offset).view(good, *field.shape)
        if field.channels_last:
            tensor = tensor.movedim(-1, 1)
        return tensor if self._batched else tensor[0]


def _collated(tree: Spec) -> Spec:
    """torch's default collate turns tuples into lists and keeps the rest; so do we."""
    children = tuple(_collated(child) for child in tree.children)
    return tree._replace(kind="list" if tree.kind == "tuple" else tree.kind, children=children)


def close_gaps(views: list[Any], bad: list[int], rows: int) -> int:
    """Move rows up over the bad ones, keeping their order; returns how many are left."""
    good = np.setdiff1d(np.arange(rows), bad)
    for view in views:
        for to, row in enumerate(good.tolist()):
            if to != row:
                view[to] = view[row]
    return len(good)


def fill_gaps(views: list[Any], bad: list[int], rows: int) -> bool:
    """Let good rows of the same batch stand in for the bad ones; False if there is none."""
    good = np.setdiff1d(np.arange(rows), bad)
    if not len(good):
        return False
    for at, row in enumerate(sorted(bad)):
        for view in views:
            view[row] = view[good[at % len(good)]]
    return True
