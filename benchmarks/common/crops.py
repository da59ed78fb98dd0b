"""The random resized crop of the benchmarks: 8 to 100 % of the area, aspect ratio 3/4 to 4/3, as torchvision's."""

from __future__ import annotations

import math
import random

Box = tuple[int, int, int, int]
"""Left, top, width, height."""

_LOG_RATIO = math.log(4 / 3)


def draw_box(draw: random.Random, width: int, height: int) -> Box:
    """A random box inside an image of ``width`` x ``height``."""
    area = width * height
    for _ in range(10):
        target = area * (0.08 + 0.92 * draw.random())
        ratio = math.exp((2 * draw.random() - 1) * _LOG_RATIO)
        wide, high = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left = int(draw.random() * (width - wide + 1))
            top = int(draw.random() * (height - high + 1))
            return left, top, wide, high
    # What remains is an image far from the allowed ratios: its largest centred box that has one of them.
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - wide) // 2, (height - high) // 2, wide, high
