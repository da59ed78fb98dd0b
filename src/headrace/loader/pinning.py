"""Page-locked slots: pinned batches without the copy that pinning usually costs."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import torch

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Slot


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
    if not torch.cuda.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )
        return False
    return True


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def pin_value(value: Any) -> Any:
    """Every tensor of a nested value in page-locked memory; one that lies there already is not copied."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(value)  # type: ignore[no-untyped-call]


class Pinner:
    """Registers slots with CUDA as they are made, and lets go of them with the loader."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._registered: dict[tuple[int, int], int] = {}

    def pin(self, slot: Slot) -> bool:
        """Page-lock a slot's memory; False where CUDA refuses (the caller then copies)."""
        key = (slot.offset, slot.nbytes)
        if key in self._registered:
            return True
        buffer = self._arena.map(*key)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        status: Any = _cudart().cudaHostRegister(address, slot.nbytes, 0)
        if int(status) != 0:
            return False
        self._registered[key] = address
        return True

    def release(self, slot: Slot) -> None:
        """A slot's memory is about to be freed."""
        address = self._registered.pop((slot.offset, slot.nbytes), None)
        if address is not None:
            _cudart().cudaHostUnregister(address)

    def close(self) -> None:
        """Unlock everything that is not in use."""
        for address in self._registered.values():
            _cudart().cudaHostUnregister(address)
        self._registered.clear()
