"""Options of a loader: read in one place, obeyed exactly or refused with a clear error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.core.memory import available_memory, total_memory
from headrace.core.sizes import parse_size, show_size
from headrace.core.sparse import PAGE
from headrace.eviction import EVICTIONS
from headrace.loader.device import read_device
from headrace.loader.disk_tier import DiskOption, read_disk, read_tier
from headrace.loader.place import cpus_per_rank, find_place, ranks_here
from headrace.planning import split_budget, staff
from headrace.sampling import SAMPLERS

ON_ERROR = ("raise", "skip", "substitute")
SAMPLING = ("uniform", *SAMPLERS)
RAY = "ray"


@dataclass(frozen=True)
class Options:
    """What headrace adds to torch's parameters."""

    budgets: dict[Form, int]
    seed: int | None
    rank: int
    world_size: int
    on_error: str
    error_budget: int
    share: bool = False
    cluster: bool | None = False
    """Whether samples come from the memory of a cluster; None: where there is one."""
    sampling: str = "uniform"
    eviction: str = "auto"
    split: tuple[float, float, float] | None = None
    """As the user gave it."""

    asked_sampling: str | None = None
    """As the user gave it."""
    disk: DiskOption | None = None
    """The tier below the cache: a folder, or a server."""
    nodes: bool = True
    """Whether nodes of a cluster may hold decoded samples, without another tier, where that pays."""
    device: str | None = None
    """Where batches are to be, as the user said it; None: the CPU."""
    gpu_decode: bool | float = False
    """Whether images are decoded there, too; a number: so large a share of them."""
    gpu_cache: int | float | str | None = None
    """Memory there for decoded images, as the user said it."""

    def placed(self, rank: int, world_size: int, *, ordered: bool) -> Options:
        """The same at another place among the ranks."""
        sampling = _sampling(self.asked_sampling, self.share, ordered, world_size)
        return replace(self, rank=rank, world_size=world_size, sampling=sampling)

    @property
    def plans(self) -> bool:
        """Whether the cache is split as measurements suggest."""
        return self.split is None and self.cache_bytes > 0

    @property
    def cache_bytes(self) -> int:
        """The whole cache budget."""
        return sum(self.budgets.values())


