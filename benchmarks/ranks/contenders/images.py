"""Decode, random resized crop, flip, with the fastest libraries that are there."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from benchmarks.common.crops import Draw, draw_box

try:
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    LIBRARIES = "simplejpeg, OpenCV"
except ImportError:
    from PIL import Image

    LIBRARIES = "Pillow"


def crop(jpeg: bytes, size: int, draw: Draw) -> Any:
    """One random crop of ``size`` x ``size``, as RGB."""
    if LIBRARIES == "Pillow":
        photo: Any = Image.open(io.BytesIO(jpeg)).convert("RGB")
        left, top, wide, high = draw_box(draw, photo.width, photo.height)
        box = (left, top, left + wide, top + high)
        out = np.array(photo.resize((size, size), Image.Resampling.BILINEAR, box=box))
    else:
        image = simplejpeg.decode_jpeg(jpeg)
        left, top, wide, high = draw_box(draw, image.shape[1], image.shape[0])
        part = image[top : top + high, left : left + wide]
        out = cv2.resize(part, (size, size), interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(out[:, ::-1]) if draw.random() < 0.5 else out
