"""Page-locked batches.

A GPU may read a pinned batch long after the last tensor over it is gone: ``x.cuda(non_blocking=True)`` returns before
the copy has begun. torch keeps count of that for memory of its own, and only for that: with every copy its allocator
notes the stream, and a block is used again when the stream is done with it. No loader can know this of memory of its
own, because CUDA does not tell which streams read it. So pinned batches lie in torch's memory, one copy away from the
slot, and the slot is free at once.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.loader.place import cpus_per_rank

_SMALL = 1 << 20
"""Bytes below which it does not matter who copies."""
_THREADS = 4
"""That work on one batch, at most."""


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
    kind = type(value)
    if kind is torch.Tensor:
        return pin_tensor(value)
    if kind is list or kind is tuple:
        return kind([pin_value(item) for item in value])
    if kind is dict:
        return {key: pin_value(item) for key, item in value.items()}
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value)  # type: ignore[no-untyped-call]


def pin_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in page-locked memory.

    torch would let all threads of the machine copy, each a part. The workers have those CPUs, so that one waits for
    the last of sixteen threads to be given one.
    """
    dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    nbytes = tensor.numel() * tensor.element_size()
    if (
        not dense
        or nbytes < _SMALL
        or tensor.device.type != "cpu"
        or tensor.requires_grad
        or tensor.is_pinned()
    ):
        return tensor.pin_memory()
    pinned = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=True)
    copy_bytes(_bytes(tensor), _bytes(pinned))
    return pinned


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    flat: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return flat


def copy_bytes(source: NDArray[np.uint8], target: NDArray[np.uint8], threads: int | None = None) -> None:
    """Copy an array, by few threads: what is copied is more than the caches hold, and memory is soon busy."""
    threads = few_hands() if threads is None else threads
    if threads == 1 or len(source) < threads:
        np.copyto(target, source)
        return
    size = -(-len(source) // threads)
    parts = [slice(at, at + size) for at in range(0, len(source), size)]
    at_once([functools.partial(np.copyto, target[part], source[part]) for part in parts])


def few_hands() -> int:
    """Threads of the job's own that may work on one batch: the workers need the CPUs."""
    return max(1, min(_THREADS, cpus_per_rank() // 4))


def at_once(pieces: Sequence[Callable[[], None]]) -> None:
    """Do all pieces of work, one of them in this thread."""
    others = [_hands().submit(piece) for piece in pieces[1:]]
    pieces[0]()
    for other in others:
        other.result()


@functools.cache
def _hands() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS - 1, thread_name_prefix="headrace-pin")


os.register_at_fork(after_in_child=_hands.cache_clear)