def read_options(
    *,
    samples: int | None,
    described: bool,
    cache: Any,
    disk: Any,
    tier: Any,
    split: Sequence[float] | str | None,
    seed: int | None,
    rank: int | None,
    world_size: int | None,
    find_rank: bool,
    on_error: str,
    error_budget: int | float,
    share: bool | str,
    cluster: bool | None,
    sampler: bool,
    ordered: bool,
    sampling: str | None,
    eviction: str | None,
    native: bool,
    device: Any,
    gpu_decode: Any,
    gpu_cache: Any,
    unknown: str = "",
) -> Options:
    """Check and complete headrace's own parameters.

    ``described``: samples are prepared by a recipe. ``sampler``: the user gave one. ``ordered``: the order of
    samples is given. ``unknown``: why a dataset, of a kind that headrace knows, is not described.
    """
    here = f" (Of this one headrace could make a recipe, but: {unknown}.)" if unknown else ""
    if not described and parse_size(cache, total=1 << 40):
        raise OptionError(
            "cache= needs a recipe: what a dataset's __getitem__ returns may be random, so it cannot be kept. "
            f"Describe the data as a headrace.Recipe to cache it (docs/recipes.md).{here}"
        )
    nodes = tier is None
    if tier is False:
        tier = None
    if disk is not None and tier is not None:
        raise OptionError("disk= and tier= are both tiers below the cache; give one of them")
    if not described and tier is not None:
        raise OptionError(
            "tier= needs a recipe: what a dataset's __getitem__ returns may be random, so it cannot be kept. "
            f"Describe the data as a headrace.Recipe to keep it there (docs/recipes.md).{here}"
        )
    if not described and disk is not None:
        raise OptionError(
            "disk= needs a recipe: what a dataset's __getitem__ returns may be random, so it cannot be kept. "
            f"Describe the data as a headrace.Recipe to keep it on disk (docs/recipes.md).{here}"
        )
    if share not in (True, False, RAY):
        raise OptionError(f"share={share!r}; write True, False, or {RAY!r} for all nodes of a Ray cluster")
    cluster, share = share == RAY or cluster, bool(share)
    if not described and share:
        raise OptionError(
            "share=True needs a recipe: what a dataset's __getitem__ does cannot be told from outside, so it "
            f"cannot be shared. Describe the data as a headrace.Recipe (docs/recipes.md).{here}"
        )
    budget = parse_size(cache, total=total_memory(), least=PAGE)
    available = available_memory()
    if share and cache is None:
        budget = min(total_memory() // 4, available // 2)
    if budget > available:
        raise OptionError(
            f"cache={cache!r} is {show_size(budget)}, but {show_size(available)} of memory are available. "
            "Use a smaller cache, or a share of the memory such as cache=0.5."
        )
    if split is not None and not budget:
        raise OptionError(f"split={split!r} has nothing to split; say how large the cache may be with cache=")
    if not isinstance(native, bool):
        raise OptionError(f"native={native!r}; write True or False")
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
    if not isinstance(gpu_decode, bool | int | float) or not 0 <= gpu_decode <= 1:
        raise OptionError(
            f"gpu_decode={gpu_decode!r}; write True, False, or the share of images, from 0 to 1"
        )
    for name, wanted in (
        ("gpu_decode", gpu_decode),
        ("gpu_cache", parse_size(gpu_cache, total=1 << 40, option="gpu_cache")),
    ):
        if wanted and device is None:
            raise OptionError(
                f'{name}= needs a GPU for the batches; say which with device=, or device="auto"'
            )
        if wanted and not described:
            raise OptionError(
                f"{name}= needs a recipe: what a dataset's __getitem__ does cannot be done elsewhere. "
                f"Describe the data as a headrace.Recipe (docs/recipes.md).{here}"
            )
    rank, world_size = place(rank, world_size, find_rank)
    asked, sampling = sampling, _sampling(sampling, share, ordered, world_size)
    if eviction is not None and not share:
        raise OptionError(f"eviction={eviction!r} needs share=True: a job alone has no use for eviction")
    if eviction is not None and eviction not in EVICTIONS:
        raise OptionError(f"eviction={eviction!r}; choose one of {', '.join(map(repr, EVICTIONS))}")
    budgets = split_budget(budget, split)
    given = None
    if split is not None and not isinstance(split, str):
        encoded, decoded, augmented = (float(part) for part in split)
        given = (encoded, decoded, augmented)
    if world_size > 1 and sampler:
        raise OptionError(
            "rank= and world_size= share out headrace's own order, and a sampler (or a trainer that puts in one) "
            "shares by itself; give one or the other"
        )
    return Options(
        budgets,
        seed,
        rank,
        world_size,
        on_error,
        error_budget,
        share,
        cluster if described else False,
        sampling,
        eviction or "auto",
        given,
        asked,
        read_disk(disk) if tier is None else read_tier(tier),
        nodes,
        read_device(device),
        gpu_decode,
        gpu_cache,
    )


def _sampling(sampling: str | None, share: bool, ordered: bool, world_size: int) -> str:
    if sampling is not None and sampling not in SAMPLING:
        raise OptionError(f"sampling={sampling!r}; choose one of {', '.join(map(repr, SAMPLING))}")
    if sampling not in (None, "uniform"):
        if not share:
            raise OptionError(f"sampling={sampling!r} needs share=True: alone there is nobody to agree with")
        if ordered:
            raise OptionError(
                f"sampling={sampling!r} chooses the order by itself; use it with shuffle=True and without a sampler, "
                "and keep trainers from putting in one (docs/trainers.md)"
            )
        if world_size > 1 and ranks_here(world_size) != world_size:
            raise OptionError(
                f"sampling={sampling!r} needs all ranks on one machine; use sampling='uniform' for ranks on several"
            )
    if sampling is None:
        shares = share and not ordered and (world_size == 1 or ranks_here(world_size) == world_size)
        sampling = "auto" if shares else "uniform"
    return sampling


def read_snapshots(every: Any) -> int | None:
    """How often states are taken: as given, or None for as it suits their size."""
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 0):
        raise OptionError(f"snapshot_every_n_steps={every!r}; write a number of batches, 0 for none, or None")
    return every


def wants_sharing(share: bool | str | None, described: bool) -> tuple[bool | str, bool | None]:
    """Whether a loader shares, and whether it looks for a cluster: as it was told, else as the environment says for
    all that have a recipe. None: it does inside a process of Ray's, if there is one."""
    if share is not None:
        return share, False
    said = environment.sharing()
    return (said or False) if described else False, None if said is None else False


class Chosen(int):
    """A number of workers that was not the user's choice."""


def count_workers(num_workers: int | str | None, *, choose: bool) -> int:
    """The number of worker processes: as given, else chosen where ``choose`` or ``"auto"`` says so, else 0."""
    if num_workers is None:
        num_workers = "auto" if choose else 0
    if num_workers == "auto":
        return Chosen(staff(cpus_per_rank()).processes)
    if isinstance(num_workers, Chosen):  # a trainer builds a loader anew from the attributes of another
        return Chosen(staff(cpus_per_rank()).processes)
    if not isinstance(num_workers, int):
        raise TypeError(f'num_workers={num_workers!r}; write a number, or "auto"')
    return num_workers


def place(rank: int | None, world_size: int | None, find: bool) -> tuple[int, int]:
    """Rank and world size: as given, else from torch.distributed, else from the environment, else alone."""
    if (rank is None) != (world_size is None):
        raise OptionError("rank= and world_size= go together; give both or neither")
    if rank is None or world_size is None:
        rank, world_size = find_place() if find else (0, 1)
    if world_size < 1 or not 0 <= rank < world_size:
        raise OptionError(f"rank={rank} does not lie in a world of {world_size}")
    return rank, world_size
