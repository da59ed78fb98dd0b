"""No loader: a batch that is there already. What is left is what the machine itself does to ranks in lockstep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.common.contenders import touch
from benchmarks.ranks.contenders import Setup


class Ready:
    """The same batch again and again."""

    def __init__(self, setup: Setup) -> None:
        self._batch = np.zeros((setup.batch, setup.size, setup.size, 3), np.uint8)
        self._steps = setup.samples // setup.batch // setup.ranks

    def batches(self) -> Iterator[int]:
        """See ``Contender``."""
        for _ in range(self._steps):
            yield touch(self._batch)

    def told(self) -> dict[str, Any]:
        """See ``Contender``."""
        return {}

    def close(self) -> None:
        """See ``Contender``."""


def open_loader(setup: Setup) -> Ready:
    """The batch."""
    return Ready(setup)
