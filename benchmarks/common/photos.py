"""The benchmark photos: seeded crops of photographs from Debian's wallpaper packages, about 500x375, JPEG.

Some benchmarks also have large ones, of 3 to 6 megapixels.

A photo is a pure function of its number, so the first thousand are the same whether a thousand or four
thousand are made. The packages are unpacked under ``.data``; nothing is installed on the machine.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.progress import say, track

PACKAGES = (
    "plasma-workspace-wallpapers",
    "mate-backgrounds",
    "lomiri-wallpapers-16.04",
    "lomiri-wallpapers-20.04",
)
SIZES = ((500, 375), (500, 375), (500, 333), (375, 500))
QUALITY = 92
CLASSES = 10
SEED = 20240611
ZOOM = (1.5, 5.0)
"""How many source pixels make one pixel of the photo; detail per pixel is then that of an ordinary photo."""
BYTES = (26_000, 120_000)
"""A crop outside of this is sky or noise, and another is cut."""
TRIES = 12
LARGE_PIXELS = (3e6, 6e6)
LARGE_RATIOS = (4 / 3, 3 / 2, 3 / 4)
LARGE_SOURCE = 4_000_000
"""Pixels that the source of a large photo has at least: one that is smaller than the photo is enlarged a little."""
FLAT = (
    *("Fossa", "Painting-Colors", "free", "umang", "DarkestHour", "Flow", "Kite", "Storm", "summer_1am"),
    *("PastelHills", "Volna", "Shell", "Honeywave", "greentock", "seeding", "Bridge"),
)
"""Drawings, skies and blurs: hardly any crop of these has an ordinary photo's size in bytes."""


Photo = Callable[[Any, random.Random], bytes]
"""Cuts one photo from a source."""


class PhotosUnavailable(RuntimeError):
    """The photos cannot be made on this machine; the message says what is missing."""


def make_photos(data: Path, count: int) -> Path:
    """Make the first ``count`` photos below ``data`` unless they are there; returns their class-folder root.

    Each count has a root of its own, hard-linked to the photos it shares with larger ones, because loaders
    that are handed a folder read all of it.
    """
    root = data / "photos" / "train"
    todo = [i for i in range(count) if not _path(root, i).exists()]
    if todo:
        _cut(_sources(data), root, todo)
    if not _path(root, count).exists():
        return root
    part = data / f"photos-{count}" / "train"
    for i in range(count):
        link = _path(part, i)
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(_path(root, i), link)
    return part


def make_large_photos(data: Path, count: int) -> Path:
    """As ``make_photos``, of 3 to 6 megapixels."""
    from PIL import Image

    root = data / f"large-{count}" / "train"
    todo = [i for i in range(count) if not _path(root, i).exists()]
    if todo:
        paths = _sources(data)
        sizes = {path: Image.open(path).size for path in paths}
        _cut([p for p in paths if math.prod(sizes[p]) >= LARGE_SOURCE], root, todo, _large_photo)
    return root


def describe_photos(root: Path) -> dict[str, Any]:
    """What a benchmark's result says about the photos it ran on."""
    sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
    return {
        "count": len(sizes),
        "mean_bytes": round(sum(sizes) / max(1, len(sizes))),
        "sizes": sorted({f"{w}x{h}" for w, h in SIZES}),
        "jpeg_quality": QUALITY,
        "chroma": "4:2:0",
    }


def warm(*roots: Path) -> int:
    """Read every file below ``roots`` once, so that everybody finds it in the page cache; returns bytes."""
    total = 0
    for root in roots:
        for path in [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file()):
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(1 << 22):
                    total += len(chunk)
    return total


def _path(root: Path, number: int) -> Path:
    return root / f"class_{number % CLASSES}" / f"{number:04d}.jpg"


def _sources(data: Path) -> list[Path]:
    """The photographs in the packages, unpacking these first where needed."""
    unpacked = data / "wallpapers"
    stamp = unpacked / "unpacked.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != list(PACKAGES):
        _unpack(data / "debs", unpacked)
        stamp.write_text(json.dumps(PACKAGES))
    found = [
        path for path in sorted(unpacked.rglob("*.jpg")) if not path.is_symlink() and _is_photograph(path)
    ]
    if not found:
        raise PhotosUnavailable(f"no photographs in the Debian packages {' '.join(PACKAGES)}")
    return found


