"""Steps of a user's, in a module that helpers can import."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def noisy(image: Any) -> Any:
    """Draws from generators that all threads of a process share."""
    drawn = np.random.randint(0, 100, image.shape, np.uint8) + random.randint(0, 50)
    return (image // 2 + drawn).astype(np.uint8)


def half(image: Any) -> Any:
    """Rows of another size than any step of headrace's would give."""
    return np.ascontiguousarray(image[::2, ::2])


def even(label: int) -> int:
    """Of a target."""
    return label // 2 * 2
