"""Addresses of cached samples: numbers that say in which tier one lies, and where in it.

An address is an int64. Its high bits are the tier, its low ones an offset in the memory of that tier. The arena is
tier 0, so an address in it is the offset itself. A negative number is no address (``NOWHERE``).
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.int64]

NOWHERE = -1
SHIFT = 56
"""Bits of an offset."""
SPAN = 1 << SHIFT
"""Offsets of a tier are below this."""
_TIERS = 1 << (63 - SHIFT)
"""Tiers that there could be."""


class Tier(enum.IntEnum):
    """Where cached samples lie. Small numbers, which stay the same: addresses carry them."""

    ARENA = 0
    """Shared memory of this machine."""
    DISK = 1
    """A file on a disk of this machine."""
    PEER = 2
    """The memory of another machine."""
    DEVICE = 3
    """The memory of an accelerator."""


_KNOWN = len(Tier)
assert list(Tier) == list(range(_KNOWN)) and _KNOWN <= _TIERS


def pack(tier: int, offset: int) -> int:
    """The address of an offset in a tier."""
    if not 0 <= tier < _KNOWN or not 0 <= offset < SPAN:
        raise ValueError(f"no address: offset {offset} of tier {tier}")
    return int(tier) << SHIFT | int(offset)


def unpack(address: int) -> tuple[Tier, int]:
    """Tier and offset of an address."""
    tier = address >> SHIFT
    if not 0 <= tier < _KNOWN:
        raise ValueError(f"{address} is no address: there is no tier {tier}")
    return Tier(tier), int(address) & (SPAN - 1)


def tiers_of(addresses: Addresses) -> Addresses:
    """The tiers of what is known to be addresses."""
    return addresses >> np.int64(SHIFT)