def _is_photograph(path: Path) -> bool:
    # Screenshots are thumbnails of the others; "abstract" and "desktop" are drawings, as are most PNGs.
    drawn = path.stem == "screenshot" or path.parent.name in ("abstract", "desktop")
    return not drawn and not any(
        path.name.startswith((f"{name}_", f"{name}.")) or name in path.parts for name in FLAT
    )


def _unpack(debs: Path, into: Path) -> None:
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    hint = f"The benchmark photos come from the Debian packages {' '.join(PACKAGES)}; "
    if missing:
        raise PhotosUnavailable(f"{hint}{' and '.join(missing)} not found, so they cannot be unpacked here.")
    debs.mkdir(parents=True, exist_ok=True)
    into.mkdir(parents=True, exist_ok=True)
    for package in track(PACKAGES, "fetching wallpapers"):
        if not any(debs.glob(f"{package}_*.deb")):
            run = subprocess.run(["apt-get", "download", package], cwd=debs, capture_output=True, text=True)
            if run.returncode:
                lines = run.stderr.strip().splitlines() or ["apt-get download failed"]
                raise PhotosUnavailable(f"{hint}{lines[-1]} (does `apt-get update` help?)")
        for deb in debs.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", str(deb), str(into)], check=True)


def _cut(sources: list[Path], root: Path, numbers: list[int], photo: Photo | None = None) -> None:
    from PIL import Image

    for label in range(CLASSES):
        (root / f"class_{label}").mkdir(parents=True, exist_ok=True)
    # Photos of one source are cut together, so that each source is decoded once.
    by_source: dict[Path, list[int]] = defaultdict(list)
    for number in numbers:
        by_source[random.Random(SEED * 1_000_003 + number).choice(sources)].append(number)
    work = [(path, number) for path in sources for number in by_source[path]]
    opened: tuple[Path, Any] | None = None
    for path, number in track(work, f"cutting {len(work)} photos"):
        if opened is None or opened[0] != path:
            opened = path, Image.open(path).convert("RGB")
        target = _path(root, number)
        partial = target.with_suffix(".partial")
        partial.write_bytes((photo or _photo)(opened[1], random.Random(f"{SEED}/{number}")))
        partial.rename(target)
    say(f"{len(work)} photos in {root}")


def _large_photo(source: Any, draw: random.Random) -> bytes:
    """One JPEG of random area and ratio, pixel by pixel where the source is large enough."""
    from PIL import Image

    pixels, ratio = draw.uniform(*LARGE_PIXELS), draw.choice(LARGE_RATIOS)
    width, height = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
    zoom = min(1.0, source.width / width, source.height / height)
    wide, high = int(width * zoom), int(height * zoom)
    x, y = draw.uniform(0, source.width - wide), draw.uniform(0, source.height - high)
    crop = source.resize((width, height), Image.Resampling.BICUBIC, box=(x, y, x + wide, y + high))
    file = io.BytesIO()
    crop.save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()


def _photo(source: Any, draw: random.Random) -> bytes:
    """One JPEG: the first crop of an ordinary size in bytes, else the one that comes nearest to it."""
    from PIL import Image

    best, middle = b"", sum(BYTES) / 2
    for _ in range(TRIES):
        width, height = draw.choice(SIZES)
        zoom = min(draw.uniform(*ZOOM), source.width / width, source.height / height)
        wide, high = width * zoom, height * zoom
        x, y = draw.uniform(0, source.width - wide), draw.uniform(0, source.height - high)
        crop = source.resize((width, height), Image.Resampling.BICUBIC, box=(x, y, x + wide, y + high))
        file = io.BytesIO()
        crop.save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
        jpeg = file.getvalue()
        if BYTES[0] <= len(jpeg) <= BYTES[1]:
            return jpeg
        if not best or abs(len(jpeg) - middle) < abs(len(best) - middle):
            best = jpeg
    return best
