"""Datasets that headrace knows, as recipes: what of their work it takes over, and what stays the user's own code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert

from headrace.loader.hugging_face import may_be_hf, recognise_hf
from headrace.recipes.calls import Call
from headrace.recipes.datasets import (
    NOT_NATIVE,
    OWN_LOADER,
    TRUNCATED,
    may_be_known,
    recognise,
    tensor_type,
    why_not_native,
)
from headrace.recipes.image.ops import Decode
from headrace.recipes.recipe import Recipe
from headrace.recipes.translate import Note
from headrace.sources import files

_HINTS = {
    NOT_NATIVE: "without native=False headrace decodes the images, and runs the transforms that it knows",
    OWN_LOADER: "without a loader= of the dataset's own headrace decodes the images",
    TRUNCATED: "with on_error='skip' in place of LOAD_TRUNCATED_IMAGES headrace decodes the images",
}


@dataclass(frozen=True)
class Native:
    """What became of a dataset that was given to a loader."""

    recipe: Recipe | None = None
    collate_fn: Callable[[Any], Any] | None = None
    """Gets the recipe's samples; None: they become rows, as torch's own collation would stack them."""
    present: Callable[[Any], Any] | None = None
    """Makes of each of them what the dataset would have given."""
    decodes: bool = False
    """Whether headrace decodes the images."""
    translated: tuple[str, ...] = ()
    """Transforms in whose place steps of headrace run."""
    untranslated: tuple[str, ...] = ()
    """Those that run as they are, each with the reason."""
    rest: tuple[str, ...] = ()
    """What else is the user's own code."""
    hint: str = ""
    """What would let headrace do more."""

    @property
    def steps(self) -> tuple[str, ...]:
        """What headrace does in the place of the dataset."""
        return ("decoding", *self.translated) if self.decodes else ()

    @property
    def own(self) -> tuple[str, ...]:
        """What it does not, each with the reason."""
        return (*self.untranslated, *self.rest)


def look_for(
    dataset: Any,
    collate_fn: Callable[[Any], Any] | None,
    *,
    native: bool,
    batched: bool,
    workers: bool,
    keeps: bool,
) -> Native:
    """What headrace can do of a dataset's work. ``workers``: there are some; ``keeps``: samples are to be cached."""
    if may_be_hf(dataset):
        return _look_for_hf(dataset, collate_fn, batched=batched, keeps=keeps)
    if not may_be_known(dataset):
        return Native()
    name = type(dataset).__name__
    if not workers and not keeps:
        hint = "with num_workers headrace decodes the images, in workers"
        return Native(rest=(f"{name}: num_workers=0",), hint=hint)
    if batched and collate_fn is default_collate:
        collate_fn = None  # so that loaders made of another's attributes stay what they were
    elif not batched and collate_fn is None:
        collate_fn = default_convert
    found = recognise(dataset, files, native=native, collate=collate_fn)
    if found is None:
        return Native(rest=(f"{name}: it reads samples, or numbers classes, in a way of its own",))
    recipe, notes = found
    decodes = isinstance(recipe.decoder, Decode)
    why = "" if decodes else notes[0].why if notes else why_not_native(dataset, native=native)
    rest = [] if decodes else [f"decoding: {why}"]
    if recipe.target_transform is not None:
        rest.append(f"{_name(recipe.target_transform)}: the target_transform")
    if collate_fn is not None and collate_fn is not default_convert:
        rest.append(f"{_name(collate_fn)}: the collate_fn")
    said = Native(
        decodes=decodes,
        translated=tuple(note.step for note in notes if not note.why),
        untranslated=tuple(str(note) for note in notes if note.why),
        rest=tuple(rest),
        hint=_HINTS.get(why) or _hint(notes),
    )
    if collate_fn is not None and not decodes and not keeps:
        return said  # all of it would be the dataset's code: then as the dataset runs it
    present = None
    if collate_fn is not None and decodes and not isinstance(recipe.steps[-1], Call):
        present = TensorSample(tensor_type(dataset))
    return replace(said, recipe=recipe, collate_fn=collate_fn, present=present)


def _look_for_hf(
    dataset: Any, collate_fn: Callable[[Any], Any] | None, *, batched: bool, keeps: bool
) -> Native:
    hint = "a recipe over headrace.hf(dataset) lets headrace decode and transform the images (docs/dropin.md)"
    if not keeps:
        return Native(rest=("decoding: what the dataset does with images is not known",), hint=hint)
    found = recognise_hf(dataset, collate_fn, batched=batched)
    if isinstance(found, str):
        return Native(rest=(f"{type(dataset).__name__}: {found}",), hint=hint)
    rest = ["decoding: by the dataset, and cached"]
    transform = dataset.format["format_kwargs"].get("transform")
    rest += [f"{_name(transform)}: the dataset's transform"] if transform is not None else []
    rest += [f"{_name(collate_fn)}: the collate_fn"] if collate_fn is not None else []
    return Native(found.recipe, found.collate_fn, rest=tuple(rest), hint=hint)


@dataclass(frozen=True)
class TensorSample:
    """A recipe's sample as a dataset with transforms to tensors gives it."""

    kind: Any = None
    """Torchvision's own type of tensor, or None."""

    def __call__(self, sample: Any) -> Any:
        """The same image as a tensor."""
        array, target = sample
        tensor = torch.from_numpy(array)
        return (tensor if self.kind is None else self.kind(tensor)), target


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _hint(notes: tuple[Note, ...]) -> str:
    """What would help where a transform is in the way of others."""
    first = next((at for at, note in enumerate(notes) if note.why), len(notes))
    if first + 1 >= len(notes) or notes[first + 1].why == notes[first].why:
        return ""
    return (
        f"if the place of {notes[first].step} does not matter, put it last: headrace runs what comes before the "
        "first transform that it does not know"
    )
