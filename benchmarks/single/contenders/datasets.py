"""Map-style torch datasets: what a user of torch's DataLoader writes today."""

from __future__ import annotations

import random
from typing import Any

import cv2
import numpy as np
import torch
from benchmarks.common.contenders import Setup
from benchmarks.common.crops import draw_box
from benchmarks.single.contenders.jpeg import Decoder
from PIL import Image
from torch.utils.data import Dataset


class OpenCVPhotos(Dataset[tuple[torch.Tensor, int]]):
    """simplejpeg (libjpeg-turbo) decodes, OpenCV crops, resizes and flips.

    Crops come from Python's global generator, which torch seeds differently in each worker.
    """

    def __init__(self, setup: Setup) -> None:
        self.paths, self.labels = setup.samples()
        self.size = (setup.size, setup.size)
        self.decoder = Decoder()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index], "rb", buffering=0) as file:
            image = self.decoder.decode(file.read())
        left, top, wide, high = draw_box(random, image.shape[1], image.shape[0])
        out = cv2.resize(
            image[top : top + high, left : left + wide], self.size, interpolation=cv2.INTER_LINEAR
        )
        if random.random() < 0.5:
            out = cv2.flip(out, 1)
        return torch.from_numpy(out), self.labels[index]


class PILPhotos(OpenCVPhotos):
    """Pillow does everything, as under torchvision's default image backend."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index], "rb") as file:
            image: Any = Image.open(file).convert("RGB")
        left, top, wide, high = draw_box(random, image.width, image.height)
        box = (left, top, left + wide, top + high)
        image = image.resize(self.size, Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)), self.labels[index]


def one_thread(_worker: int = 0) -> None:
    """Workers are the parallelism; OpenCV's own threads on top of them only cost."""
    cv2.setNumThreads(0)
