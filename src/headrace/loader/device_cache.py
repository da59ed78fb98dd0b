"""Decoded images in the memory of a device: what is there is neither read nor decoded nor copied again.

Samples come in as they are met, until the room is used up, and stay. In epochs that use each sample once, no choice
of samples serves more of them; and as nothing is ever taken out, nobody can find it gone.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

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


def cache_bytes(wanted: int | float | str | None, device: torch.device, *, shared: bool = False) -> int:
    """Bytes of a device's memory for images, as a user says it. ``shared``: others may have taken them already."""
    if device.type != "cuda":
        return parse_size(wanted, total=1 << 30, option="gpu_cache")
    free, total = torch.cuda.mem_get_info(device)
    found, most = parse_size(wanted, total=total, option="gpu_cache"), total if shared else free
    if found > most:
        raise OptionError(
            f"gpu_cache={wanted!r} is {show_size(found)}, but {show_size(most)} of {device} are "
            f"{'all there is' if shared else 'free'}, and the model needs some of that, too; use less"
        )
    return found


class Room(NamedTuple):
    """Where an image may lie."""

    memory: torch.Tensor
    chunk: int
    end: int
    """Bytes of the chunk that are used with it."""


class Rooms(Protocol):
    """Where images find room. One thread takes it."""

    full: bool
    """Whether an image did not find room."""

    def take(self, nbytes: int) -> Room | None:
        """Room for an image; None: there is none."""
        ...

    def has(self, sample: int) -> bool:
        """Whether an image is held by somebody else already."""
        ...

    def tell(self, sample: int, room: Room, height: int, width: int) -> None:
        """An image lies there."""
        ...

    def read_on(self, stream: Any) -> None:
        """Images are read on this stream. (When the memory is given back, what is under way there goes first.)"""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class OwnRooms:
    """Memory that this process alone has. See ``Rooms``."""

    def __init__(self, budget: int, device: torch.device) -> None:
        self._left, self._device = budget, device
        self._chunks: list[torch.Tensor] = []
        self._used = 0
        """Of the last chunk."""
        self._noted = 0
        """Chunks of which torch's allocator knows that they are read on another stream than their own."""
        self.full = False

    def take(self, nbytes: int) -> Room | None:
        """See ``Rooms``."""
        size = -(-nbytes // _ALIGN) * _ALIGN
        if not self._chunks or self._used + size > len(self._chunks[-1]):
            chunk = max(min(_CHUNK, self._left), size)
            if chunk > self._left:
                self.full = True
                return None
            try:
                self._chunks.append(torch.empty(chunk, dtype=torch.uint8, device=self._device))
            except torch.cuda.OutOfMemoryError:
                self.full = True
                return None
            self._left -= chunk
            self._used = 0
        memory = self._chunks[-1][self._used : self._used + nbytes]
        self._used += size
        return Room(memory, len(self._chunks), self._used)

    def has(self, sample: int) -> bool:
        """See ``Rooms``."""
        return False

    def tell(self, sample: int, room: Room, height: int, width: int) -> None:
        """See ``Rooms``."""

    def read_on(self, stream: Any) -> None:
        """See ``Rooms``."""
        for chunk in self._chunks[self._noted :]:
            chunk.record_stream(stream)
            self._noted += 1

    def close(self) -> None:
        """See ``Rooms``."""
        self._chunks.clear()


class DeviceCache:
    """Images in the memory of a device. One thread adds, one looks, and one may learn of what others have added."""

    def __init__(self, samples: int, held: HeldSamples) -> None:
        self._held = held
        self.rooms: Rooms
        self._places: NDArray[np.int64] = np.zeros(samples, np.int64)
        self._sides: NDArray[np.int32] = np.zeros((samples, 2), np.int32)
        self._writing = threading.Lock()
        self.bytes = self.samples = self.hits = 0

    @property
    def full(self) -> bool:
        """Whether an image did not find room."""
        return self.rooms.full

    def add(self, sample: int, image: torch.Tensor) -> Room | None:
        """Keep a copy of an image (height, width, three channels), on the stream that is current; None: there is no
        room. ``publish`` says when others may know."""
        height, width, channels = image.shape
        # (it may have been on its way here before it was known to be there)
        if self._places[sample] or self.rooms.has(sample):
            return None
        room = self.rooms.take(height * width * channels)
        if room is not None:
            # (as it lies: what decodes makes planes)
            room.memory.view(channels, height, width).copy_(image.permute(2, 0, 1))
        return room

    def publish(self, sample: int, room: Room, height: int, width: int) -> None:
        """An image has been copied."""
        self.rooms.tell(sample, room, height, width)
        place = room.memory.data_ptr()
        self.learn(np.array([sample]), np.array([place]), np.array([[height, width]]))

    def learn(self, samples: NDArray[np.int64], places: NDArray[np.int64], sides: NDArray[np.int64]) -> None:
        """Images lie at these addresses."""
        with self._writing:
            new = self._places[samples] == 0
            samples, places, sides = samples[new], places[new], sides[new]
            self._sides[samples] = sides
            self._places[samples] = places
            self.samples += len(samples)
            self.bytes += 3 * int(sides.prod(1).sum())
            self._held.add(samples, sides)

    def find(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Addresses of images, planes of which lie one after the other, and their heights and widths."""
        self.hits += len(samples)
        return self._places[samples], self._sides[samples]
