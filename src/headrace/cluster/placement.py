"""Which of the servers of a view has which sample of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cluster.messages import View
from headrace.planning.rendezvous import key_of, owners


class Placement:
    """Of one dataset, by one view."""

    def __init__(self, view: View, dataset: str) -> None:
        self.view = view
        self._dataset = key_of(dataset)
        self._keys = [key_of(node.id) for node in view.nodes]
        self._weights = [float(node.memory) for node in view.nodes]

    def nodes_of(self, samples: NDArray[Any]) -> NDArray[np.intp]:
        """The place of each sample's node in the view; -1 where there is none."""
        if not self._keys:
            return np.full(len(samples), -1, np.intp)
        return owners(samples, self._dataset, self._keys, self._weights)

    def place_of(self, node: str) -> int:
        """A node's place in the view; -2: it is not there."""
        return next((place for place, one in enumerate(self.view.nodes) if one.id == node), -2)
