"""Small pictures, so that two CPUs can feed eight ranks: photos made smaller, or drawn where there are no photos."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common.photos import CLASSES, QUALITY, PhotosUnavailable, make_photos
from benchmarks.common.progress import say, track

COUNT = 1000
SMALL, HEAVY, FULL = (320, 240), (960, 720), (500, 375)
"""Pixels: the usual ones, those that take about three times as long to prepare, and those of an ordinary photo."""
DRAWN = "drawn"
PHOTOS = "photos"


def make_pictures(data: Path, given: Path | None = None, count: int = COUNT) -> tuple[str, dict[str, Path]]:
    """Folders of class folders of JPEG files, by size: ``small``, ``heavy``, ``full``; and what they are made of.

    ``given``: a folder of class folders with photos, in the place of the benchmarks' own.
    """
    kind, photos = PHOTOS, given
    if photos is None:
        try:
            photos = make_photos(data, count)
        except (PhotosUnavailable, OSError) as error:
            say(f"no photos ({error}): pictures are drawn instead")
            kind = DRAWN
    sources = [] if photos is None else sorted(photos.rglob("*.jpg"))
    if photos is not None and not sources:
        raise PhotosUnavailable(f"{photos} has no .jpg files")
    roots = {}
    for name, size in (("small", SMALL), ("heavy", HEAVY), ("full", FULL)):
        root = data / f"ranks-{kind if given is None else 'given'}" / f"{name}-{size[0]}x{size[1]}-{count}"
        _fill(root, size, sources, count)
        roots[name] = root
    return kind if given is None else str(given), roots


def _fill(root: Path, size: tuple[int, int], sources: list[Path], count: int) -> None:
    todo = [at for at in range(count) if not _path(root, at).exists()]
    for label in range(CLASSES if todo else 0):
        (root / f"class_{label}").mkdir(parents=True, exist_ok=True)
    for at in track(todo, f"making {len(todo)} pictures of {size[0]}x{size[1]}") if todo else ():
        path = _path(root, at)
        partial = path.with_suffix(".partial")
        partial.write_bytes(shrink(sources[at % len(sources)], size) if sources else draw(at, size))
        partial.rename(path)


def _path(root: Path, number: int) -> Path:
    return root / f"class_{number % CLASSES}" / f"{number:04d}.jpg"


def shrink(photo: Path, size: tuple[int, int]) -> bytes:
    """A photo at another size."""
    from PIL import Image

    with Image.open(photo) as image:
        return _jpeg(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))


def draw(number: int, size: tuple[int, int]) -> bytes:
    """A made-up picture: soft patches of colour and some grain, so that it takes a photo's bytes."""
    from PIL import Image

    luck = np.random.default_rng(number)
    patches = luck.integers(0, 256, (size[1] // 12, size[0] // 12, 3), np.uint8)
    soft = np.asarray(Image.fromarray(patches).resize(size, Image.Resampling.BICUBIC), np.float32)
    grain = luck.normal(0, 6, (size[1], size[0], 1)).astype(np.float32)
    return _jpeg(Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8)))


def _jpeg(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()
