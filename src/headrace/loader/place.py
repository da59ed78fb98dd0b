"""Where this process stands among the ranks of its job, and what of the machine is its own."""

from __future__ import annotations

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.memory import usable_cpus


def find_place() -> tuple[int, int]:
    """Rank and world size: from torch.distributed, else from the environment, else alone."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return environment.place() or (0, 1)


def ranks_here(world_size: int) -> int:
    """How many of a job's ranks run on this machine, as far as the launcher says; else all of them."""
    said = environment.ranks_here()
    return world_size if said is None else min(said, world_size)


def cpus_per_rank() -> int:
    """CPUs that are this process's part: ranks on one machine divide them, unless they are bound to their own."""
    cpus = usable_cpus()
    bound = environment.cpus_per_task()
    if bound is not None:
        cpus = min(cpus, bound)
        if environment.task_is_rank():
            return cpus
    try:
        world_size = find_place()[1]
    except OptionError:  # said where it matters
        world_size = 1
    return max(1, cpus // ranks_here(world_size))
