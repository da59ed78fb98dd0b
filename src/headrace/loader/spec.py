"""What a loader was asked for and what follows from it: frozen, and all that the rest of the loader goes by.

It is made in one place (``setup.py``). What torch lets users and trainers set on a loader at any time is read anew
whenever an epoch begins or a question is asked (``DataLoader``); rank and world size may come with a process group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from headrace.loader.native import Native
from headrace.loader.options import Options
from headrace.loader.recipe_collate import RecipeCollator
from headrace.loader.recipe_dataset import RecipeDataset
from headrace.recipes.recipe import Recipe


@dataclass(frozen=True)
class DataSpec:
    """Where samples come from, and what makes batches of them."""

    dataset: Any
    recipe: Recipe | None
    """What prepares samples: the user's own, or one that does a dataset's work; None: the dataset does it."""
    native: Native
    collate_fn: Callable[[Any], Any]
    """Collates a dataset's samples."""
    collator: RecipeCollator | None
    """Collates a recipe's; None: they become rows."""

    @property
    def described(self) -> bool:
        """Whether the user gave a recipe."""
        return isinstance(self.dataset, RecipeDataset)

    @property
    def iterable(self) -> bool:
        """Whether the dataset gives samples one after another, not by key."""
        return isinstance(self.dataset, IterableDataset)


@dataclass(frozen=True)
class BatchSpec:
    """What a batch is."""

    size: int
    """Samples; 1 where a sampler of the user's says it, or there are no batches."""
    drop_last: bool
    batched: bool
    """There are batches; else samples come one by one."""


@dataclass(frozen=True)
class OrderSpec:
    """Who says in which order samples come."""

    samplers: tuple[Any, Any]
    """``loader.sampler`` and ``loader.batch_sampler``."""
    keys: Any
    """The one of them that is read: it yields lists of keys where there are batches, else keys."""
    made: tuple[Any, Any, Any] | None
    """Both as they were made here, and the order that they stand for; None: the user gave one."""
    shuffle: bool
    in_order: bool
    """Batches are delivered in the order in which they were drawn."""
    finds_place: bool
    """Rank and world size are found, not given."""
    skips_alone: bool
    """Batches are left out of the order of a loader that no trainer has built anew."""
    generator: torch.Generator | None
    snapshot_every: int | None
    """Batches from one state of a sampler, or of a dataset, to the next, where they are read ahead."""

    @property
    def ours(self) -> bool:
        """The user gave no sampler, and nobody has put another in the place of what was made here."""
        made = self.made
        if made is None or made[0] is not self.samplers[0] or made[1] is not self.samplers[1]:
            return False
        return made[1] is None or getattr(made[1], "sampler", made[2]) is made[2]


@dataclass(frozen=True)
class WorkSpec:
    """Who prepares batches, and how far ahead."""

    workers: int
    """Processes; 0: the job itself."""
    own_number: bool
    """The user chose it."""
    prefetch: int | None
    """Batches ahead for each worker, as the user chose it."""
    keeps: bool
    """Workers, and what they cached, stay from one epoch to the next."""
    context: Any
    """How processes are started; None: as the system does it."""
    init: Callable[[int], None] | None
    pin_memory: bool
    pin_memory_device: str

    @property
    def ahead(self) -> int | None:
        """Batches ahead; None: as many as are of use."""
        return None if self.prefetch is None else max(1, self.workers * self.prefetch)


@dataclass(frozen=True)
class LoaderSpec:
    """All of it."""

    data: DataSpec
    batches: BatchSpec
    order: OrderSpec
    work: WorkSpec
    options: Options
    """What headrace adds to torch's parameters: cache, seed, rank, rule for bad samples, sharing."""

    @property
    def drawn_by_host(self) -> bool:
        """Whether a shared host chooses the samples."""
        return self.options.share and self.options.sampling != "uniform"
