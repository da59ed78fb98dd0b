"""Small images: JPEG files of 64 x 64 pixels, made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIDE = 64


def make_images(data: Path, count: int) -> Path:
    """A folder of ten classes with ``count`` small images, the same every time."""
    import simplejpeg

    place = data / f"small-{SIDE}-{count}"
    if place.exists():
        return place
    partial = place.with_suffix(".partial")
    rng = np.random.default_rng(0)
    for at in range(count):
        # Coarse noise, enlarged: photographs of that size compress about as well.
        coarse = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8)
        image = np.ascontiguousarray(coarse.repeat(8, 0).repeat(8, 1))
        image += rng.integers(0, 8, image.shape, np.uint8)
        path = partial / f"{at % 10}" / f"{at:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(image, quality=85, colorspace="RGB"))
    partial.rename(place)
    return place
