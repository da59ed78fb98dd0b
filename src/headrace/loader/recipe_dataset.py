"""A recipe as torch sees it: a map-style dataset of finished samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from headrace.core.errors import BadSample, OptionError, SampleError
from headrace.core.forms import Form
from headrace.engine.reader import Reader
from headrace.loader.global_random import own_randomness
from headrace.loader.own_order import Carried, Told
from headrace.loader.repeats import words_within
from headrace.recipes.compile import compile_recipe
from headrace.recipes.program import Fault, Work
from headrace.recipes.recipe import Recipe


class RecipeDataset(Dataset[Any]):
    """``loader.dataset`` of a recipe's loader: look at single samples with ``loader.dataset[i]``.

    What is random in a recipe is drawn anew for each look, from torch's generator, as in any other dataset. A loader
    that is made of this dataset, torch's included, is a ``headrace.DataLoader`` with all that this one was told.
    """

    def __init__(self, recipe: Recipe, carried: Carried | None = None) -> None:
        self.recipe = recipe
        self.carried = carried if carried is not None else Carried({})

    def __len__(self) -> int:
        return len(self.recipe)

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``, prepared here and now."""
        return self._prepare([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples for a loader that is none of ours."""
        lost = [name for name in ("cache", "share", "on_error") if self.carried.options.get(name)]
        if lost:
            raise OptionError(
                f"{lost[0]}={self.carried.options[lost[0]]!r} was asked for, and another loader than headrace's "
                "reads this recipe's samples, which cannot do that. Use headrace.DataLoader(recipe, ...) itself, "
                f"or leave {' and '.join(lost)} out (docs/trainers.md)."
            )
        if self.recipe.batch is not None:
            raise OptionError(
                f"batch={self.recipe.batch} was asked for, and another loader than headrace's makes the batches; use "
                "headrace.DataLoader(recipe, ...) itself, or leave it out (docs/trainers.md)"
            )
        return self._prepare(indices)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that loaders of this dataset run next: some trainers tell the dataset."""
        self.carried.told.tell(epoch)

    def _prepare(self, indices: Sequence[int]) -> list[Any]:
        recipe = self.recipe
        at = np.array([range(len(self))[index] for index in indices], np.int64)
        blobs, _ = Reader(recipe.source).read(at)
        faults = {row: Fault.of(blob) for row, blob in enumerate(blobs) if isinstance(blob, BaseException)}
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        work = Work(
            indices=at,
            seed=seed,
            epoch=0,
            forms=np.full(len(at), Form.ENCODED, np.uint8),
            inputs=[None if row in faults else blob for row, blob in enumerate(blobs)],
            keep=np.zeros(len(at), np.bool_),
            reserve=lambda arrays: [None] * len(arrays),
            faults=faults,
            words=words_within(at),
        )
        with own_randomness(recipe.user_code):
            samples = compile_recipe(recipe, caches_decoded=False).samples(work)
        for row, fault in sorted(work.faults.items()):
            index = int(at[row])
            raise SampleError(BadSample(index, recipe.source.name(index), fault.reason, 0, fault.traceback))
        return [_tensors(sample) for sample in samples]


def refuse_sources(dataset: Any) -> Any:
    """``dataset``, unless it only says where samples lie."""
    # (text can be a dataset, of its characters)
    if isinstance(dataset, os.PathLike) or (isinstance(dataset, str) and os.sep in dataset):
        raise OptionError(
            f"DataLoader({dataset!r}): a path does not say how samples are made. Make a recipe: headrace.Recipe("
            f"headrace.folder({dataset!r}), decode=headrace.image.decode(), augment=[...]) (docs/recipes.md)"
        )
    if hasattr(dataset, "read_many") and not hasattr(dataset, "__getitem__"):
        raise OptionError(
            f"DataLoader({dataset!r}): a source does not say how samples are made. Make a recipe: headrace.Recipe("
            "source, decode=headrace.image.decode(), augment=[...]) (docs/recipes.md)"
        )
    return dataset


def recipe_of(dataset: Any, *, look: bool = False) -> tuple[Recipe, Carried | None] | None:
    """The recipe that ``dataset`` is, or is a subset of, and what its loader's parts carry; None: it is none.

    ``look``: whether there is one is all that matters.
    """
    if isinstance(dataset, Recipe):
        return dataset, None
    if isinstance(dataset, RecipeDataset):
        return dataset.recipe, dataset.carried
    found = recipe_of(dataset.dataset, look=look) if type(dataset) is Subset else None
    if found is None or look:
        return found
    recipe, carried = found
    if carried is not None:  # made in the same way, but with epochs of its own
        carried = replace(carried, told=Told())
    return recipe.subset(dataset.indices), carried


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_tensors(item) for item in value)
    if isinstance(value, list):
        return [_tensors(item) for item in value]
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    return value
