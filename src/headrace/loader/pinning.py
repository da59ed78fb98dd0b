"""Page-locked batches.

A GPU may read a pinned batch long after the last tensor over it is gone: ``x.cuda(non_blocking=True)`` returns before
the copy has begun. torch keeps count of that for memory of its own, and only for that: with every copy its allocator
notes the stream, and a block is used again when the stream is done with it. No loader can know this of memory of its
own, because CUDA does not tell which streams read it. So pinned batches lie in torch's memory, one copy away from the
slot, and the slot is free at once.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch


def wants_pinning(pin_memory: bool, pin_memory_device: str = "") -> bool:
    """Whether batches are to be pinned; warns, as torch does, where there is nothing to pin for."""
    if not pin_memory:
        return False
    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=4,
        )
    kind = _accelerator()
    if kind is None:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )
        return False
    if kind == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
            stacklevel=4,
        )
        return False
    return True


def _accelerator() -> str | None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # torch before 2.6
        return "cuda" if torch.cuda.is_available() else None
    return str(accelerator.current_accelerator().type) if accelerator.is_available() else None


def pin_value(value: Any) -> Any:
    """Every tensor of a nested value in page-locked memory of torch's."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value)  # type: ignore[no-untyped-call]
