"""Memory of a CUDA device that processes share, by way of descriptors. (CUDA's handles of the older kind die with the
process that made them; what these descriptors stand for lives as long as anybody has one, or has mapped it.)"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Protocol

import torch

from headrace.loader.cuts import memory_at

_PINNED, _DESCRIPTOR, _DEVICE, _READ_WRITE = 1, 1, 1, 3
"""Of the driver: memory that stays where it is; what stands for it outside; where it is; what is done there."""


class DeviceMemory(Protocol):
    """Makes and maps memory that other processes can map, too. What is mapped stays so until ``close``."""

    granularity: int
    """Sizes are multiples of this."""

    def create(self, nbytes: int) -> int:
        """A descriptor of new memory. Raises MemoryError where there is none."""
        ...

    def map(self, fd: int, nbytes: int) -> torch.Tensor:
        """Bytes that a descriptor stands for, which is not kept. Raises OSError if it stands for no such memory."""
        ...

    def close(self) -> None:
        """Let go of all of it, once nothing under way reads it."""
        ...


def device_memory(device: torch.device) -> DeviceMemory:
    """Memory of a device. Raises OSError where it cannot be shared."""
    return CudaMemory(device)


def device_name(device: torch.device) -> tuple[str, str]:
    """What a device is called in all processes, and for people."""
    if device.type != "cuda":
        return str(device), str(device)
    found = torch.cuda.get_device_properties(device)
    return str(getattr(found, "uuid", (found.name, device.index))), f"{device} ({found.name})"


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class CudaMemory:
    """See ``DeviceMemory``."""

    def __init__(self, device: torch.device) -> None:
        """Raises OSError where the driver does not do this."""
        self._device = device
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        self._location = _Location(_DEVICE, device.index)
        self._wanted = _Properties(_PINNED, _DESCRIPTOR, self._location, None, 0)
        self._mapped: list[tuple[int, int]] = []
        found = ctypes.c_size_t()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(self._wanted), 0)
        self.granularity = int(found.value)

    def _call(self, name: str, *words: Any) -> None:
        with torch.cuda.device(self._device):
            torch.cuda.current_stream(self._device).query()  # (threads have to have met the device)
            status = int(getattr(self._driver, name)(*words))
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'').decode() or status}")

    def create(self, nbytes: int) -> int:
        """See ``DeviceMemory``."""
        handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        try:
            self._call(
                "cuMemCreate",
                ctypes.byref(handle),
                ctypes.c_size_t(nbytes),
                ctypes.byref(self._wanted),
                ctypes.c_uint64(0),
            )
        except OSError as error:
            raise MemoryError(str(error)) from None
        try:
            self._call(
                "cuMemExportToShareableHandle", ctypes.byref(fd), handle, _DESCRIPTOR, ctypes.c_uint64(0)
            )
        finally:
            self._call("cuMemRelease", handle)
        os.set_inheritable(fd.value, False)
        return fd.value

    def map(self, fd: int, nbytes: int) -> torch.Tensor:
        """See ``DeviceMemory``."""
        size, none = ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
        handle, place = ctypes.c_uint64(), ctypes.c_uint64()
        self._call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _DESCRIPTOR)
        try:
            self._call("cuMemAddressReserve", ctypes.byref(place), size, ctypes.c_size_t(0), none, none)
            try:
                self._call("cuMemMap", place, size, ctypes.c_size_t(0), handle, none)
            except OSError:
                self._call("cuMemAddressFree", place, size)
                raise
        finally:
            self._call("cuMemRelease", handle)  # (what is mapped stays)
        self._mapped.append((int(place.value), nbytes))
        access = _Access(self._location, _READ_WRITE)
        self._call("cuMemSetAccess", place, size, ctypes.byref(access), ctypes.c_size_t(1))
        return memory_at(int(place.value), nbytes, self._device)

    def close(self) -> None:
        """See ``DeviceMemory``."""
        if not self._mapped:
            return
        torch.cuda.synchronize(self._device)
        mapped, self._mapped = self._mapped, []
        for place, nbytes in mapped:
            self._call("cuMemUnmap", ctypes.c_uint64(place), ctypes.c_size_t(nbytes))
            self._call("cuMemAddressFree", ctypes.c_uint64(place), ctypes.c_size_t(nbytes))
