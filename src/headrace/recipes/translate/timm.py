"""timm's own transforms, which stand among torchvision's in what its ``create_transform`` makes."""

from __future__ import annotations

import math
from typing import Any

from headrace.recipes.image import ops as image
from headrace.recipes.image.augment import (
    OPERATIONS,
    Augmentation,
    MixedOperations,
    PolicyOperations,
    RandomOperations,
)
from headrace.recipes.image.geometry import Fit
from headrace.recipes.image.pillow import ROTATIONS
from headrace.recipes.translate import torchvision
from headrace.recipes.translate.pipeline import Add, Pipeline, Unknown, package_of
from headrace.recipes.translate.torchvision import FILTERS, mode_of, pair_of, plain_fill

DETERMINISTIC = frozenset(
    {"CenterCropOrPad", "MaybePILToTensor", "MaybeToTensor", "ToNumpy", "ToTensor", "TrimBorder"}
)
"""timm's transforms whose result depends on their input alone."""


def add(pipeline: Pipeline, transform: Any) -> None:
    """Take a transform of timm's into the pipeline."""
    known = _KNOWN.get(type(transform).__name__)
    if known is None:
        raise Unknown("headrace has no such step")
    known(pipeline, transform)


def _filters(transform: Any) -> tuple[str, ...]:
    """The filters of which one is chosen for each image."""
    given = transform.interpolation
    modes = [mode_of(one) for one in (given if isinstance(given, list | tuple) else [given])]
    unknown = [mode for mode in modes if mode not in FILTERS]
    if unknown:
        raise Unknown(f"interpolation {unknown[0]}")
    return tuple(FILTERS[mode] for mode in modes)


def _resized_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    pipeline.steps.append(
        image.random_resized_crop(
            pair_of(transform.size),
            scale=tuple(transform.scale),
            ratio=tuple(transform.ratio),
            interpolation=_filters(transform),
            antialias=True,
        )
    )


def _keep_ratio(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    if transform.random_scale_prob > 0 or transform.random_aspect_prob > 0:
        raise Unknown("a random scale or ratio")
    if transform.longest not in (0, 1):
        raise Unknown(f"longest={transform.longest}")
    filters = _filters(transform)
    if len(filters) > 1:
        raise Unknown("a random interpolation")
    height, width = pair_of(transform.size)
    pipeline.steps.append(
        Fit(height, width, transform.longest == 0, filters[0], antialias=True, divides=True)
    )


def _center_crop(pipeline: Pipeline, transform: Any) -> None:
    pipeline.places()
    if transform.padding_mode != "constant":
        raise Unknown(f"padding_mode {transform.padding_mode}")
    fill = plain_fill(transform.fill)
    if pipeline.floats and fill != 0:
        raise Unknown(f"fill {fill} after a conversion to floats")
    pipeline.steps.append(image.center_crop(pair_of(transform.size), fill=fill))


def _to_numpy(pipeline: Pipeline, transform: Any) -> None:
    if pipeline.kind != "pillow":
        raise Unknown("it is a tensor already")
    pipeline.kind, pipeline.planar = "array", True


def _to_tensor(pipeline: Pipeline, transform: Any) -> None:
    """Without scaling."""
    if pipeline.kind != "pillow":
        raise Unknown("it is a tensor already")
    if str(transform.dtype) not in ("torch.float32", "torch.uint8"):
        raise Unknown(f"to {transform.dtype}")
    pipeline.kind, pipeline.planar = "tensor", True
    if str(transform.dtype) == "torch.float32":
        pipeline.floats, pipeline.scale = "float32", 1.0


def _maybe_to_tensor(pipeline: Pipeline, transform: Any) -> None:
    if not pipeline.tensor:
        torchvision.to_tensor(pipeline, transform)


def _maybe_to_image(pipeline: Pipeline, transform: Any) -> None:
    if not pipeline.tensor:
        torchvision.to_image(pipeline, transform)


_VALUES: dict[str, Any] = {"": 0, "const": 0, "rand": "color", "pixel": "random"}


def _erasing(pipeline: Pipeline, transform: Any) -> None:
    if not (pipeline.tensor and pipeline.floats):
        raise Unknown("it is given no floats")
    if str(transform.device) != "cpu":
        raise Unknown(f"device {transform.device}")
    low, high = transform.log_aspect_ratio
    pipeline.erasing.append(
        image.random_erasing(
            float(transform.probability),
            scale=(float(transform.min_area), float(transform.max_area)),
            ratio=(math.exp(low), math.exp(high)),
            value=_VALUES[transform.mode],
            count=(int(transform.min_count), int(transform.max_count)),
        )
    )


def _operation(operation: Any) -> Augmentation:
    """One of the operations of its policies."""
    name, options = operation.name, operation.hparams
    if package_of(operation) != "timm" or name not in OPERATIONS:
        raise Unknown(f"{name} in it: headrace has no such operation")
    ways = operation.kwargs["resample"]
    modes = tuple(mode_of(one) for one in (ways if isinstance(ways, list | tuple) else [ways]))
    if not {*modes} <= {*ROTATIONS}:
        raise Unknown(f"interpolation {modes}")
    relative = name.endswith("Rel")
    fill = plain_fill(operation.kwargs["fillcolor"])
    return Augmentation(
        name=name,
        p=float(operation.prob),
        magnitude=float(operation.magnitude),
        spread=float(operation.magnitude_std),
        most=float(operation.magnitude_max or 10),
        translate=float(options.get("translate_pct", 0.45) if relative else options["translate_const"]),
        fill=fill if isinstance(fill, tuple) else (fill,),
        ways=modes,
    )


def _rand_augment(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    weights = transform.choice_weights
    if weights is not None:
        weights = tuple(float(one) for one in weights)
        if sum(one > 0 for one in weights) < transform.num_layers:
            raise Unknown("more layers than operations")
    operations = tuple(_operation(one) for one in transform.ops)
    pipeline.steps.append(RandomOperations(operations, int(transform.num_layers), weights))


def _auto_augment(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    policy = tuple(tuple(_operation(one) for one in operations) for operations in transform.policy)
    pipeline.steps.append(PolicyOperations(policy))


def _mix(pipeline: Pipeline, transform: Any) -> None:
    pipeline.pillows()
    if transform.alpha != 1 or transform.blended:
        raise Unknown("blended" if transform.blended else f"alpha={transform.alpha}")
    operations = tuple(_operation(one) for one in transform.ops)
    pipeline.steps.append(MixedOperations(operations, int(transform.width), max(int(transform.depth), 0)))


_KNOWN: dict[str, Add] = {
    "AugMixAugment": _mix,
    "AutoAugment": _auto_augment,
    "CenterCropOrPad": _center_crop,
    "MaybePILToTensor": _maybe_to_image,
    "MaybeToTensor": _maybe_to_tensor,
    "RandAugment": _rand_augment,
    "RandomErasing": _erasing,
    "RandomResizedCropAndInterpolation": _resized_crop,
    "ResizeKeepRatio": _keep_ratio,
    "ToNumpy": _to_numpy,
    "ToTensor": _to_tensor,
}
