"""Batch steps at work: in the job's process, on a whole batch, in place.

Several workers write the rows of a batch, and none of them ever has all of it; only here it is whole. Rows are
mixed where they lie, so nothing of them is copied, by a few threads that do not hold the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError, OptionError
from headrace.core.layout import RowLayout
from headrace.loader.pinning import at_once, few_hands
from headrace.recipes.image.mixing import PURE, blend, mixed_targets, numbers_of, paste
from headrace.recipes.image.rowspec import BLENDED
from headrace.recipes.program import body_fields
from headrace.recipes.recipe import Recipe
from headrace.sampling import Draw

_SMALL = 1 << 20
"""Bytes below which it does not matter who mixes."""


def check_batch_steps(recipe: Recipe | None, collate_fn: Any, *, batched: bool) -> None:
    """Refuse loaders that have no batches of rows to mix."""
    if recipe is None or recipe.batch is None:
        return
    if collate_fn is not None:
        raise OptionError(
            f"batch={recipe.batch} mixes rows of tensors, and collate_fn makes batches of another kind; leave one out"
        )
    if not batched:
        raise OptionError(f"batch={recipe.batch} mixes the samples of a batch; batch_size=None has none")


class Mixer:
    """A recipe's batch step, for batches of one layout."""

    def __init__(self, recipe: Recipe, layout: RowLayout) -> None:
        assert recipe.batch is not None
        self._step = recipe.batch
        count = body_fields(layout, targets=True)
        self._body, targets = layout.fields[:count], layout.fields[count:]
        self._by_pixel = recipe.by_pixel
        shape = self._body[0].shape
        self._sides = (shape[:2] if self._by_pixel else shape[-2:]) if self._step.needs_images else (1, 1)
        for field in self._body:
            if field.dtype not in BLENDED:
                raise OptionError(
                    f"batch={self._step} cannot mix {field.dtype}; end augment= with to_float()"
                )
        if len(targets) != 1 or targets[0].shape or targets[0].storage_dtype.kind not in "iu":
            raise OptionError(f"batch={self._step} needs class numbers as targets, and got {targets}")

    def __call__(self, views: list[NDArray[Any]], rows: int, drawn: Draw, seed: int) -> torch.Tensor:
        """Mix the first ``rows`` rows of a batch in place; returns their targets."""
        labels = views[-1][:rows]
        wrong = labels[(labels < 0) | (labels >= self._step.classes)]
        if len(wrong):
            raise HeadraceError(
                f"a target of {wrong[0]}, and {self._step} has classes 0 to {self._step.classes - 1}"
            )
        numbers = numbers_of(seed, drawn.epoch, drawn.position, int(drawn.indices[0]))
        mix = self._step.draw(numbers, *self._sides)
        if mix.box is not None:
            (pixels,) = views[:-1]
            paste(pixels[:rows] if self._by_pixel else pixels[:rows].transpose(0, 2, 3, 1), mix.box)
        elif mix is not PURE:
            for field, memory in zip(self._body, views, strict=False):
                hands = 1 if field.nbytes * rows < _SMALL else few_hands()
                at_once(blend(memory[:rows], mix.weight, field.dtype, hands))
        return torch.from_numpy(mixed_targets(labels, self._step.classes, mix.weight))
