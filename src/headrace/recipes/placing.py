"""From values to rows: how leaves of samples lie in a batch, and how they get there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.layout import Field
from headrace.recipes.image.rows import from_storage
from headrace.recipes.row_groups import misfit
from headrace.recipes.values import is_pil, is_tensor, leaf_array


def field_of(leaf: Any) -> Field | None:
    """How a leaf of a sample lies in a batch; None for what is no array."""
    found = leaf_array(leaf)
    return None if found is None else Field(found[0].shape, found[1])


def write_leaf(leaf: Any, memory: NDArray[Any], row: int) -> None:
    """Write a leaf into its row; ``ValueError`` says why it does not fit."""
    found = leaf_array(leaf)
    if found is None:
        raise ValueError(f"a {type(leaf).__name__} cannot be a row of a batch; pass collate= to handle it")
    array = found[0]
    if array.shape != memory.shape[1:]:
        raise ValueError(misfit(array.shape, memory.shape[1:]))
    if array.dtype != memory.dtype and not np.can_cast(array.dtype, memory.dtype, "safe"):
        raise ValueError(
            f"its dtype is {array.dtype} and the rows of the batch are {memory.dtype}; "
            "make all samples of one dtype, or pass collate="
        )
    memory[row] = array


def as_arrays(value: Any) -> Any:
    """The value with arrays in the place of tensors and PIL images."""
    if isinstance(value, np.ndarray):
        return value
    if is_tensor(value) or is_pil(value):
        found = leaf_array(value)
        return value if found is None else from_storage(*found)
    if isinstance(value, dict):
        return {name: as_arrays(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(as_arrays, value))
    if type(value) in (list, tuple):
        return type(value)(map(as_arrays, value))
    return value
