"""Options of a loader: read in one place, obeyed exactly or refused with a clear error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.core.memory import available_memory, total_memory
from headrace.core.sizes import parse_size, show_size
from headrace.planning import split_budget

ON_ERROR = ("raise", "skip", "substitute")


@dataclass(frozen=True)
class Options:
    """What headrace adds to torch's parameters."""

    budgets: dict[Form, int]
    seed: int | None
    rank: int
    world_size: int
    on_error: str
    error_budget: int

    @property
    def cache_bytes(self) -> int:
        """The whole cache budget."""
        return sum(self.budgets.values())


def read_options(
    *,
    samples: int | None,
    cache: Any,
    split: Sequence[float] | str | None,
    seed: int | None,
    rank: int | None,
    world_size: int | None,
    find_rank: bool,
    on_error: str,
    error_budget: int | float,
) -> Options:
    """Check and complete headrace's own parameters."""
    budget = parse_size(cache, total=total_memory())
    available = available_memory()
    if budget > available:
        raise OptionError(
            f"cache={cache!r} is {show_size(budget)}, but {show_size(available)} of memory are available. "
            "Use a smaller cache, or a share of the memory such as cache=0.5."
        )
    if split is not None and not budget:
        raise OptionError(f"split={split!r} has nothing to split; say how large the cache may be with cache=")
    if on_error not in ON_ERROR:
        raise OptionError(f"on_error={on_error!r}; choose one of {', '.join(map(repr, ON_ERROR))}")
    if isinstance(error_budget, bool) or error_budget < 0:
        raise OptionError(f"error_budget={error_budget!r}; write a number of samples, or a share below 1")
    if isinstance(error_budget, float):
        if error_budget >= 1:
            raise OptionError(
                f"error_budget={error_budget!r}; a share lies below 1, a number of samples is an int"
            )
        error_budget = max(1, int(error_budget * (samples or 0)))
    if seed is not None and not isinstance(seed, int):
        raise OptionError(f"seed={seed!r} is not an integer")
    rank, world_size = _place(rank, world_size, find_rank)
    return Options(split_budget(budget, split), seed, rank, world_size, on_error, error_budget)


def _place(rank: int | None, world_size: int | None, find: bool) -> tuple[int, int]:
    """Rank and world size: as given, else from torch.distributed, else from the environment, else alone."""
    if (rank is None) != (world_size is None):
        raise OptionError("rank= and world_size= go together; give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _found() if find else (0, 1)
    if world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(f"rank={rank} does not lie in a world of {world_size}")
    return rank, world_size


def _found() -> tuple[int, int]:
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
