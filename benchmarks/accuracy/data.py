"""Fashion-MNIST as image files in class folders: enlarged, in three channels, JPEG.

Where Debian's package cannot be had, the pictures come from a file that ``pack`` wrote on another machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common.progress import say
from PIL import Image

NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
PARTS = ("train", "test")
QUALITY = 95
Arrays = dict[str, Any]
"""Images and labels of each part."""


def installed(repository: Path, counts: tuple[int, int]) -> Arrays:
    """The first pictures of both parts, from Debian's package."""
    from benchmarks.training import data

    data.install(repository)
    arrays: Arrays = {}
    for part, theirs, count in zip(PARTS, ("train", "t10k"), counts, strict=True):
        arrays[f"{part}_images"] = data.read_images(theirs)[:count]
        arrays[f"{part}_labels"] = data.read_labels(theirs)[:count].astype(np.uint8)
    return arrays


def pack(arrays: Arrays, path: Path) -> None:
    """Write pictures into one file, to be carried to a machine without them."""
    np.savez_compressed(path, **arrays)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def packed(path: Path, counts: tuple[int, int]) -> Arrays:
    """The first pictures of such a file."""
    with np.load(path, allow_pickle=False) as found:
        return {name: found[name][: counts[name.startswith("test")]] for name in found.files}


def write(arrays: Arrays, folder: Path, side: int) -> None:
    """Class folders below ``folder/train`` and ``folder/test``, unless they are there."""
    done = folder / "done"
    if done.exists():
        return
    say(f"writing {len(arrays['train_labels'])} + {len(arrays['test_labels'])} pictures of {side}x{side}")
    for part in PARTS:
        for name in NAMES:
            (folder / part / name).mkdir(parents=True, exist_ok=True)
        for at, (pixels, label) in enumerate(
            zip(arrays[f"{part}_images"], arrays[f"{part}_labels"].tolist(), strict=True)
        ):
            image = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC).convert("RGB")
            image.save(folder / part / NAMES[label] / f"{at:05d}.jpg", quality=QUALITY)
    done.touch()
