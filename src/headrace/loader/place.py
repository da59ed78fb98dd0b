"""Where this process stands among the ranks of its job, and what of the machine is its own."""

from __future__ import annotations

import os
import re

from headrace.core.errors import OptionError
from headrace.core.memory import usable_cpus

_LOCAL = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
"""What launchers call the number of ranks on this machine."""


def find_place() -> tuple[int, int]:
    """Rank and world size: from torch.distributed, else from the environment, else alone."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError:
        return 0, 1
    except ValueError:
        raise OptionError(
            f"RANK={os.environ.get('RANK')!r} and WORLD_SIZE={os.environ.get('WORLD_SIZE')!r} in the environment "
            "are not numbers; mend them or pass rank= and world_size="
        ) from None


def ranks_here(world_size: int) -> int:
    """How many of a job's ranks run on this machine, as far as the launcher says; else all of them."""
    for name in _LOCAL:
        found = re.match(r"\d+", os.environ.get(name, ""))
        if found and int(found[0]):
            return min(int(found[0]), world_size)
    return world_size


def cpus_per_rank() -> int:
    """CPUs that are this process's part: ranks on one machine divide them, unless they are bound to their own."""
    cpus = usable_cpus()
    bound = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if bound.isdigit() and int(bound):
        return min(cpus, int(bound))
    try:
        world_size = find_place()[1]
    except OptionError:  # said where it matters
        world_size = 1
    return max(1, cpus // ranks_here(world_size))
