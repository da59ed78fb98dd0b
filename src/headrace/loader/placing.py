"""Places a session's workers on the CPUs of the machine, where it has more than one memory node."""

from __future__ import annotations

import functools
from typing import Any

import torch

from headrace.cluster.rails import read_nics
from headrace.core import environment, topology
from headrace.core.errors import OptionError
from headrace.core.topology import Device, MemoryNode
from headrace.engine.task import RecipeTask
from headrace.engine.worker import Settled, Task
from headrace.loader.place import cpus_per_rank, find_place, ranks_here
from headrace.planning import Ranks, cpu_sets, staff
from headrace.planning.rails import Rail, rail_of


def settled(task: Task, workers: int, root: str = "") -> Task:
    """The task, for workers that keep to CPUs of their own where that is of use.

    ``root``: where the system's own tree is mounted, if not where it usually is.
    """
    root = root or topology.SYS
    if not environment.affinity() or len(_nodes(root)) < 2:
        return task
    usable = topology.own_cpus()
    # Of a recipe's workers, as many threads as they may get in time.
    threads = staff(cpus_per_rank(), workers).threads if isinstance(task, RecipeTask) else 1
    cpus = cpu_sets(_nodes(root), usable, _ranks(root), workers, threads, bound=_bound(usable, root))
    if cpus is None:
        return task
    rail = find_rail(root) if isinstance(task, RecipeTask) and task.agent is not None else None
    return Settled(task, cpus, frozenset() if rail is None else rail.cpus & usable)


def find_rail(root: str = "") -> Rail | None:
    """The network interface of this rank, where there is one that is nearest to its GPU."""
    root = root or topology.SYS
    nics = read_nics(root)
    if not nics:
        return None
    count, own = _standing()
    return rail_of(own, _gpus(count, own, root), count, nics, topology.read_nodes(root))


@functools.lru_cache(maxsize=1)
def _nodes(root: str) -> tuple[MemoryNode, ...]:
    """The memory nodes, which stay as they are."""
    return topology.read_nodes(root)


def _bound(usable: frozenset[int], root: str) -> bool:
    """Whether the launcher has given this rank CPUs of its own."""
    if topology.is_bound(usable, root):
        return True
    # Slurm may do so by a container for each rank. (Where that is the whole machine, it is one for all ranks.)
    everywhere = frozenset[int]().union(*(node.cpus for node in _nodes(root)))
    return environment.cpus_per_task() is not None and usable < everywhere


def _ranks(root: str) -> Ranks:
    """This rank among those on this machine."""
    count, own = _standing()
    return Ranks(
        count, own, tuple(None if gpu is None else _node_of(gpu, root) for gpu in _gpus(count, own, root))
    )


def _standing() -> tuple[int, int]:
    """How many ranks are on this machine, and which of them this one is."""
    try:
        rank, world_size = find_place()
    except OptionError:  # said where it matters
        rank, world_size = 0, 1
    count = max(1, ranks_here(world_size))
    local = environment.local_rank()
    return count, (rank if local is None else local) % count


def _gpus(count: int, own: int, root: str) -> tuple[Device | None, ...]:
    """Each rank's GPU, as far as it is known: never by waking a GPU that nobody uses yet."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return ()
    try:
        return _gpus_seen(cuda, count, own, root)
    except Exception:  # a GPU that cannot be asked is complained of by those who need it
        return ()


def _gpus_seen(cuda: Any, count: int, own: int, root: str) -> tuple[Device | None, ...]:
    device, devices = _own_device(cuda), int(cuda.device_count())
    if device in (0, own) and devices >= count > 1:
        # Each rank sees all GPUs, and takes that of its own number. (0 is also what torch says where nobody chose.)
        return tuple(topology.read_device(_address(cuda, number), root) for number in range(count))
    mine = topology.read_device(_address(cuda, device), root)
    alike = list(topology.read_alike(_address(cuda, device), root))
    if len(alike) == count and mine in alike:
        # There is a rank for each GPU, though not known which for which: it is how many are where that counts.
        alike.remove(mine)
        return (*alike[:own], mine, *alike[own:])
    return (*[None] * own, mine)


def _own_device(cuda: Any) -> int:
    """The GPU that holds something of this process, if it is one; else the one that torch would take."""
    used = [device for device in range(cuda.device_count()) if cuda.memory_allocated(device)]
    return used[0] if len(used) == 1 else int(cuda.current_device())


def _node_of(gpu: Device, root: str) -> int | None:
    """The memory node of a GPU, or the only one whose CPUs are next to it."""
    if gpu.node is not None or not gpu.cpus:
        return gpu.node
    near = [node.number for node in _nodes(root) if gpu.cpus & node.cpus]
    return near[0] if len(near) == 1 else None


def _address(cuda: Any, device: int) -> str:
    """A GPU's address on the PCI bus; empty where torch is too old to tell."""
    properties = cuda.get_device_properties(device)
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return "" if None in (domain, bus, slot) else f"{domain:04x}:{bus:02x}:{slot:02x}.0"
