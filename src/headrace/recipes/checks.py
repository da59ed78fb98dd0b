"""What ``batch=`` and ``follow=`` cannot work with, refused when a recipe is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.core.errors import OptionError
from headrace.recipes.image.annotations import Follower
from headrace.recipes.image.geometry import Geometry
from headrace.recipes.image.mixing import BatchStep
from headrace.recipes.image.nested import RandomApply, RandomChoice
from headrace.recipes.image.ops import Decode
from headrace.recipes.image.pillow import Operation
from headrace.recipes.image.pixels import ColorJitter, GaussianBlur, Grayscale
from headrace.recipes.image.rows import Layout, Normalise, RandomErasing
from headrace.recipes.op import Op
from headrace.recipes.views import Views

if TYPE_CHECKING:
    from headrace.sources.source import Source

_STAY = (ColorJitter, Grayscale, GaussianBlur, Operation, Normalise, Layout, RandomErasing)


class Definition(Protocol):
    """What is looked at of a ``Recipe``."""

    @property
    def source(self) -> Source:
        """Where its samples lie."""

    @property
    def decoder(self) -> Op | None:
        """Its first step."""

    @property
    def steps(self) -> tuple[Op, ...]:
        """Its steps after that."""

    @property
    def collate(self) -> Any:
        """What makes a batch of samples, if it is the user's."""

    @property
    def target_transform(self) -> Any:
        """What is done to targets, if anything."""

    @property
    def follow(self) -> Follower | Sequence[Follower] | None:
        """As it was given."""

    @property
    def followers(self) -> tuple[Follower, ...]:
        """The parts of the target that follow the geometry of their images."""

    @property
    def gives_images(self) -> bool:
        """Whether samples are images as headrace writes them."""


def _stays(step: Op) -> bool:
    """Whether a step leaves every pixel where it is."""
    if isinstance(step, RandomApply):
        return all(_stays(inner) for inner in step.steps)
    if isinstance(step, RandomChoice):
        return all(_stays(inner) for steps in step.choices for inner in steps)
    return isinstance(step, _STAY)


def gives_texts(recipe: Definition) -> bool:
    """Whether targets come out as texts, of which a batch has a list; not where they become something else."""
    targets = recipe.source.targets
    texts = isinstance(targets, list) and bool(targets) and isinstance(targets[0], str)
    return texts and not recipe.follow and recipe.target_transform is None


def check_followers(recipe: Definition) -> None:
    """Refuse what masks and boxes could not follow: they would lie beside their images without a word."""
    followers = recipe.followers
    for follower in followers:
        if not isinstance(follower, Follower):
            raise OptionError(
                f"follow={recipe.follow!r}: expected image.mask(), image.boxes(), or a list of them"
            )
    keys = {follower.key for follower in followers}
    if len(keys) < len(followers) or ("" in keys and len(keys) > 1):
        raise OptionError(
            "follow=: each must have an entry of the target of its own; write image.mask('mask')"
        )
    if recipe.source.targets is None:
        raise OptionError(f"follow={followers[0]}: {recipe.source!r} has no targets")
    if not isinstance(recipe.decoder, Decode):
        raise OptionError(f"follow={followers[0]}: needs images; pass decode=image.decode()")
    for at, step in enumerate(recipe.steps):
        if not (isinstance(step, Geometry) or _stays(step)):
            raise OptionError(
                f"augment[{at}], {step}: may move pixels, which {followers[0]} cannot follow; use resizes, crops, "
                "flips, and steps on colours"
            )


def check_batch(recipe: Definition, step: BatchStep) -> None:
    """Refuse batch steps that have nothing to work on."""
    targets = recipe.source.targets
    if not isinstance(step, BatchStep):
        raise OptionError(f"batch={step!r}: expected image.mixup(), image.cutmix() or image.one_of()")
    if recipe.collate is not None:
        raise OptionError(
            f"batch={step} mixes rows, and collate= makes batches of another kind; leave one out"
        )
    if recipe.followers:
        raise OptionError(f"batch={step} mixes class numbers, and follow= has other targets; leave one out")
    if recipe.steps and isinstance(recipe.steps[-1], Views):
        raise OptionError(f"batch={step} mixes single images, and views() makes several of each sample")
    if targets is None:
        raise OptionError(f"batch={step} mixes targets, and {recipe.source!r} has none")
    if step.needs_images and not recipe.gives_images:
        raise OptionError(
            f"batch={step} needs images that headrace wrote, to know their height and width; end augment= with "
            "an image step, such as to_float()"
        )
    if recipe.target_transform is None and len(targets):
        numbers = isinstance(targets, np.ndarray) and targets.ndim == 1 and targets.dtype.kind in "iu"
        if not numbers or not 0 <= np.min(targets) <= np.max(targets) < step.classes:
            raise OptionError(
                f"batch={step}: expected targets that are class numbers, 0 to {step.classes - 1}"
            )
