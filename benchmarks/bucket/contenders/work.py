"""What the peers do with the bytes of a photo: as the torch datasets of the benchmark of one job."""

from __future__ import annotations

import random

import cv2
import torch
from benchmarks.common.crops import draw_box
from benchmarks.single.contenders.jpeg import Decoder

_decoder: Decoder | None = None


def prepare(jpeg: bytes, size: int) -> torch.Tensor:
    """Decode, random resized crop, flip. Crops come from Python's generator, which torch seeds in each worker."""
    global _decoder
    if _decoder is None:
        _decoder = Decoder()
    image = _decoder.decode(jpeg)
    left, top, wide, high = draw_box(random, image.shape[1], image.shape[0])
    out = cv2.resize(
        image[top : top + high, left : left + wide], (size, size), interpolation=cv2.INTER_LINEAR
    )
    if random.random() < 0.5:
        out = cv2.flip(out, 1)
    return torch.from_numpy(out)


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples as a batch."""
    return torch.stack([image for image, _ in samples]), torch.tensor([number for _, number in samples])


def start_worker(_worker: int = 0) -> None:
    """Workers are the parallelism; OpenCV's own threads on top of them only cost."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
