"""NVIDIA's nvJPEG, without anybody between: many images at a time, on the decoding engines of GPUs that have some.

The library comes with torchvision, with CUDA, and as a package of its own. What is asked of it here: plain JPEG
images, of three colours, into memory of torch's, on the stream that is current, in threads of the caller's.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.loader.cuts import Pictures

_ENGINES, _PLANES = 3, 3
"""Of the library: the engines decode; red, green and blue lie one after the other."""
_FAILURE = 5
"""It has no memory."""
_SUBSAMPLINGS = (0, 1, 2, 3)
"""Colours at full resolution, or at half of it along one axis or both: what engines decode."""
_ALIGN = 256
_IMAGE = np.dtype([("planes", np.uint64, 4), ("pitches", np.uint64, 4)])


@functools.cache
def find_library() -> str | None:
    """The library of the CUDA that torch was built for, if it is here; what else is loaded is not looked at."""
    major = (torch.version.cuda or "").partition(".")[0]
    if not major:
        return None
    for name in [*_places(major), f"libnvjpeg.so.{major}"]:
        try:
            ctypes.CDLL(name)
            return name
        except OSError:
            continue
    return None


def _places(major: str) -> Iterator[str]:
    """Where packages have put it."""
    for module, pattern in (
        ("torchvision", f"../torchvision.libs/libnvjpeg.*so.{major}*"),
        ("nvidia", f"*/lib/libnvjpeg.so.{major}"),
    ):
        found = importlib.util.find_spec(module)
        for place in (found.submodule_search_locations or ()) if found is not None else ():
            yield from sorted(str(path) for path in Path(place).glob(pattern))


class NvJpeg:
    """See ``DeviceDecoder``. Raises RuntimeError where the library, or the engines, are not there."""

    threads = 2

    def __init__(self, device: torch.device) -> None:
        name = find_library()
        if name is None:
            raise RuntimeError("nvJPEG is not installed")
        self._device = device
        self._library: Any = ctypes.CDLL(name)
        void, size = ctypes.c_void_p, ctypes.c_size_t
        self._library.nvjpegGetImageInfo.argtypes = [void, size, size, size, size, size, size]
        self._handle = ctypes.c_void_p()
        with torch.cuda.device(device):
            status = self._library.nvjpegCreateEx(_ENGINES, None, None, 0, ctypes.byref(self._handle))
        if status:
            raise RuntimeError(f"nvJPEG finds no engines on {device} (status {status})")
        self._of_thread = threading.local()

    def _state(self) -> Any:
        """What this thread decodes with."""
        state = getattr(self._of_thread, "state", None)
        if state is None:
            state = ctypes.c_void_p()
            status = self._library.nvjpegJpegStateCreate(self._handle, ctypes.byref(state))
            if status:
                raise RuntimeError(f"nvJPEG cannot be used (status {status})")
            self._of_thread.state = state
        return state

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> tuple[Pictures, list[int]]:
        """See ``DeviceDecoder``."""
        places = np.array([blob.__array_interface__["data"][0] for blob in blobs], np.uint64)
        sizes = np.array([len(blob) for blob in blobs], np.uint64)
        sides = self._sides(places, sizes)
        which = np.flatnonzero(sides[:, 0] > 0)
        if not len(which):
            return Pictures.of([]), []
        high, wide = sides[which].T
        areas = high.astype(np.int64) * wide
        room = -(-3 * areas // _ALIGN) * _ALIGN
        memory = torch.empty(int(room.sum()), dtype=torch.uint8, device=self._device)
        begins = memory.data_ptr() + np.concatenate([[0], np.cumsum(room[:-1])])
        images = np.zeros(len(which), _IMAGE)
        images["planes"][:, :3] = begins[:, None] + areas[:, None] * np.arange(3)
        images["pitches"][:, :3] = wide[:, None]
        with torch.cuda.device(self._device):
            good = self._decode(places[which], sizes[which], images)
        pictures = Pictures.planes(begins[good], np.stack([high, wide], 1)[good], [memory])
        return pictures, which[good].tolist()

    def _sides(self, places: NDArray[np.uint64], sizes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Heights and widths; 0: an image is not for the engines."""
        found = np.zeros((len(places), 10), np.int32)
        base, line = found.ctypes.data, found.strides[0]
        ask, handle = self._library.nvjpegGetImageInfo, self._handle
        for at, (place, size) in enumerate(zip(places.tolist(), sizes.tolist(), strict=True)):
            mine = base + at * line  # (components, subsampling, four widths and four heights)
            if ask(handle, place, size, mine, mine + 4, mine + 8, mine + 24):
                found[at] = 0
        may = (found[:, 0] == 3) & np.isin(found[:, 1], _SUBSAMPLINGS)
        sides: NDArray[np.int32] = np.where(may[:, None], found[:, [6, 2]], 0)
        return sides

    def _decode(
        self, places: NDArray[np.uint64], sizes: NDArray[np.uint64], images: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Decode images; which of them could be. The library only says that one of them is at fault."""
        library, state, count = self._library, self._state(), len(places)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        status = library.nvjpegDecodeBatchedInitialize(self._handle, state, count, 1, _PLANES)
        if not status:
            status = library.nvjpegDecodeBatched(
                self._handle,
                state,
                ctypes.c_void_p(places.ctypes.data),
                ctypes.c_void_p(sizes.ctypes.data),
                ctypes.c_void_p(images.ctypes.data),
                stream,
            )
        if not status:
            return np.arange(count)
        if status == _FAILURE:
            raise torch.cuda.OutOfMemoryError("nvJPEG: CUDA out of memory")
        if count == 1:
            return np.empty(0, np.int64)
        half = count // 2
        first = self._decode(places[:half], sizes[:half], images[:half])
        return np.concatenate([first, half + self._decode(places[half:], sizes[half:], images[half:])])
