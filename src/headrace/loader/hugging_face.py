"""Datasets of Hugging Face with a cache: decoded images are kept, and all else is the dataset's own code.

A transform of such a dataset is a function of whole batches, so nothing is known of it; it gets what it would have
got. Images are decoded by the dataset's own feature: to decode them here would be no faster, as long as it is not
known which part of them is needed. ``datasets`` is not imported: whoever has such a dataset has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import default_collate, default_convert

from headrace.recipes.calls import deterministic
from headrace.recipes.recipe import Recipe
from headrace.sources.arrow import NumberedSource

_MODULE = "datasets.arrow_dataset"


class Kept(NamedTuple):
    """A dataset as a recipe whose decoded samples can be cached."""

    recipe: Recipe
    collate_fn: Collate


def may_be_hf(dataset: Any) -> bool:
    """Whether it is one of theirs (or of a class made of it), with images."""
    theirs = any(cls.__module__ == _MODULE and cls.__name__ == "Dataset" for cls in type(dataset).__mro__)
    return theirs and bool(_images(dataset))


def _images(dataset: Any) -> list[str]:
    """The columns of images."""
    return [name for name, feature in (dataset.features or {}).items() if _is_image(feature)]


def recognise_hf(dataset: Any, collate_fn: Callable[[Any], Any] | None, *, batched: bool) -> Kept | str:
    """The recipe that gives the samples of a dataset, or why there is none."""
    for method in ("__getitem__", "__getitems__", "__len__"):
        owner = next(cls for cls in type(dataset).__mro__ if method in vars(cls))
        if owner.__module__ != _MODULE:
            return f"it has a {method} of its own"
    form = dataset.format
    names = list(dataset.column_names)
    if form["type"] not in (None, "custom") or set(form["format_kwargs"]) - {"transform"}:
        return f"with_format({form['type']!r}) decodes images by itself"
    if sorted(form["columns"]) != sorted(names):
        return "only some of its columns are formatted"
    images = _images(dataset)
    if len(images) != 1:
        return f"it has {len(images)} columns of images"
    (image,) = images
    plain = dataset.with_format(None)
    if not len(plain) or plain.data.column(image).null_count:
        return "some of its samples have no image"
    source = NumberedSource(plain, image, None)
    (first,) = source.read_many([0])
    if isinstance(first, BaseException):
        return f"images cannot be read without it: {first}"
    rest = plain.remove_columns([image]) if len(names) > 1 else None
    transform = form["format_kwargs"].get("transform")
    collate = Collate(names, image, rest, transform, collate_fn, batched=batched)
    return Kept(Recipe(source, deterministic(DecodeImage(dataset.features[image])), collate=collate), collate)


def _is_image(feature: Any) -> bool:
    kind = type(feature)
    return kind.__module__ == "datasets.features.image" and kind.__name__ == "Image" and bool(feature.decode)


class DecodeImage:
    """What the dataset makes of an image's bytes, in parts that a cache can keep."""

    def __init__(self, feature: Any) -> None:
        self.feature = feature

    def __call__(self, data: bytes) -> dict[str, Any]:
        """A Pillow image, and what else it knows of itself."""
        image = self.feature.decode_example({"bytes": data, "path": None})
        return {"image": image, "info": _pairs(image.info), "format": image.format}


class Collate:
    """Decoded images through the rest of what dataset and loader do: other columns, transform, collate function."""

    def __init__(
        self,
        names: list[str],
        image: str,
        rest: Any,
        transform: Callable[[Any], Any] | None,
        collate_fn: Callable[[Any], Any] | None,
        *,
        batched: bool,
    ) -> None:
        self._names, self._image, self._rest = names, image, rest
        self._transform, self._batched = transform, batched
        self._collate_fn = collate_fn or (default_collate if batched else default_convert)
        called = transform if transform is not None else self._collate_fn
        self.__qualname__ = getattr(called, "__qualname__", None) or type(called).__qualname__

    def __call__(self, samples: Any) -> Any:
        """A batch of samples (image, number), or one sample where there are no batches."""
        listed: list[Any] = samples if self._batched else [samples]
        others = {} if self._rest is None else self._rest[[number for _, number in listed]]
        images = [_restored(value) for value, _ in listed]
        batch = {name: images if name == self._image else others[name] for name in self._names}
        if self._transform is not None:
            batch = self._transform(batch)
        count = len(batch[next(iter(batch))])
        rows: Any = [{name: column[at] for name, column in batch.items()} for at in range(count)]
        return self._collate_fn(rows if self._batched else rows[0])


def _restored(value: dict[str, Any]) -> Any:
    image = value["image"]
    image.info, image.format = _dict(value["info"]), value["format"]
    return image


def _pairs(info: dict[Any, Any]) -> list[Any]:
    """A dict of any keys as values that a cache keeps."""
    return [[key, {"pairs": _pairs(value)} if type(value) is dict else value] for key, value in info.items()]


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    return {key: _dict(value["pairs"]) if type(value) is dict else value for key, value in pairs}
