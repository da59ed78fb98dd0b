"""Decoding of JPEG images on a device, by whatever is installed that does it."""

from __future__ import annotations

import importlib
import importlib.util
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
    """nvJPEG, by way of torchvision."""

    def __init__(self, device: torch.device) -> None:
        io = importlib.import_module("torchvision.io")
        self._decode, self._mode = io.decode_jpeg, io.ImageReadMode.RGB
        self._device = device

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> list[torch.Tensor | None]:
        """See ``DeviceDecoder``."""
        given = [torch.from_numpy(blob) for blob in blobs]
        found = self._some(given)
        if found is None and len(given) > 1:
            # One of them is at fault, and it is not said which.
            return [None if one is None else one[0] for one in (self._some([blob]) for blob in given)]
        return [None] * len(given) if found is None else list(found)

    def _some(self, blobs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        try:
            images: list[Any] = self._decode(blobs, mode=self._mode, device=self._device)
        except RuntimeError as error:
            if "out of memory" in str(error):
                raise
            return None
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
