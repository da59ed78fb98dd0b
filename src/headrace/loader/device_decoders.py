"""Decoding of JPEG images on a device, by whatever is installed that does it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import OptionError


class DeviceDecoder(Protocol):
    """Decodes images on a device."""

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> list[torch.Tensor | None]:
        """The images there (uint8; height, width and three channels, in whatever order they lie), in the order of the
        stream that is current; None in the place of one that cannot be decoded."""
        ...


class Torchvision:
    """nvJPEG, by way of torchvision.

    It works on a stream of its own, in memory of the pool of the stream that is current, without waiting for that
    one: nothing may be under way there. And it has the stream wait that is current on the device which was current
    when it was first used: where that may have been another one, all of the device is waited for.
    """

    def __init__(self, device: torch.device) -> None:
        used_before = "torchvision.io" in sys.modules
        io = importlib.import_module("torchvision.io")
        self._decode, self._mode = io.decode_jpeg, io.ImageReadMode.RGB
        self._device = device
        self._elsewhere = (
            used_before and torch.cuda.device_count() > 1 and torch.cuda.current_device() != device.index
        )

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> list[torch.Tensor | None]:
        """See ``DeviceDecoder``."""
        found = self._all([torch.from_numpy(blob) for blob in blobs])
        if self._elsewhere:
            torch.cuda.synchronize(self._device)
        return found

    def _all(self, blobs: list[torch.Tensor]) -> list[torch.Tensor | None]:
        try:
            images: list[Any] = self._decode(blobs, mode=self._mode, device=self._device)
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise
            if len(blobs) == 1:
                return [None]
            # One of them is at fault, and it is not said which.
            half = len(blobs) // 2
            return [*self._all(blobs[:half]), *self._all(blobs[half:])]
        return [image.permute(1, 2, 0) for image in images]


def can_decode() -> bool:
    """Whether something is installed that decodes on a device. It is not imported to find out."""
    return importlib.util.find_spec("torchvision") is not None


def find_decoder(device: torch.device) -> DeviceDecoder:
    """Whatever decodes on this device; an error says what to install."""
    try:
        return Torchvision(device)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise OptionError(
            f"gpu_decode=True: images are decoded on a GPU by torchvision, which cannot be used here ({error}); "
            "install the torchvision that belongs to this torch, or leave gpu_decode= out"
        ) from None
