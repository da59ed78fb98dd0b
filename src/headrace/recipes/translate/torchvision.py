"""Torchvision's transforms, v1 and v2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.recipes.image import ops as image
from headrace.recipes.op import Op
from headrace.recipes.translate.pipeline import (
    Add,
    Pipeline,
    Unknown,
    apply_together,
    inside,
    package_of,
)

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

FILTERS = {"bilinear": "bilinear", "bicubic": "cubic", "lanczos": "lanczos"}
"""Pillow's names of filters, and headrace's; those of headrace are antialiased then."""
_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_DTYPES = {"torch.float32": "float32", "torch.float16": "float16", "torch.bfloat16": "bfloat16"}


def flat(transform: Any) -> list[Any]:
    """The transforms of a ``Compose`` one by one."""
    if package_of(transform) == "torchvision" and type(transform).__name__ == "Compose":
        return [step for one in transform.transforms for step in flat(one)]
    return [transform]


def add(pipeline: Pipeline, transform: Any) -> None:
    """Take a transform into the pipeline."""
    if package_of(transform) != "torchvision":
        raise Unknown("it is not torchvision's own, nor timm's")
    known = _KNOWN.get(type(transform).__name__)
    if known is None:
        raise Unknown("headrace has no such step")
    known(pipeline, transform)


def mode_of(interpolation: Any) -> str:
    """A filter's name: torchvision has names, enums of names, and Pillow's numbers."""
    mode = getattr(interpolation, "value", interpolation)
    return _PILLOW.get(mode, str(mode)) if isinstance(mode, int) else str(mode)


def _size(size: Any) -> int | tuple[int, int]:
    """As torchvision keeps it: a number, or a list of one or two."""
    if isinstance(size, int):
        return size
    sides = tuple(int(side) for side in size)
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def pair_of(size: Any) -> tuple[int, int]:
    sides = _size(size)
    return (sides, sides) if isinstance(sides, int) else sides


def _filter(pipeline: Pipeline, transform: Any) -> dict[str, Any]:
    """How it resamples."""
    mode = mode_of(transform.interpolation)
    if mode == "nearest":
        return {"interpolation": "nearest"}
    if mode not in FILTERS:
        raise Unknown(f"interpolation {mode}")
    if pipeline.tensor and getattr(transform, "antialias", True) is False:
        raise Unknown("antialias=False")
    return {"interpolation": FILTERS[mode], "antialias": True}


def plain_fill(fill: Any) -> int | tuple[int, ...]:
    """A fill for pixels; v2 keeps one for each type of input."""
    if isinstance(fill, dict):
        found = [value for kind, value in fill.items() if "others" in str(kind)] or list(fill.values())
        if len({str(value) for value in fill.values()}) > 1 or not found:
            raise Unknown("a fill for each type of input")
        fill = found[0]
    if fill is None:
        return 0
    values = (fill,) if isinstance(fill, int | float) else tuple(fill)
    if any(value != int(value) for value in values):
        raise Unknown(f"fill {fill}")
    whole = tuple(int(value) for value in values)
    return whole[0] if len(whole) == 1 else whole


def _resize(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    if transform.size is None:
        raise Unknown("size=None")
    options = _filter(pipeline, transform)
    pipeline.steps.append(image.resize(_size(transform.size), max_size=transform.max_size, **options))


def _resized_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    options = _filter(pipeline, transform)
    pipeline.steps.append(
        image.random_resized_crop(
            pair_of(transform.size), scale=tuple(transform.scale), ratio=tuple(transform.ratio), **options
        )
    )


def _center_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    pipeline.steps.append(image.center_crop(pair_of(transform.size)))


def _random_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    padding, options = _padding(pipeline, transform)
    pipeline.steps.append(
        image.random_crop(
            pair_of(transform.size), padding=padding, pad_if_needed=bool(transform.pad_if_needed), **options
        )
    )


def _pad(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    padding, options = _padding(pipeline, transform)
    pipeline.steps.append(image.pad(padding, **options))


def _padding(pipeline: Pipeline, transform: Any) -> tuple[Any, dict[str, Any]]:
    """How many pixels it adds, and which."""
    padding = transform.padding
    if padding is None:
        padding = 0
    elif not isinstance(padding, int):
        padding = tuple(int(side) for side in padding)
        padding = padding[0] if len(padding) == 1 else padding
    mode = str(getattr(transform.padding_mode, "value", transform.padding_mode))
    fill = plain_fill(transform.fill)
    if pipeline.floats and (fill != 0 or mode != "constant"):
        raise Unknown(f"fill {fill}, {mode}, after a conversion to floats")
    return padding, {"padding_mode": mode, "fill": fill}


def _flip(make: Callable[[float], Op]) -> Add:
    def add(pipeline: Pipeline, transform: Any) -> None:
        if pipeline.erasing:
            raise Unknown("it follows an erasing")
        pipeline.steps.append(make(float(transform.p)))

    return add


def _color_jitter(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    names = ("brightness", "contrast", "saturation", "hue")
    bounds = {name: getattr(transform, name) for name in names}
    pipeline.steps.append(
        image.color_jitter(
            **{name: (float(pair[0]), float(pair[1])) for name, pair in bounds.items() if pair is not None}
        )
    )


def _grayscale(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    if transform.num_output_channels != 3:
        raise Unknown("one channel comes out")
    pipeline.steps.append(image.grayscale(1.0))


def _random_grayscale(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    pipeline.steps.append(image.grayscale(float(transform.p)))


def _gaussian_blur(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pixels()
    kernel = pair_of(transform.kernel_size)
    sigma = tuple(float(edge) for edge in transform.sigma)
    pipeline.steps.append(image.gaussian_blur((kernel[1], kernel[0]), sigma=(sigma[0], sigma[-1])))


def _way(transform: Any) -> dict[str, Any]:
    return {"interpolation": mode_of(transform.interpolation), "fill": plain_fill(transform.fill)}


def _rotation(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    degrees = tuple(float(angle) for angle in transform.degrees)
    center = None if transform.center is None else tuple(transform.center)
    pipeline.steps.append(
        image.rotation(degrees, expand=bool(transform.expand), center=center, **_way(transform))  # type: ignore[arg-type]
    )


def _affine(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    degrees, *rest = (
        None if given is None else tuple(float(value) for value in given)
        for given in (
            transform.degrees,
            transform.translate,
            transform.scale,
            transform.shear,
            transform.center,
        )
    )
    options: dict[str, Any] = dict(zip(("translate", "scale", "shear", "center"), rest, strict=True))
    pipeline.steps.append(image.affine(degrees, **options, **_way(transform)))  # type: ignore[arg-type]


def _perspective(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    pipeline.steps.append(
        image.perspective(float(transform.distortion_scale), float(transform.p), **_way(transform))
    )


def _operation(make: Callable[..., Op], *names: str, anywhere: bool = False) -> Add:
    """An operation of Pillow's, with its parameters. ``anywhere``: torch does the same."""

    def add(pipeline: Pipeline, transform: Any) -> None:
        pipeline.pixels() if anywhere else pipeline.pillows()
        pipeline.steps.append(make(*(getattr(transform, name) for name in names), p=float(transform.p)))

    return add


