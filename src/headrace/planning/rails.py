"""Which network interface each rank of a machine uses, where it has several: the nearest to the rank's GPU.

What goes between a GPU and an interface at the same PCI switch is in nobody's way. Interfaces that are equally near
are divided among the ranks, so that none has more than its part to carry. Where the machine does not say enough, the
system's routes are as good as anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.topology import Device, MemoryNode, away

_SLOWER = 2
"""So many times as slow as the fastest, an interface is there for something else."""


@dataclass(frozen=True)
class Nic:
    """A network interface."""

    device: Device
    address: str
    """With the bits of its network, as in ``10.1.0.7/24``; empty: it has none."""
    speed: int = 0
    """Mbit/s; 0: not known."""
    up: bool = True


@dataclass(frozen=True)
class Rail:
    """What a rank is to use."""

    address: str
    """That of the interface, with the bits of its network."""
    cpus: frozenset[int]
    """The CPUs next to it; empty: not known."""


def worth_using(nics: Sequence[Nic]) -> tuple[Nic, ...]:
    """Those over which samples and rows may go: without the ones that are down, have no address, or are slow."""
    there = [nic for nic in nics if nic.up and nic.address]
    best = max((nic.speed for nic in there), default=0)
    fast = [nic for nic in there if nic.speed * _SLOWER >= best]
    return tuple(sorted(fast, key=lambda nic: (nic.device.path, nic.address)))


def rail_of(
    own: int, gpus: Sequence[Device | None], count: int, nics: Sequence[Nic], nodes: Sequence[MemoryNode] = ()
) -> Rail | None:
    """The rail of one of ``count`` ranks; None: whatever way the system chooses.

    ``gpus``: of each rank; None, or nothing, where it is not known. All ranks find the same whichever of them asks,
    and also where each knows of the others' GPUs without knowing whose is which.
    """
    gpu = gpus[own] if 0 <= own < len(gpus) else None
    if gpu is None:
        return None
    found = worth_using(nics)
    nearest = _nearest(gpu, found, nodes)
    if not nearest:
        return None
    known = [one for one in gpus if one is not None]
    if len(known) == count == len(gpus):
        nic = found[_divided(known, found, nodes)[own]]
    else:
        nic = found[nearest[own % len(nearest)]]
    return Rail(nic.address, nic.device.cpus or _cpus_at(nic.device, nodes) or gpu.cpus)


def _divided(gpus: Sequence[Device], nics: Sequence[Nic], nodes: Sequence[MemoryNode]) -> list[int]:
    """The interface of each GPU: of the nearest, the one that fewest others have."""
    wanted = [_nearest(gpu, nics, nodes) for gpu in gpus]
    loads: Counter[int] = Counter()
    out = [-1] * len(gpus)
    # (who has the least choice goes first; then by where GPUs are, as all ranks see it)
    for rank in sorted(range(len(gpus)), key=lambda one: (len(wanted[one]), gpus[one].path, one)):
        if wanted[rank]:
            out[rank] = min(wanted[rank], key=lambda nic: (loads[nic], nic))
            loads[out[rank]] += 1
    return out


def _nearest(gpu: Device, nics: Sequence[Nic], nodes: Sequence[MemoryNode]) -> list[int]:
    """The interfaces that no other is nearer than."""
    far = {at: how for at, nic in enumerate(nics) if (how := away(gpu, nic.device, nodes)) is not None}
    least = min(far.values(), default=None)
    return [at for at, how in far.items() if how == least]


def _cpus_at(device: Device, nodes: Sequence[MemoryNode]) -> frozenset[int]:
    return next((node.cpus for node in nodes if node.number == device.node), frozenset())
