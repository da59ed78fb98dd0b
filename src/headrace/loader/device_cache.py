"""Decoded images in the memory of a device: what is there is neither read nor decoded nor copied again.

Samples come in as they are met, until the room is used up, and stay. In epochs that use each sample once, no choice
of samples serves more of them; and as nothing is ever taken out, nobody can find it gone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size, show_size
from headrace.engine.held import HeldSamples

_ALIGN = 256
"""Bytes: where kernels like images to begin."""
_CHUNK = 1 << 28
"""Bytes that are taken at a time."""


def cache_bytes(wanted: int | float | str | None, device: torch.device) -> int:
    """Bytes of a device's memory for images, as a user says it."""
    if device.type != "cuda":
        return parse_size(wanted, total=1 << 30, option="gpu_cache")
    free, total = torch.cuda.mem_get_info(device)
    found = parse_size(wanted, total=total, option="gpu_cache")
    if found > free:
        raise OptionError(
            f"gpu_cache={wanted!r} is {show_size(found)}, but {show_size(free)} of {device} are free, and the model "
            "needs some of that, too; use less"
        )
    return found


class DeviceCache:
    """Images in chunks of a device's memory. One thread adds, and one looks."""

    def __init__(self, budget: int, samples: int, device: torch.device, held: HeldSamples) -> None:
        self._device, self._held = device, held
        self._left = budget
        self._chunks: list[torch.Tensor] = []
        self._used = 0
        """Of the last chunk."""
        self._noted = 0
        """Chunks of which torch's allocator knows that they are read on another stream than their own."""
        self._places: NDArray[np.int64] = np.zeros(samples, np.int64)
        self._sides: NDArray[np.int32] = np.zeros((samples, 2), np.int32)
        self.bytes = self.samples = self.hits = 0
        self.full = False
        """Whether an image did not find room."""

    def add(self, sample: int, image: torch.Tensor) -> torch.Tensor | None:
        """Keep a copy of an image (height, width, three channels), on the stream that is current; None: there is no
        room. ``publish`` says when others may know."""
        height, width, channels = image.shape
        # (it may have been on its way here before it was known to be there)
        room = None if self._places[sample] else self._room(height * width * channels)
        if room is None:
            return None
        # (as it lies: what decodes makes planes)
        there = room.view(channels, height, width)
        there.copy_(image.permute(2, 0, 1))
        return there

    def publish(self, sample: int, there: torch.Tensor) -> None:
        """An image has been copied."""
        _, height, width = there.shape
        if self._places[sample]:
            return
        self._sides[sample] = height, width
        self._places[sample] = there.data_ptr()
        self.samples += 1
        self._held.add(sample, height, width)

    def _room(self, nbytes: int) -> torch.Tensor | None:
        size = -(-nbytes // _ALIGN) * _ALIGN
        if not self._chunks or self._used + size > len(self._chunks[-1]):
            chunk = max(min(_CHUNK, self._left), size)
            if chunk > self._left:
                self.full = True
                return None
            self._chunks.append(torch.empty(chunk, dtype=torch.uint8, device=self._device))
            self._left -= chunk
            self._used = 0
        room = self._chunks[-1][self._used : self._used + nbytes]
        self._used += size
        self.bytes += size
        return room

    def read_on(self, stream: Any) -> None:
        """Images are read on this stream. (When the memory is given back, what is under way there goes first.)"""
        for chunk in self._chunks[self._noted :]:
            chunk.record_stream(stream)
            self._noted += 1

    def find(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Addresses of images, planes of which lie one after the other, and their heights and widths."""
        self.hits += len(samples)
        return self._places[samples], self._sides[samples]
