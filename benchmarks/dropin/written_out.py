"""Torchvision's usual training pipeline written out with torch and Pillow, for machines without torchvision.

The classes bear torchvision's names, parameters and modules, and do what its documentation says.
"""

from __future__ import annotations

import math
import os
import random
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

T = TypeVar("T")


def _theirs(module: str) -> Any:
    def mark(thing: T) -> T:
        thing.__module__ = module
        return thing

    return mark


_FOLDER, _TRANSFORMS = "torchvision.datasets.folder", "torchvision.transforms.transforms"


class InterpolationMode(Enum):
    """How pixels are found between pixels."""

    BILINEAR = "bilinear"


@_theirs(_FOLDER)
def default_loader(path: str) -> Any:
    """An image of three channels."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


@_theirs(_FOLDER)
class ImageFolder(torch.utils.data.Dataset[Any]):
    """A folder for each class."""

    def __init__(self, root: str, transform: Any = None) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.loader, self.transform, self.target_transform = default_loader, transform, None

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        return self.transform(self.loader(path)), target

    def __len__(self) -> int:
        return len(self.samples)


@_theirs(_TRANSFORMS)
class Compose:
    """One after the other."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


@_theirs(_TRANSFORMS)
class RandomResizedCrop:
    """A random part, resized."""

    def __init__(self, size: int, scale: tuple[float, float] = (0.08, 1.0)) -> None:
        self.size, self.scale, self.ratio = (size, size), scale, (3 / 4, 4 / 3)
        self.interpolation, self.antialias = InterpolationMode.BILINEAR, True

    def __call__(self, image: Any) -> Any:
        width, height = image.size
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = width * height * random.uniform(*self.scale)
            ratio = math.exp(random.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = random.randint(0, width - w), random.randint(0, height - h)
                break
        else:
            w = h = min(width, height)
            left, top = (width - w) // 2, (height - h) // 2
        return image.crop((left, top, left + w, top + h)).resize(self.size, Image.Resampling.BILINEAR)


@_theirs(_TRANSFORMS)
class Resize:
    """All of it, resized to height and width."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size, self.max_size = size, None
        self.interpolation, self.antialias = InterpolationMode.BILINEAR, True

    def __call__(self, image: Any) -> Any:
        return image.resize(self.size[::-1], Image.Resampling.BILINEAR)


@_theirs(_TRANSFORMS)
class RandomHorizontalFlip:
    """Left and right exchanged, or not."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < self.p else image


@_theirs(_TRANSFORMS)
class ToTensor:
    """Floats from 0 to 1, channels first."""

    def __call__(self, image: Any) -> Any:
        pixels = torch.from_numpy(np.array(image, np.uint8))
        return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


@_theirs(_TRANSFORMS)
class Normalize:
    """Mean and deviation of each channel."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Any) -> Any:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return image.clone().sub_(mean).div_(std)
