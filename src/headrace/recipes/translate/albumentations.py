"""Albumentations' transforms, of its version 2: on arrays, with OpenCV's pixels."""

from __future__ import annotations

import sys
from typing import Any

from headrace.recipes.image import ops as image
from headrace.recipes.image.crops import Middle
from headrace.recipes.image.geometry import Fit
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.truncating import BrightnessContrast, SizedBlur, TruncatingJitter
from headrace.recipes.translate.pipeline import Add, Pipeline, Unknown, apply_together, inside, package_of

_FILTERS = {1: "bilinear", 2: "cubic", 3: "area", 4: "lanczos", 5: "bilinear"}
"""OpenCV's numbers of its filters. (Both of its nearest ones choose other pixels than headrace's.)"""
_WHOLE = ("cubic", "area", "lanczos")
"""Filters for which a crop that follows cannot be folded in without moving pixels by a fraction."""


def flat(transform: Any) -> list[Any]:
    """The transforms of a ``Compose`` one by one, if it does nothing but call them."""
    plain = package_of(transform) == "albumentations" and type(transform).__name__ == "Compose"
    if plain and transform.p == 1 and not transform.processors:
        return [step for one in transform.transforms for step in flat(one)]
    return [transform]


def add(pipeline: Pipeline, transform: Any) -> None:
    """Take a transform into the pipeline."""
    if package_of(transform) != "albumentations":
        raise Unknown("it is not albumentations' own")
    version = str(getattr(sys.modules.get("albumentations"), "__version__", "2"))
    if version.partition(".")[0] != "2":
        raise Unknown(f"albumentations {version} is not known")
    if pipeline.tensor:
        raise Unknown("it follows ToTensorV2")
    known = _KNOWN.get(type(transform).__name__)
    if known is None:
        raise Unknown("headrace has no such step")
    known(pipeline, transform)


def _always(transform: Any) -> None:
    if transform.p != 1:
        raise Unknown(f"p={transform.p}")


def _sometimes(pipeline: Pipeline, step: Pixels, p: float) -> None:
    """A step on pixels, with probability ``p``."""
    pipeline.pixels()
    pipeline.steps.append(step if p == 1 else image.random_apply(step, float(p)))


def _moves(pipeline: Pipeline, transform: Any) -> None:
    """It crops or resizes, each image."""
    pipeline.places()
    _always(transform)
    for step in reversed(pipeline.steps):
        if getattr(step, "interpolation", "") in _WHOLE:
            raise Unknown(f"it follows a resize with interpolation {getattr(step, 'interpolation', '')}")
        if isinstance(step, Pixels):
            break


def _filter(transform: Any) -> dict[str, Any]:
    """How it resamples: all of a JPEG is read, as it would be."""
    if transform.interpolation not in _FILTERS:
        raise Unknown(f"interpolation {transform.interpolation}")
    if getattr(transform, "area_for_downscale", None) is not None:
        raise Unknown(f"area_for_downscale={transform.area_for_downscale}")
    return {"interpolation": _FILTERS[transform.interpolation], "shrink_on_load": False}


def _resize(pipeline: Pipeline, transform: Any) -> None:
    _moves(pipeline, transform)
    size = (int(transform.height), int(transform.width))
    pipeline.steps.append(image.resize(size, **_filter(transform)))


def _max_size(cover: bool) -> Add:
    def add(pipeline: Pipeline, transform: Any) -> None:
        _moves(pipeline, transform)
        size = transform.max_size
        if not isinstance(size, int):
            raise Unknown(f"max_size={size}")
        pipeline.steps.append(Fit(size, size, cover, **_filter(transform)))

    return add


def _resized_crop(pipeline: Pipeline, transform: Any) -> None:
    _moves(pipeline, transform)
    height, width = transform.size
    pipeline.steps.append(
        image.random_resized_crop(
            (int(height), int(width)),
            scale=tuple(transform.scale),
            ratio=tuple(transform.ratio),
            **_filter(transform),
        )
    )


def _crop_size(transform: Any) -> tuple[int, int]:
    if transform.pad_if_needed:
        raise Unknown("pad_if_needed")
    return int(transform.height), int(transform.width)


def _center_crop(pipeline: Pipeline, transform: Any) -> None:
    _moves(pipeline, transform)
    pipeline.steps.append(Middle(*_crop_size(transform)))


def _random_crop(pipeline: Pipeline, transform: Any) -> None:
    _moves(pipeline, transform)
    pipeline.steps.append(image.random_crop(_crop_size(transform)))


def _flip(horizontal: bool) -> Add:
    def add(pipeline: Pipeline, transform: Any) -> None:
        make = image.horizontal_flip if horizontal else image.vertical_flip
        pipeline.steps.append(make(float(transform.p)))

    return add


