"""Torchvision's folder datasets as recipes: the same samples, prepared by headrace's kernels as far as these know
how, in forms that can be cached and shared.

Datasets are recognised by what they are, without importing torchvision. One whose ``__getitem__`` is not
torchvision's own behaves as itself, so it is none of these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.errors import OptionError
from headrace.recipes.calls import deterministic
from headrace.recipes.image.ops import decode
from headrace.recipes.pil_decoding import pil_decode
from headrace.recipes.recipe import Recipe
from headrace.recipes.translate import Note, as_call, translate
from headrace.recipes.translate.torchvision import flat

if TYPE_CHECKING:
    from headrace.sources.source import Source

MakeSource = Callable[..., "Source"]
"""``headrace.sources.files``, handed in: recipes and sources know nothing of each other."""

NOT_NATIVE = "native=False"
OWN_LOADER = "the dataset has a loader of its own"
TRUNCATED = "ImageFile.LOAD_TRUNCATED_IMAGES is set"
_FOLDER = "torchvision.datasets.folder"
_LOADERS = {(_FOLDER, "default_loader"), (_FOLDER, "pil_loader")}


class Recognised(NamedTuple):
    """A dataset as a recipe."""

    recipe: Recipe
    notes: tuple[Note, ...]
    """What became of each of its transforms."""


def recognise(
    dataset: Any, files: MakeSource, *, native: bool = True, collate: Callable[[Any], Any] | None = None
) -> Recognised | None:
    """The recipe that gives the samples of a torchvision folder dataset (or a subset of one), or None.

    ``files`` makes a source of paths and targets: ``headrace.sources.files``. ``native``: images are decoded by
    headrace, and transforms that it knows become its steps; otherwise everything is the dataset's own code.
    ``collate`` gets the samples one by one, so each has to be what the dataset gives, and not its row alone.
    """
    given, dataset = dataset, _innermost(dataset)
    if not _is_folder(dataset):
        return None
    samples = dataset.samples if given is dataset else [dataset.samples[index] for index in given.indices]
    if collate is not None and not {type(target) for _, target in samples} <= {int}:
        return None  # a source keeps targets as an array of numbers
    loader, known = dataset.loader, _has_known_loader(dataset)
    source = files([path for path, _ in samples], [target for _, target in samples], encoded=known)
    transforms = _transforms(dataset)
    why = why_not_native(dataset, native=native)
    if not why:
        steps, notes = translate(transforms)
        reading = decode(upright=False, max_pixels=_most_pixels())
        try:
            return Recognised(
                Recipe(source, reading, steps, collate=collate, target_transform=dataset.target_transform),
                tuple(notes),
            )
        except OptionError as error:  # (bfloat16 in front of user code)
            why = str(error)
    return Recognised(
        Recipe(
            source=source,
            decode=deterministic(pil_decode) if known else deterministic(LoadPath(loader)),
            augment=[as_call(transform) for transform in transforms],
            collate=collate,
            target_transform=dataset.target_transform,
        ),
        tuple(Note(type(transform).__name__, why) for transform in transforms),
    )


def may_be_known(dataset: Any) -> bool:
    """Whether the dataset is of a kind that ``recognise`` knows, or one of the user's made of it."""
    return any(cls.__module__ == _FOLDER for cls in type(_innermost(dataset)).__mro__)


def why_not_native(dataset: Any, *, native: bool) -> str:
    """Why images of a dataset that is recognised are not decoded by headrace; empty: they are."""
    dataset = _innermost(dataset)
    if not _has_known_loader(dataset):
        return OWN_LOADER
    return _pillow_told() if native else NOT_NATIVE


def _has_known_loader(dataset: Any) -> bool:
    loader = dataset.loader
    return (getattr(loader, "__module__", ""), getattr(loader, "__qualname__", "")) in _LOADERS


def _innermost(dataset: Any) -> Any:
    """The dataset that a subset is of."""
    return dataset.dataset if _is(dataset, "torch.utils.data.dataset", "Subset") else dataset


def tensor_type(dataset: Any) -> Any:
    """Torchvision's own type of the tensors that a dataset's transforms end with; None: they are plain tensors."""
    typed = False
    for transform in _transforms(_innermost(dataset)):
        if not type(transform).__module__.startswith("torchvision.transforms.v2"):
            typed = False
        elif type(transform).__name__ in ("ToImage", "ToImageTensor", "ToPureTensor"):
            typed = type(transform).__name__ != "ToPureTensor"
    return getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None) if typed else None


def _is(value: Any, module: str, name: str) -> bool:
    return type(value).__module__ == module and type(value).__qualname__ == name


def _is_folder(dataset: Any) -> bool:
    """Whether the dataset reads, counts and transforms as torchvision's ``DatasetFolder`` does."""
    kind = type(dataset)
    for method in ("__getitem__", "__len__"):
        owner = next((cls for cls in kind.__mro__ if method in vars(cls)), None)
        if owner is None or owner.__module__ != _FOLDER:
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

    return TRUNCATED if ImageFile.LOAD_TRUNCATED_IMAGES else ""


def _most_pixels() -> int:
    """Of how many pixels Pillow would decode an image; programs that need larger ones tell it so."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return 1 << 32 if limit is None else 2 * limit


def _transforms(dataset: Any) -> list[Any]:
    """The dataset's transforms one by one."""
    return [] if dataset.transform is None else flat(dataset.transform)


class LoadPath:
    """A loader of the user's own, which wants the path and not the bytes."""

    def __init__(self, loader: Callable[[str], Any]) -> None:
        self.loader = loader

    def __call__(self, path: bytes) -> Any:
        """What the loader makes of the file."""
        return self.loader(os.fsdecode(path))