def _apply(pipeline: Pipeline, transform: Any) -> None:
    inner = [step for one in transform.transforms for step in flat(one)]
    apply_together(pipeline, inner, float(transform.p), add)


def _choice(pipeline: Pipeline, transform: Any) -> None:
    choices = [inside(pipeline, flat(one), add) for one in transform.transforms]
    pipeline.steps.append(image.random_choice(choices, transform.p))


def _rand_augment(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    pipeline.steps.append(
        image.rand_augment(
            int(transform.num_ops),
            int(transform.magnitude),
            num_magnitude_bins=int(transform.num_magnitude_bins),
            **_way(transform),
        )
    )


def _trivial_augment(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    bins = int(transform.num_magnitude_bins)
    pipeline.steps.append(image.trivial_augment(num_magnitude_bins=bins, **_way(transform)))


def _auto_augment(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    policy = getattr(transform, "policies", None) or transform._policies
    pipeline.steps.append(image.auto_augment(policy, **_way(transform)))


def to_tensor(pipeline: Pipeline, transform: Any) -> None:
    if pipeline.kind != "pillow":
        raise Unknown("it is a tensor already")
    pipeline.kind, pipeline.planar, pipeline.floats = "tensor", True, "float32"


def to_image(pipeline: Pipeline, transform: Any) -> None:
    if pipeline.kind == "array":
        raise Unknown("it is given an array")
    pipeline.kind, pipeline.planar = "tensor", True


def _to_dtype(pipeline: Pipeline, transform: Any) -> None:
    dtype, scales = str(transform.dtype), getattr(transform, "scale", True)
    if not pipeline.tensor:
        raise Unknown("it is given an image of Pillow's")
    if dtype == "torch.uint8" and not pipeline.floats:
        return
    if dtype not in _DTYPES or not scales or pipeline.mean is not None or pipeline.erasing:
        raise Unknown(f"to {transform.dtype} there" if scales else "scale=False")
    if pipeline.floats and pipeline.floats != _DTYPES[dtype]:
        raise Unknown(f"to {transform.dtype} from {pipeline.floats}")
    pipeline.floats = _DTYPES[dtype]


def _normalize(pipeline: Pipeline, transform: Any) -> None:
    if not pipeline.floats or pipeline.mean is not None or pipeline.erasing:
        raise Unknown("it is given no floats from 0 to 1")
    if pipeline.floats != "float32":
        raise Unknown(f"in {pipeline.floats}, which rounds in between")
    mean, std = ([float(value) for value in _listed(values)] for values in (transform.mean, transform.std))
    if len(mean) not in (1, 3) or len(std) not in (1, 3):
        raise Unknown(f"{len(mean)} means for three channels")
    pipeline.mean, pipeline.std = mean, std


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, int | float) else list(values)


def _erasing(pipeline: Pipeline, transform: Any) -> None:
    if not pipeline.floats:
        raise Unknown("it is given no floats")
    value = transform.value
    if value is None:
        value = "random"
    elif not isinstance(value, str | int | float):
        value = tuple(float(one) for one in value)
        value = value[0] if len(value) == 1 else value
    pipeline.erasing.append(
        image.random_erasing(
            float(transform.p), scale=tuple(transform.scale), ratio=tuple(transform.ratio), value=value
        )
    )


def _nothing(pipeline: Pipeline, transform: Any) -> None:
    pass


_KNOWN: dict[str, Add] = {
    "AutoAugment": _auto_augment,
    "CenterCrop": _center_crop,
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _to_dtype,
    "GaussianBlur": _gaussian_blur,
    "Grayscale": _grayscale,
    "Identity": _nothing,
    "Normalize": _normalize,
    "PILToTensor": to_image,
    "Pad": _pad,
    "RGB": _nothing,
    "RandAugment": _rand_augment,
    "RandomAdjustSharpness": _operation(image.sharpness, "sharpness_factor"),
    "RandomAffine": _affine,
    "RandomApply": _apply,
    "RandomAutocontrast": _operation(image.autocontrast),
    "RandomChoice": _choice,
    "RandomCrop": _random_crop,
    "RandomEqualize": _operation(image.equalize),
    "RandomErasing": _erasing,
    "RandomGrayscale": _random_grayscale,
    "RandomHorizontalFlip": _flip(image.horizontal_flip),
    "RandomInvert": _operation(image.invert, anywhere=True),
    "RandomPerspective": _perspective,
    "RandomPosterize": _operation(image.posterize, "bits", anywhere=True),
    "RandomResizedCrop": _resized_crop,
    "RandomRotation": _rotation,
    "RandomSolarize": _operation(image.solarize, "threshold", anywhere=True),
    "RandomVerticalFlip": _flip(image.vertical_flip),
    "Resize": _resize,
    "ToDtype": _to_dtype,
    "ToImage": to_image,
    "ToImageTensor": to_image,
    "ToPureTensor": _nothing,
    "ToTensor": to_tensor,
    "TrivialAugmentWide": _trivial_augment,
}
