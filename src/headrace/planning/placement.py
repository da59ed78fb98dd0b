"""On which CPUs each worker process runs, where a machine has more than one memory node.

A worker that stays at one memory node finds there what it has written: its buffers, its rows, what it cached. Within
the node nothing is fixed: a thread with a CPU of its own would wait behind whatever else runs there, while others are
idle.

Machines are shared by people who do not know of each other, so that to put too much onto one memory node is the worst
that can happen here: it makes a job slower than none of this. All rules keep to a rank's part of each memory node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.topology import MemoryNode

CpuSets = tuple[frozenset[int], ...]
"""The CPUs of each worker. One with a number beyond the last begins again with the first."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job on this machine, as one of them sees them."""

    count: int = 1
    own: int = 0
    """Which of them this one is."""
    gpus: tuple[int | None, ...] = ()
    """The memory node of each one's GPU; None, or nothing, where it is not known."""

    def gpu(self, rank: int) -> int | None:
        """The memory node of a rank's GPU, if it is known."""
        return self.gpus[rank] if rank < len(self.gpus) else None


def cpu_sets(
    nodes: Sequence[MemoryNode],
    usable: frozenset[int],
    ranks: Ranks,
    workers: int,
    threads: int = 1,
    *,
    bound: bool = False,
) -> CpuSets | None:
    """The CPUs for each of ``workers`` processes of one rank, which prepare in ``threads`` threads each.

    None: the scheduler knows better. That is so with one memory node, with fewer workers than those and no GPU, where
    the system does not say of all ``usable`` CPUs where they are, and where somebody has ``bound`` this rank already.
    """
    ours = [(node, frozenset(node.cpus & usable)) for node in nodes if node.cpus & usable]
    cpus = {node.number: own for node, own in ours}
    once = sum(map(len, cpus.values())) == len(usable) and frozenset().union(*cpus.values()) == usable
    if bound or len(cpus) < 2 or not once or workers < 1 or not 0 <= ranks.own < ranks.count:
        return None
    rooms = {number: len(own) for number, own in cpus.items()}
    homes = [_nearest(nodes, rooms, ranks.gpu(rank)) for rank in range(ranks.count)]
    home = homes[ranks.own]
    if home is not None:
        known = [one for one in homes if one is not None]
        if len(known) == ranks.count:
            order = _from_home(nodes, rooms, known, ranks.own, threads)
        else:
            order = _slice(nodes, rooms, home, ranks.count * threads)
    elif ranks.count * workers >= len(rooms):
        order = _in_line(rooms, ranks, workers)
    else:
        return None
    return tuple(cpus[order[worker % len(order)]] for worker in range(workers))


def _nearest(nodes: Sequence[MemoryNode], rooms: dict[int, int], number: int | None) -> int | None:
    """The memory node with CPUs of ours that is nearest to another one, often itself; None: not known."""
    if number is None or number in rooms:
        return number
    # (a GPU's own memory may be a node, as may be an expansion card's: those have no CPUs)
    far = [(away, own) for own in rooms for away in (_distance(nodes, number, own),) if away is not None]
    return min(far)[1] if far else None


def _distance(nodes: Sequence[MemoryNode], one: int, other: int) -> int | None:
    return next((node.distance(other) for node in nodes if node.number == one), None)


def _in_line(rooms: dict[int, int], ranks: Ranks, workers: int) -> list[int]:
    """The memory node of each worker, where nothing draws a rank to any of them.

    All workers of all ranks stand in a line, which is cut by the numbers of CPUs. So a rank is divided only where a
    cut falls into it, and how many workers a memory node has is off by less than one.
    """
    everybody, total = ranks.count * workers, sum(rooms.values())
    first, last = ranks.own * workers, (ranks.own + 1) * workers
    counts: dict[int, int] = {}
    before = cut = 0
    for number in sorted(rooms):
        before += rooms[number]
        begun, cut = cut, everybody * before // total
        counts[number] = max(0, min(cut, last) - max(begun, first))
    # One here, one there: whatever number of workers comes or goes at the end, the rest is still divided like all.
    turns = [
        ((2 * turn + 1) / (2 * count), number) for number, count in counts.items() for turn in range(count)
    ]
    return [number for _, number in sorted(turns)]


def _from_home(
    nodes: Sequence[MemoryNode], rooms: dict[int, int], homes: list[int], own: int, threads: int
) -> list[int]:
    """The memory nodes of workers that begin at their GPU's: there is one for each worker that the rank has CPUs for.

    ``homes``: the memory node of each rank's GPU. Ranks with the same one divide it. What does not fit there goes to
    the nearest that has room, rank after rank.
    """
    part = max(1, sum(rooms.values()) // (len(homes) * threads))
    company = Counter(homes)
    at_home = {home: min(part, max(1, rooms[home] // (threads * company[home]))) for home in company}
    room = {
        number: max(0, cpus // threads - company[number] * at_home.get(number, 0))
        for number, cpus in rooms.items()
    }
    order: list[int] = []
    for home in homes[: own + 1]:
        order = [home] * at_home[home]
        for number in _by_distance(nodes, rooms, home)[1:]:
            away = min(room[number], part - len(order))
            room[number] -= away
            order += [number] * away
    return order


def _slice(nodes: Sequence[MemoryNode], rooms: dict[int, int], home: int, sharers: int) -> list[int]:
    """As above, where nobody knows of the other ranks' GPUs: of each memory node the rank takes its part and no more.
    So no memory node gets too much wherever the others begin."""
    order = [number for number in _by_distance(nodes, rooms, home) for _ in range(rooms[number] // sharers)]
    return order or [home]


def _by_distance(nodes: Sequence[MemoryNode], rooms: dict[int, int], home: int) -> list[int]:
    """All memory nodes, beginning at home."""
    return sorted(rooms, key=lambda number: (number != home, _distance(nodes, home, number) or 0, number))
