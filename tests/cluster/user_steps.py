"""Steps of a user's, in a module that helpers can import."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import numpy as np

FAILS = "HEADRACE_TEST_FAILS"
"""In the environment of processes whose storage fails after a while."""
_calls = itertools.count()


def reading(image: Any) -> Any:
    """A step that reads something from a disk, which is broken on some nodes."""
    if FAILS in os.environ and next(_calls) > 20:
        raise OSError(5, "Input/output error")
    return image


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
