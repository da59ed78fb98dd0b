"""A recipe as torch sees it: a map-style dataset of finished samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.core.errors import BadSample, SampleError
from headrace.core.forms import Form
from headrace.recipes.compile import compile_recipe
from headrace.recipes.program import Fault, Work
from headrace.recipes.recipe import Recipe


class RecipeDataset(Dataset[Any]):
    """``loader.dataset`` of a recipe's loader: look at single samples with ``loader.dataset[i]``."""

    def __init__(self, recipe: Recipe, seed: int = 0, epoch: int = 0) -> None:
        self.recipe = recipe
        self.seed = seed
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.recipe.source)

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``, prepared here and now."""
        blob = self.recipe.source.read_many([index])[0]
        faults = {0: Fault.of(blob)} if isinstance(blob, BaseException) else {}
        work = Work(
            indices=np.array([index], np.int64),
            seed=self.seed,
            epoch=self.epoch,
            forms=np.array([Form.ENCODED], np.uint8),
            inputs=[None if faults else blob],
            keep=np.zeros(1, np.bool_),
            reserve=lambda arrays: [None] * len(arrays),
            faults=faults,
        )
        program = compile_recipe(self.recipe, caches_decoded=False)
        (sample,) = program.samples(work)
        if work.faults:
            fault = work.faults[0]
            raise SampleError(
                BadSample(index, self.recipe.source.name(index), fault.reason, 0, fault.traceback)
            )
        return _tensors(sample)


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_tensors(item) for item in value)
    if isinstance(value, dict):
        return {key: _tensors(item) for key, item in value.items()}
    return value
