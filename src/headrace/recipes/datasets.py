"""Torchvision's folder datasets as recipes: the same samples, prepared by headrace's kernels as far as these know
how, in forms that can be cached and shared.

Datasets are recognised by what they are, without importing torchvision. One whose ``__getitem__`` is not
torchvision's own behaves as itself, so it is none of these.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.recipes.calls import deterministic, from_module
from headrace.recipes.image.ops import decode
from headrace.recipes.recipe import Recipe
from headrace.recipes.translate import Note, as_call, translate

if TYPE_CHECKING:
    from headrace.sources.source import Source

MakeSource = Callable[..., "Source"]
"""``headrace.sources.files``, handed in: recipes and sources know nothing of each other."""

_LOADERS = {("torchvision.datasets.folder", "default_loader"), ("torchvision.datasets.folder", "pil_loader")}


class Recognised(NamedTuple):
    """A dataset as a recipe."""

    recipe: Recipe
    notes: tuple[Note, ...]
    """What became of each of its transforms."""


def recognise(dataset: Any, files: MakeSource, *, native: bool = True) -> Recognised | None:
    """The recipe that gives the samples of a torchvision folder dataset (or a subset of one), or None.

    ``files`` makes a source of paths and targets: ``headrace.sources.files``. ``native``: images are decoded by
    headrace, and transforms that it knows become its steps; otherwise everything is the dataset's own code.
    """
    indices: Sequence[int] | None = None
    if _is(dataset, "torch.utils.data.dataset", "Subset"):
        indices, dataset = dataset.indices, dataset.dataset
    if not _is_folder(dataset):
        return None
    samples = dataset.samples if indices is None else [dataset.samples[index] for index in indices]
    loader = dataset.loader
    known = (getattr(loader, "__module__", ""), getattr(loader, "__qualname__", "")) in _LOADERS
    source = files([path for path, _ in samples], [target for _, target in samples], encoded=known)
    transforms = _flat(dataset.transform)
    why = "" if known else "the dataset has a loader of its own"
    why = why or ("" if native else "native=False") or _pillow_told()
    if not why:
        steps, notes = translate(transforms)
        reading = decode(upright=False, max_pixels=_most_pixels())
        return Recognised(
            Recipe(source, reading, steps, target_transform=dataset.target_transform), tuple(notes)
        )
    return Recognised(
        Recipe(
            source=source,
            decode=deterministic(pil_decode) if known else deterministic(LoadPath(loader)),
            augment=[as_call(transform) for transform in transforms],
            target_transform=dataset.target_transform,
        ),
        tuple(Note(type(transform).__name__, why) for transform in transforms),
    )


def _is(value: Any, module: str, name: str) -> bool:
    return type(value).__module__ == module and type(value).__qualname__ == name


def _is_folder(dataset: Any) -> bool:
    """Whether the dataset reads, counts and transforms as torchvision's ``DatasetFolder`` does."""
    kind = type(dataset)
    for method in ("__getitem__", "__len__"):
        owner = next((cls for cls in kind.__mro__ if method in vars(cls)), None)
        if owner is None or owner.__module__ != "torchvision.datasets.folder":
            return False
    if hasattr(kind, "__getitems__"):  # torch's loader would fetch whole batches by it
        return False
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, list) or not samples or not callable(getattr(dataset, "loader", None)):
        return False
    if not all(hasattr(dataset, name) for name in ("transform", "target_transform")):
        return False
    return all(isinstance(s, tuple | list) and len(s) == 2 and isinstance(s[0], str) for s in samples)


def _pillow_told() -> str:
    """Why images have to be read by Pillow itself: the program has told it how."""
    from PIL import ImageFile

    return "ImageFile.LOAD_TRUNCATED_IMAGES is set" if ImageFile.LOAD_TRUNCATED_IMAGES else ""


def _most_pixels() -> int:
    """Of how many pixels Pillow would decode an image; programs that need larger ones tell it so."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return 1 << 32 if limit is None else 2 * limit


def _flat(transform: Any) -> list[Any]:
    """The transforms one by one."""
    if transform is None:
        return []
    if from_module(transform, "torchvision") and type(transform).__name__ == "Compose":
        return [step for inner in transform.transforms for step in _flat(inner)]
    return [transform]


def pil_decode(data: bytes) -> Any:
    """What torchvision's ``pil_loader`` does, from bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


class LoadPath:
    """A loader of the user's own, which wants the path and not the bytes."""

    def __init__(self, loader: Callable[[str], Any]) -> None:
        self.loader = loader

    def __call__(self, path: bytes) -> Any:
        """What the loader makes of the file."""
        return self.loader(os.fsdecode(path))
