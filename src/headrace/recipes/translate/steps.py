"""Whole pipelines: as far as transforms are known, they become steps; what is left is called as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.core.errors import OptionError
from headrace.recipes.calls import Call, as_op, deterministic
from headrace.recipes.image import ops as image
from headrace.recipes.op import Op
from headrace.recipes.translate import albumentations, timm, torchvision
from headrace.recipes.translate.pipeline import Note, Pipeline, Unknown, package_of
from headrace.recipes.values import to_pil, to_tensor

_DETERMINISTIC = {"torchvision": torchvision.DETERMINISTIC, "timm": timm.DETERMINISTIC}
_LIBRARIES = ("torchvision", "timm", "albumentations")


class Steps(list[Any]):
    """Steps for ``augment=``, and in ``notes`` what became of each transform."""

    def __init__(self, steps: Iterable[Any], notes: Iterable[Note]) -> None:
        super().__init__(steps)
        self.notes = tuple(notes)


def translate(transforms: Sequence[Any]) -> tuple[list[Any], list[Note]]:
    """Steps for a recipe that does what the transforms do with a Pillow image of RGB, and a note for each."""
    pipeline = Pipeline()
    rest, notes = _take(pipeline, transforms)
    if rest or pipeline.kind == "pillow":
        return [*_handed(pipeline), *rest], notes
    return pipeline.written, notes


def steps_of(transform: Any, *, strict: bool = False) -> Steps:
    """The steps that do what a pipeline of torchvision, timm or albumentations does, for ``augment=`` of a recipe.

    ``transform``: one of their transforms, mostly a ``Compose``, or a list of them. From the first that headrace does
    not know on they stay as they are, and get what they would have got; ``notes`` of what is returned says why.
    ``strict``: that is an error. Steps of a pipeline that ends with images, not with tensors, end with
    ``layout("NHWC")``.
    """
    transforms = list(transform) if isinstance(transform, list | tuple) else [transform]
    packages = {package_of(one) for one in transforms}
    if not isinstance(transform, list | tuple) and not packages <= {*_LIBRARIES}:
        raise OptionError(
            f"steps_of({transform!r}): expected a transform of {', '.join(_LIBRARIES)}, or a list of them; "
            "your own functions stand in augment= as they are"
        )
    arrays = "albumentations" in packages
    flat = [one for each in transforms for one in (albumentations if arrays else torchvision).flat(each)]
    pipeline = Pipeline("array" if arrays else "pillow")
    rest, notes = _take(pipeline, flat)
    unknown = next((note for note in notes if note.why), None)
    if strict and unknown is not None:
        raise OptionError(f"steps_of(strict=True): {unknown}")
    if rest:
        return Steps([*_handed(pipeline), *rest], notes)
    end = [] if pipeline.planar else [image.layout("NHWC")]
    return Steps([*pipeline.written, *end], notes)


def as_call(transform: Any) -> Call:
    """A transform as it is, called with what came before."""
    known = type(transform).__name__ in _DETERMINISTIC.get(package_of(transform), ())
    return Call(transform, known, "plain")


def _take(pipeline: Pipeline, transforms: Sequence[Any]) -> tuple[list[Op], list[Note]]:
    """Take transforms into the pipeline for as long as they are known; what is left of them, and a note for each."""
    arrays = pipeline.kind == "array"
    add = albumentations.add if arrays else _add
    notes: list[Note] = []
    for at, transform in enumerate(transforms):
        name = type(transform).__name__
        try:
            add(pipeline, transform)
        except (Unknown, OptionError, AttributeError, TypeError) as error:
            notes.append(Note(name, str(error) or "its parameters are not known"))
            later = transforms[at + 1 :]
            notes += [Note(type(one).__name__, "it follows one that is not known") for one in later]
            # Arrays are what recipes hand to any callable; torchvision's and timm's are called as their Compose does.
            return [as_op(one, "steps_of()") if arrays else as_call(one) for one in transforms[at:]], notes
        notes.append(Note(name))
    return [], notes


def _add(pipeline: Pipeline, transform: Any) -> None:
    """A transform of torchvision's or timm's, which stand together in one ``Compose``."""
    (timm if package_of(transform) == "timm" else torchvision).add(pipeline, transform)


def _handed(pipeline: Pipeline) -> list[Any]:
    """The steps so far, and what the user's code after them is given."""
    if pipeline.kind == "array":
        return pipeline.written
    return [*pipeline.written, deterministic(to_tensor if pipeline.tensor else to_pil)]
