"""Images for the examples, made here so that nothing has to be downloaded.

Each class has its own colours and its own direction of stripes; clouds and grain on top make them compress, and
decode, like photographs. An image is a pure function of its number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

CLASSES = 10


def picture(number: int, size: tuple[int, int] = (500, 375), quality: int = 90) -> bytes:
    """The JPEG with this number; its class is ``number % CLASSES``. ``size`` is (width, height)."""
    width, height = size
    draw = np.random.default_rng(number)
    label = number % CLASSES
    angle = float(np.pi * label / CLASSES + draw.normal(0, 0.05))
    waves = float(draw.uniform(40, 60))
    across = np.linspace(0, waves * np.cos(angle), width, dtype=np.float32)
    down = np.linspace(0, waves * np.sin(angle), height, dtype=np.float32)
    shade = 21 * np.sin(across + down[:, None] + np.float32(draw.uniform(0, 6)))
    for cells, strength in ((4, 60), (12, 36), (40, 30), (120, 24)):
        clouds = draw.random((cells * height // width + 1, cells), np.float32) - np.float32(0.5)
        shade += strength * cv2.resize(clouds, size, interpolation=cv2.INTER_LINEAR)
    top, left = draw.integers(0, 128, 2)
    shade += _grain(width, height)[top : top + height, left : left + width]
    hue = (label * 18 + draw.normal(0, 6)) % 180
    tint = cv2.cvtColor(np.array([[[hue, 110, 150]]], np.uint8), cv2.COLOR_HSV2BGR)[0, 0]
    pixels = shade[..., None] + tint.astype(np.float32)
    image = np.clip(pixels, 0, 255).astype(np.uint8)
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


@cache
def _grain(width: int, height: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(0, 5, (height + 128, width + 128)).astype(np.float32)


def picture_path(root: Path, number: int) -> Path:
    """Where an image lies: a folder per class, as ``headrace.folder`` expects."""
    return root / f"class_{number % CLASSES}" / f"{number:05d}.jpg"


def write_picture(root: Path, number: int, size: tuple[int, int] = (500, 375)) -> None:
    """Make an image unless it is there. It appears whole or not at all."""
    path = picture_path(root, number)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(picture(number, size))
        partial.rename(path)


@contextmanager
def image_folder(count: int = 96, size: tuple[int, int] = (160, 120)) -> Iterator[Path]:
    """A folder of ``count`` small images that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-example-") as name:
        root = Path(name)
        for number in range(count):
            write_picture(root, number, size)
        yield root