def _color_jitter(pipeline: Pipeline, transform: Any) -> None:
    names = ("brightness", "contrast", "saturation", "hue")
    bounds = [(float(pair[0]), float(pair[1])) for pair in (getattr(transform, name) for name in names)]
    _sometimes(pipeline, TruncatingJitter(*bounds), transform.p)


def _brightness_contrast(pipeline: Pipeline, transform: Any) -> None:
    if transform.ensure_safe_range:
        raise Unknown("ensure_safe_range")
    bounds = [tuple(map(float, pair)) for pair in (transform.brightness_limit, transform.contrast_limit)]
    step = BrightnessContrast(
        (bounds[0][0], bounds[0][1]), (bounds[1][0], bounds[1][1]), not transform.brightness_by_max
    )
    _sometimes(pipeline, step, transform.p)


def _to_gray(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    if transform.method != "weighted_average" or transform.num_output_channels != 3:
        raise Unknown(f"method {transform.method}, {transform.num_output_channels} channels")
    pipeline.steps.append(image.grayscale(float(transform.p)))


def _gaussian_blur(pipeline: Pipeline, transform: Any) -> None:
    (least, most), (low, high) = transform.blur_limit, transform.sigma_limit
    if low <= 0:
        raise Unknown(f"sigma_limit={transform.sigma_limit}")
    step = SizedBlur((int(least), int(most)), (float(low), float(high)))
    _sometimes(pipeline, step, transform.p)


def _normalize(pipeline: Pipeline, transform: Any) -> None:
    _always(transform)
    if pipeline.floats:
        raise Unknown("it is given no uint8")
    if transform.normalization != "standard":
        raise Unknown(f"normalization {transform.normalization}")
    given = (transform.mean, transform.std)
    mean, std = ([float(v) for v in (x if isinstance(x, list | tuple) else [x])] for x in given)
    if len(mean) not in (1, 3) or len(std) not in (1, 3):
        raise Unknown(f"{len(mean)} means for three channels")
    pipeline.floats, pipeline.scale = "float32", 1 / float(transform.max_pixel_value)
    pipeline.mean, pipeline.std = mean, std


def _to_float(pipeline: Pipeline, transform: Any) -> None:
    _always(transform)
    if pipeline.floats:
        raise Unknown("it is given no uint8")
    pipeline.floats, pipeline.scale = "float32", 1 / float(transform.max_value or 255)


def _to_tensor(pipeline: Pipeline, transform: Any) -> None:
    _always(transform)
    pipeline.kind, pipeline.planar = "tensor", True


def _one_of(pipeline: Pipeline, transform: Any) -> None:
    """The chosen one is applied whatever its own ``p``, which is its weight."""
    choices = [inside(pipeline, [one], _forced) for one in transform.transforms]
    _sometimes(pipeline, image.random_choice(choices, transform.transforms_ps), transform.p)


def _forced(pipeline: Pipeline, transform: Any) -> None:
    if type(transform).__name__ not in _ALONE:
        raise Unknown("no step on pixels that stands for itself")
    always = _Always(transform)
    _KNOWN[type(transform).__name__](pipeline, always)


class _Always:
    """A transform as if its ``p`` were 1."""

    p = 1

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transform, name)


def _sequential(pipeline: Pipeline, transform: Any) -> None:
    apply_together(pipeline, list(transform.transforms), float(transform.p), add)


def _compose(pipeline: Pipeline, transform: Any) -> None:
    if transform.processors:
        raise Unknown("it is about boxes or points, too")
    _sequential(pipeline, transform)


def _nothing(pipeline: Pipeline, transform: Any) -> None:
    pass


_KNOWN: dict[str, Add] = {
    "CenterCrop": _center_crop,
    "ColorJitter": _color_jitter,
    "Compose": _compose,
    "GaussianBlur": _gaussian_blur,
    "HorizontalFlip": _flip(True),
    "LongestMaxSize": _max_size(cover=False),
    "NoOp": _nothing,
    "Normalize": _normalize,
    "OneOf": _one_of,
    "RandomBrightnessContrast": _brightness_contrast,
    "RandomCrop": _random_crop,
    "RandomResizedCrop": _resized_crop,
    "Resize": _resize,
    "Sequential": _sequential,
    "SmallestMaxSize": _max_size(cover=True),
    "ToFloat": _to_float,
    "ToGray": _to_gray,
    "ToTensorV2": _to_tensor,
    "VerticalFlip": _flip(False),
}
_ALONE = ("ColorJitter", "GaussianBlur", "NoOp", "RandomBrightnessContrast", "ToGray")
"""Steps on pixels that ``OneOf`` may choose from."""
