"""Which of the servers of a view has which sample of a dataset."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cluster.messages import View
from headrace.planning.rendezvous import key_of, owners

_MOST_KNOWN = 1 << 26
"""Samples of a dataset whose places are kept, two bytes each, once somebody has asked."""


def moves(before: View, view: View) -> bool:
    """Whether samples have other places by a later view."""
    return [(one.id, one.memory) for one in before.nodes] != [(one.id, one.memory) for one in view.nodes]


class Placement:
    """Of one dataset, by one view. Threads share it."""

    def __init__(self, view: View, dataset: str, samples: int) -> None:
        self.view, self._name, self._samples = view, dataset, samples
        self._known = np.zeros(samples, np.uint16) if samples <= _MOST_KNOWN else None
        """Of each sample: 0, or its node's place and 1. (What was never asked for takes no memory.)"""
        self._dataset = key_of(dataset)
        self._keys = [key_of(node.id) for node in view.nodes]
        self._weights = [float(node.memory) for node in view.nodes]

    def follow(self, view: View) -> Placement:
        """By a later view. Often that has the same nodes, and only helpers have come or gone, or a server was started
        anew: then what is known stays."""
        if moves(self.view, view):
            return Placement(view, self._name, self._samples)
        out = copy.copy(self)
        out.view = view
        return out

    def nodes_of(self, samples: NDArray[Any]) -> NDArray[np.intp]:
        """The place of each sample's node in the view; -1 where there is none."""
        if not self._keys:
            return np.full(len(samples), -1, np.intp)
        if self._known is None:
            return owners(samples, self._dataset, self._keys, self._weights)
        places: NDArray[np.intp] = self._known[samples].astype(np.intp) - 1
        if places.size and places.min() < 0:
            new = places < 0
            places[new] = owners(samples[new], self._dataset, self._keys, self._weights)
            self._known[samples[new]] = places[new] + 1
        return places

    def place_of(self, node: str) -> int:
        """A node's place in the view; -2: it is not there."""
        return next((place for place, one in enumerate(self.view.nodes) if one.id == node), -2)
