"""Torchvision's folder datasets as recipes: the same samples, in forms that can be cached and shared.

Datasets are recognised by what they are, without importing torchvision. One whose ``__getitem__`` is not
torchvision's own behaves as itself, so it is none of these.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.recipes.calls import Call, deterministic, from_module
from headrace.recipes.recipe import Recipe

if TYPE_CHECKING:
    from headrace.sources.source import Source

MakeSource = Callable[..., "Source"]
"""``headrace.sources.files``, handed in: recipes and sources know nothing of each other."""

DETERMINISTIC = frozenset(
    {
        "CenterCrop",
        "ConvertImageDtype",
        "FiveCrop",
        "Grayscale",
        "Identity",
        "Normalize",
        "PILToTensor",
        "Pad",
        "Resize",
        "RGB",
        "TenCrop",
        "ToDtype",
        "ToImage",
        "ToImageTensor",
        "ToPILImage",
        "ToPureTensor",
        "ToTensor",
    }
)
"""Torchvision's transforms whose result depends on their input alone."""

_LOADERS = {("torchvision.datasets.folder", "default_loader"), ("torchvision.datasets.folder", "pil_loader")}


def recognise(dataset: Any, files: MakeSource) -> Recipe | None:
    """The recipe that gives the very samples of a torchvision folder dataset (or a subset of one), or None.

    ``files`` makes a source of paths and targets: ``headrace.sources.files``.
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
    return Recipe(
        source=source,
        decode=deterministic(pil_decode) if known else deterministic(LoadPath(loader)),
        augment=_steps(dataset.transform),
        target_transform=dataset.target_transform,
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


def _steps(transform: Any) -> list[Any]:
    """The transforms one by one, so that the leading deterministic ones can belong to the decoded form."""
    if transform is None:
        return []
    if from_module(transform, "torchvision") and type(transform).__name__ == "Compose":
        return [step for inner in transform.transforms for step in _steps(inner)]
    own = type(transform).__module__.partition(".")[0] == "torchvision"
    if own and type(transform).__name__ in DETERMINISTIC:
        return [deterministic(transform)]
    return [Call(transform, False, "plain")]


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
