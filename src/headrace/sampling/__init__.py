"""Who draws which sample when. One policy, one file; all pure.

A job draws by itself with ``UniformEpoch``. Jobs that share draw by one of ``SAMPLERS``, which know what is
cached and what the others still need.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.sampling.auto import Auto
from headrace.sampling.dependent import Dependent
from headrace.sampling.draw import Draw, Lookup
from headrace.sampling.foresight import Foresight, epochs_worth_knowing
from headrace.sampling.geometry import Geometry
from headrace.sampling.known_order import KnownOrder
from headrace.sampling.next_uses import NextUses
from headrace.sampling.opportunistic import Opportunistic
from headrace.sampling.remaining import Remaining
from headrace.sampling.sampler import CacheView, Sampler
from headrace.sampling.tree import Tree
from headrace.sampling.uniform import OrderedEpoch, UniformDraws, UniformEpoch, epoch_order

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "opportunistic": Opportunistic,
    "dependent": Dependent,
    "auto": Auto,
}
"""The policies for jobs that share, by the name that ``sampling=`` knows them by."""

__all__ = [
    "SAMPLERS",
    "Auto",
    "CacheView",
    "Dependent",
    "Draw",
    "Foresight",
    "Geometry",
    "KnownOrder",
    "Lookup",
    "NextUses",
    "Opportunistic",
    "OrderedEpoch",
    "Remaining",
    "Sampler",
    "Tree",
    "UniformDraws",
    "UniformEpoch",
    "epoch_order",
    "epochs_worth_knowing",
]
