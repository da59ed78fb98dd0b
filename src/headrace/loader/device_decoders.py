"""Decoding of JPEG images on a device, by whatever is installed that does it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import OptionError
from headrace.loader.cuts import Pictures
from headrace.loader.nvjpeg import NvJpeg, find_library


class DeviceDecoder(Protocol):
    """Decodes images on a device."""

    threads: int
    """So many may use it at a time."""

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> tuple[Pictures, list[int]]:
        """The images there, in the order of the stream that is current; and which of the blobs they are of: the rest
        cannot be decoded."""
        ...


def decoded(images: Sequence[torch.Tensor | None]) -> tuple[Pictures, list[int]]:
    """Images (height, width, three channels); None in the place of one that could not be decoded."""
    which = [at for at, image in enumerate(images) if image is not None]
    return Pictures.of([image for image in images if image is not None]), which


class Torchvision:
    """nvJPEG, by way of torchvision.

    It works on a stream of its own, in memory of the pool of the stream that is current, without waiting for that
    one: nothing may be under way there. And it has the stream wait that is current on the device which was current
    when it was first used: where that may have been another one, all of the device is waited for.
    """

    threads = 1

    def __init__(self, device: torch.device) -> None:
        used_before = "torchvision.io" in sys.modules
        io = importlib.import_module("torchvision.io")
        self._decode, self._mode = io.decode_jpeg, io.ImageReadMode.RGB
        self._device = device
        self._elsewhere = (
            used_before and torch.cuda.device_count() > 1 and torch.cuda.current_device() != device.index
        )

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> tuple[Pictures, list[int]]:
        """See ``DeviceDecoder``."""
        found = self._all([torch.from_numpy(blob) for blob in blobs])
        if self._elsewhere:
            torch.cuda.synchronize(self._device)
        return decoded(found)

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


class NvImageCodec:
    """nvJPEG, by way of NVIDIA's nvImageCodec. It works on the stream that is current, and says of each image whether
    it could be decoded. The memory is its own, for as long as somebody has the image."""

    threads = 1

    def __init__(self, device: torch.device) -> None:
        codec = importlib.import_module("nvidia.nvimgcodec")
        kinds = codec.BackendKind
        self._device, self._stream = device, codec.CodeStream
        self._decoder = codec.Decoder(
            device_id=device.index,
            max_num_cpu_threads=_THREADS,
            backends=[
                codec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)
            ],
        )
        self._wanted = codec.DecodeParams(color_spec=codec.ColorSpec.SRGB, apply_exif_orientation=False)

    def __call__(self, blobs: Sequence[NDArray[np.uint8]]) -> tuple[Pictures, list[int]]:
        """See ``DeviceDecoder``."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        images = self._decoder.decode(
            [self._stream(blob) for blob in blobs], params=self._wanted, cuda_stream=stream
        )
        return decoded(
            [None if image is None else torch.as_tensor(image, device=self._device) for image in images]
        )


_THREADS = 2
"""Of the job, for images that the device decodes in part."""
DECODERS: dict[str, Callable[[torch.device], DeviceDecoder]] = {
    "nvjpeg": NvJpeg,
    "torchvision": Torchvision,
    "nvidia.nvimgcodec": NvImageCodec,
}
"""By what each needs, the faster ones first."""


def can_decode() -> bool:
    """Whether something is installed that decodes on a device. It is not imported to find out."""
    return find_library() is not None or any(map(_is_installed, ("torchvision", "nvidia.nvimgcodec")))


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # (not even what it is a part of)
        return False


def find_decoder(device: torch.device) -> DeviceDecoder:
    """Whatever decodes on this device; an error says what to install."""
    said = []
    for name, decoder in DECODERS.items():
        try:
            return decoder(device)
        except (ImportError, AttributeError, RuntimeError) as error:
            said.append(f"{name}: {error}")
    raise OptionError(
        "gpu_decode=True: images are decoded on a GPU by nvJPEG, torchvision or nvidia-nvimgcodec, and none can be "
        f"used here ({'; '.join(said)}); install the torchvision that belongs to this torch, or leave gpu_decode= out"
    )
