"""The random resized crop of the benchmarks, as torchvision's: 8 to 100 % of the area, ratio 3/4 to 4/3."""

from __future__ import annotations

import math
from typing import Protocol

Box = tuple[int, int, int, int]
"""Left, top, width, height."""


class Draw(Protocol):
    """Where random numbers come from: a ``random.Random``, or the module ``random`` itself."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


_LOG_RATIO = math.log(4 / 3)


def draw_box(draw: Draw, width: int, height: int) -> Box:
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
