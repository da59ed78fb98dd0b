"""What cached samples are worth, so what has to go when the cache is full. One policy, one file; all pure."""

from headrace.eviction.auto import Auto
from headrace.eviction.fifo import FirstInFirstOut
from headrace.eviction.lru import LeastRecentlyUsed
from headrace.eviction.none import NoEviction
from headrace.eviction.policy import Entries, Eviction, Jobs
from headrace.eviction.refcount import RefCount
from headrace.eviction.reuse import FarthestFirst, Reuse
from headrace.eviction.uses import Uses

EVICTIONS: dict[str, Eviction] = {
    policy.name: policy
    for policy in (Auto(), RefCount(), Uses(), NoEviction(), LeastRecentlyUsed(), FirstInFirstOut())
}
"""The policies that need not know the order of samples, by their names. ``Reuse`` is for a cache that does."""

__all__ = [
    "EVICTIONS",
    "Auto",
    "Entries",
    "Eviction",
    "FarthestFirst",
    "FirstInFirstOut",
    "Jobs",
    "LeastRecentlyUsed",
    "NoEviction",
    "RefCount",
    "Reuse",
    "Uses",
]
