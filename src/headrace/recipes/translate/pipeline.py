"""A pipeline of another library while it is translated: the steps so far, and what the next transform would get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace.recipes.image import ops as image
from headrace.recipes.image.geometry import Flip
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.op import Op


class Unknown(Exception):
    """Why a transform stays the user's code."""


@dataclass(frozen=True)
class Note:
    """What became of one transform."""

    step: str
    why: str = ""
    """Why it is still the user's code; empty: it is one of headrace's steps."""

    def __str__(self) -> str:
        return f"{self.step}: {self.why}" if self.why else self.step


@dataclass
class Pipeline:
    """What is translated so far, and what the next transform would be given."""

    kind: str = "pillow"
    """What that is: an image of Pillow's (``pillow``), an array (``array``), or a tensor (``tensor``)."""
    planar: bool = False
    """Whether its channels come first."""
    steps: list[Op] = field(default_factory=list)
    """On pixels."""
    floats: str = ""
    """The dtype of floats, once they are."""
    scale: float = 1 / 255
    """What pixel values were multiplied by then."""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    erasing: list[Op] = field(default_factory=list)

    @property
    def tensor(self) -> bool:
        """Whether the next transform gets a tensor."""
        return self.kind == "tensor"

    @property
    def written(self) -> list[Op]:
        """The steps, and how rows are written."""
        out = list(self.steps)
        if self.mean is not None and self.std is not None:
            out.append(
                image.normalise(tuple(self.mean), tuple(self.std), dtype=self.floats, scale=self.scale)
            )
        elif self.floats:
            out.append(replace(image.to_float(self.floats), scale=self.scale))
        if self.planar:
            out.append(image.layout("NCHW", contiguous=True))
        return out + self.erasing

    def pixels(self) -> None:
        """The next step changes values, or looks at more than one: it is for uint8."""
        if self.floats:
            raise Unknown("it follows a conversion to floats")

    def places(self) -> None:
        """The next step moves pixels about."""
        if self.mean is not None or self.erasing:
            raise Unknown("it follows a normalisation")

    def pillows(self) -> None:
        """The next step is an operation of Pillow's."""
        self.pixels()
        if self.kind != "pillow":
            raise Unknown("on tensors its operations are not Pillow's")


class Add(Protocol):
    """Takes one transform into a pipeline, or says in ``Unknown`` why it cannot."""

    def __call__(self, pipeline: Pipeline, transform: Any, /) -> None:
        """Change ``pipeline`` only if nothing is raised."""
        ...


def package_of(transform: Any) -> str:
    """Of which library a transform is; its own class counts, not one that it derives from."""
    return type(transform).__module__.partition(".")[0]


def inside(pipeline: Pipeline, transforms: Iterable[Any], add: Add) -> list[Pixels]:
    """The steps of transforms that stand inside another; only steps on pixels may."""
    inner = replace(pipeline, steps=[], erasing=[])
    for transform in transforms:
        name = type(transform).__name__
        try:
            add(inner, transform)
        except Unknown as why:
            raise Unknown(f"{name} in it: {why}") from None
        before = (inner.kind, inner.planar, inner.floats, inner.mean, inner.erasing)
        if before != (pipeline.kind, pipeline.planar, pipeline.floats, pipeline.mean, []):
            raise Unknown(f"{name} in it: no step on pixels")
    found = [step for step in inner.steps if isinstance(step, Pixels)]
    if len(found) < len(inner.steps):
        raise Unknown(
            f"{next(step for step in inner.steps if not isinstance(step, Pixels))} in it moves pixels"
        )
    return found


def apply_together(pipeline: Pipeline, transforms: Sequence[Any], p: float, add: Add) -> None:
    """All of the transforms with probability ``p``."""
    if len(transforms) == 1:
        alone = replace(pipeline, steps=[], erasing=[])
        with suppress(Unknown):
            add(alone, transforms[0])
        match alone.steps:
            case [Flip() as flip]:  # one that may happen is one that happens less often
                pipeline.steps.append(replace(flip, p=flip.p * p))
                return
    pipeline.steps.append(image.random_apply(inside(pipeline, transforms, add), p))
