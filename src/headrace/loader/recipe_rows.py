"""Rows of a slot as the batch that the user gets, and how rows lie where only user code can say."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.coordinate.messages import Order
from headrace.core.errors import BadSample, HeadraceError, SampleError, TooManyBadSamples
from headrace.core.layout import RowLayout
from headrace.host.base import Host
from headrace.loader.mixing import Mixer
from headrace.loader.sessions import SKIPPED
from headrace.loader.wrap import RowWrapper, close_gaps, fill_gaps
from headrace.recipes.recipe import Recipe
from headrace.sampling import Draw

_PROBES = 16
"""Samples tried, at most, to find out how samples look."""


class RowBatches:
    """Batches of a recipe's rows, all of one layout."""

    def __init__(self, recipe: Recipe, layout: RowLayout, *, batched: bool, rule: str) -> None:
        """``batched=False``: samples one by one. ``rule``: the user's, for bad samples."""
        self.layout = layout
        self._recipe, self._rule = recipe, rule
        self._wrapper = RowWrapper(layout, batched=batched)
        self._mixer: Mixer | None = None

    def value(self, lease: Any, drawn: Draw, bad: list[int], seed: int) -> Any:
        """The batch that was ``drawn``, over the memory of ``lease``. ``bad``: rows that could not be prepared."""
        rows = good = len(drawn.indices)
        views = self.layout.views(lease, rows) if bad or self._recipe.batch is not None else []
        if bad:
            if self._rule == "skip":
                good = close_gaps(views, bad, rows)
            elif not fill_gaps(views, bad, rows):
                good = 0
            if not good:
                return SKIPPED
        value = self._wrapper.wrap(lease, rows, good)
        if self._recipe.batch is not None:
            self._mixer = self._mixer or Mixer(self._recipe, self.layout)
            value[1] = self._mixer(views, good, drawn, seed)
        return value


def probe_layout(recipe: Recipe, host: Host, seed: int, timeout: float | None, *, rule: str) -> bytes:
    """The layout, pickled, of a first sample that can be prepared; tried by a worker."""
    faults: list[BadSample] = []
    for index in range(min(_PROBES, len(recipe.source))):
        order = Order(-1, 0, 0, 1, 0, seed, 0, 0, np.array([index], np.int64).tobytes())
        done = host.probe(order, timeout)
        if done.result:
            return done.result
        for _, reason, trace in done.faults:
            faults.append(BadSample(index, recipe.source.name(index), reason, 0, trace))
    if faults:
        raise SampleError(faults[0]) if rule == "raise" else TooManyBadSamples(faults, 0)
    raise HeadraceError(f"{recipe!r} gives samples that cannot be laid out as arrays; pass collate=")
