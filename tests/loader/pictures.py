"""Recipes whose batches are more than one tensor of rows: views, mixed samples, masks and boxes that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import headrace as hr


def photos(root: Path) -> tuple[list[str], list[str]]:
    """Eighty small images of noise, and a mask of each."""
    dice = np.random.default_rng(0)
    for number in range(80):
        pixels = dice.integers(0, 256, (48, 64, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{number:02}.png")
        Image.fromarray(pixels[..., 0] // 64).save(root / f"{number:02}.mask.png")
    images = sorted(root.glob("??.png"))
    return [str(path) for path in images], [str(path.with_suffix(".mask.png")) for path in images]


def views(images: list[str], masks: list[str]) -> dict[str, Any]:
    steps = [hr.image.random_resized_crop(40), hr.image.horizontal_flip(), hr.image.to_float()]
    small = [hr.image.random_resized_crop(16), hr.image.to_float()]
    return {"source": hr.files(images, range(80)), "augment": hr.views(steps, steps, small)}


def mixed(images: list[str], masks: list[str]) -> dict[str, Any]:
    steps = [hr.image.random_resized_crop(40), hr.image.to_float()]
    batch = hr.image.one_of(hr.image.mixup(10), hr.image.cutmix(10))
    return {
        "source": hr.files(images, [number % 10 for number in range(80)]),
        "augment": steps,
        "batch": batch,
    }


def with_masks(images: list[str], masks: list[str]) -> dict[str, Any]:
    steps = [hr.image.random_resized_crop(40), hr.image.horizontal_flip(), hr.image.to_float()]
    return {"source": hr.files(images, masks), "augment": steps, "follow": hr.image.mask()}


def with_boxes(images: list[str], masks: list[str]) -> dict[str, Any]:
    targets = [{"boxes": np.array([[2, 2, 30 + n % 8, 40]]), "labels": np.array([n])} for n in range(80)]
    steps = [hr.image.random_resized_crop(40), hr.image.to_float()]
    return {"source": hr.files(images, targets), "augment": steps, "follow": hr.image.boxes()}


def flat(value: Any) -> list[torch.Tensor]:
    """All tensors of a nested batch."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in flat(part)]


KINDS = {"views": views, "mixed": mixed, "masks": with_masks, "boxes": with_boxes}


def recipe(kind: str, root: Path) -> hr.Recipe:
    """The recipe of a kind, over images that are written into a folder."""
    return hr.Recipe(decode=hr.image.decode(), **KINDS[kind](*photos(root)))
