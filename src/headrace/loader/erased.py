"""What is erased of the rows of a batch, as a device is told it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Boxes:
    """What is erased of each row of a batch."""

    places: NDArray[np.int32]
    """For each row and box: top, left, height and width; of no height where there is none."""
    values: NDArray[np.float32]
    """For each row, box and channel, as it lies in the finished row."""
    kinds: NDArray[np.int32]
    """For each row and box: 0 has these values, 1 normal noise, 2 pixels of noise."""
    words: NDArray[np.uint64]
    """For each row and box: what its noise goes by."""
    starts: NDArray[np.int64]
    """For each row and box: how many numbers of that were used before."""
