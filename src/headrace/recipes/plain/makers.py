"""Steps made of the options that are written of them: what their functions take by other names, checked by these."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.core.errors import OptionError
from headrace.recipes.calls import Call, as_op
from headrace.recipes.fields import Fields, fields
from headrace.recipes.image.augment import (
    OPERATIONS,
    Augmentation,
    MixedOperations,
    PolicyOperations,
    RandomOperations,
)
from headrace.recipes.image.crops import Middle
from headrace.recipes.image.geometry import Fit, resize
from headrace.recipes.image.mixing import BatchStep, OneOf
from headrace.recipes.image.mixing import one_of as chosen
from headrace.recipes.image.pillow import ROTATIONS
from headrace.recipes.image.pixels import ColorJitter
from headrace.recipes.image.pixels import color_jitter as jitter
from headrace.recipes.image.policies import RandAugment
from headrace.recipes.image.policies import rand_augment as rand
from headrace.recipes.image.rows import RandomErasing
from headrace.recipes.image.rows import random_erasing as erasing
from headrace.recipes.image.truncating import BrightnessContrast, SizedBlur, TruncatingJitter
from headrace.recipes.image.warps import Affine
from headrace.recipes.image.warps import affine as warp
from headrace.recipes.op import Op, as_fill, as_size, check_probability, check_range
from headrace.recipes.views import Views, views

Make = Callable[..., Any]
Range = tuple[float, float]
STYLES = ("plain", "torchvision", "image")


def sized(make: Make) -> Make:
    """``height`` and ``width`` for a function that takes a size."""
    return lambda height, width, **options: make((height, width), **options)


def mirrored(make: Make) -> Make:
    """``mode`` for a function that takes a padding mode."""
    return lambda mode, **options: make(padding_mode=mode, **options)


def renamed(make: Make, **names: str) -> Make:
    """Options for a function that calls some of them by other names."""
    return lambda **options: make(**{names.get(name, name): value for name, value in options.items()})


def call(function: Any, deterministic: bool, style: str) -> Call:
    """A callable of the user's."""
    made = as_op(function, "call")
    if not isinstance(made, Call) or style not in STYLES:
        raise OptionError(f"expected a callable, and a style of {', '.join(STYLES)}, not {style!r}")
    return replace(made, deterministic=deterministic, style=style)


def views_of(branches: Sequence[Sequence[Op]]) -> Views:
    """All branches as they are."""
    return views(*branches)


def fields_of(names: tuple[str, ...], decoders: tuple[Op, ...], steps: tuple[tuple[Op, ...], ...]) -> Fields:
    """Each field with what decodes it and what follows."""
    if not len(names) == len(decoders) == len(steps) == len({*names}):
        raise OptionError("expected a decode step and a list of steps for each field, and no field twice")
    return fields({name: [one, *rest] for name, one, rest in zip(names, decoders, steps, strict=True)})


def fit(height: int, width: int, cover: bool, divides: bool, **options: Any) -> Fit:
    """A resize that keeps the ratio."""
    made = resize((height, width), fit="cover" if cover else "contain", **options)
    assert isinstance(made, Fit)
    return replace(made, divides=divides)


def color_jitter(**ranges: Range | None) -> ColorJitter:
    """Those that there are."""
    return jitter(**{name: pair for name, pair in ranges.items() if pair is not None})


def affine(degrees: Range, shear: tuple[Range, Range], **options: Any) -> Affine:
    """Shears as four numbers."""
    return warp(degrees, shear=(*shear[0], *shear[1]), **options)


def rand_augment(count: int, strength: int, bins: int, **options: Any) -> RandAugment:
    """As torchvision calls them."""
    return rand(count, strength, num_magnitude_bins=bins, **options)


def random_erasing(value: tuple[float, ...], flat: bool, **options: Any) -> RandomErasing:
    """Without a value it is noise."""
    if value and flat:
        raise OptionError("there is a value, and flat, which is for noise")
    return erasing(value=value or ("color" if flat else "random"), **options)


def one_of(steps: tuple[BatchStep, ...], weights: tuple[float, ...]) -> OneOf:
    """All of them."""
    return chosen(*steps, weights=weights)


# -- albumentations -----------------------------------------------------------------------------------------


def middle(height: int, width: int) -> Middle:
    """See ``Middle``."""
    return Middle(*as_size("center_crop", (height, width)))


def truncating_jitter(**ranges: Range | None) -> TruncatingJitter:
    """See ``TruncatingJitter``."""
    color_jitter(**ranges)  # (which checks them, and leaves out what changes nothing)
    return TruncatingJitter(**ranges)


def brightness_contrast(brightness: Range, contrast: Range, by_mean: bool) -> BrightnessContrast:
    """See ``BrightnessContrast``."""
    for name, pair in (("brightness", brightness), ("contrast", contrast)):
        check_range("brightness_contrast", name, pair, low=-math.inf)
    return BrightnessContrast(brightness, contrast, by_mean)


def sized_blur(kernel: tuple[int, int], sigma: Range) -> SizedBlur:
    """See ``SizedBlur``."""
    check_range("gaussian_blur", "kernel", kernel)
    check_range("gaussian_blur", "sigma", sigma, low=math.ulp(0.0))
    return SizedBlur(kernel, sigma)


# -- timm ---------------------------------------------------------------------------------------------------


def _checked(operations: Sequence[Augmentation]) -> None:
    for one in operations:
        if one.name not in OPERATIONS:
            raise OptionError(f"headrace has no operation {one.name!r}")
        check_probability(one.name, one.p)
        as_fill(one.name, one.fill)
        if not one.ways or not {*one.ways} <= {*ROTATIONS}:
            raise OptionError(f"{one.name}(ways={one.ways!r}): expected some of {', '.join(ROTATIONS)}")
        numbers = (one.magnitude, one.most, one.translate)
        if not all(map(math.isfinite, numbers)) or math.isnan(one.spread):
            raise OptionError(f"{one.name}: its magnitude, most and translate are numbers that end")


def random_operations(
    operations: tuple[Augmentation, ...], count: int, weights: tuple[float, ...] | None
) -> RandomOperations:
    """See ``RandomOperations``."""
    _checked(operations)
    if count < 0 or not operations:
        raise OptionError(f"count={count} of {len(operations)} operations: expected some to choose from")
    if weights is not None:
        wrong = len(weights) != len(operations) or not all(0 <= one < math.inf for one in weights)
        if wrong or sum(one > 0 for one in weights) < count:
            raise OptionError(f"weights={weights!r}: expected one for each operation, and {count} above zero")
    return RandomOperations(operations, count, weights)


def policy_operations(policy: tuple[tuple[Augmentation, ...], ...]) -> PolicyOperations:
    """See ``PolicyOperations``."""
    if not policy:
        raise OptionError("an empty policy")
    for operations in policy:
        _checked(operations)
    return PolicyOperations(policy)


def mixed_operations(operations: tuple[Augmentation, ...], width: int, depth: int) -> MixedOperations:
    """See ``MixedOperations``."""
    _checked(operations)
    if width < 1 or depth < 0 or not operations:
        raise OptionError(
            f"width={width}, depth={depth}, {len(operations)} operations: expected a chain or more, no negative "
            "depth, and operations to choose from"
        )
    return MixedOperations(operations, width, depth)
