"""The names of steps in plain data, which never change, and how each is made again of its options.

A name is what users write where a step has a function of its own; steps that only other libraries' pipelines become
are named after these. Each step is made by that very function, which checks what it is given: a document can hold no
step that could not have been written by hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.recipes.calls import Call
from headrace.recipes.collating import collated
from headrace.recipes.fields import Fields
from headrace.recipes.image import annotations as follow
from headrace.recipes.image import (
    augment,
    crops,
    geometry,
    mixing,
    nested,
    ops,
    pillow,
    pixels,
    policies,
    rows,
    truncating,
    warps,
)
from headrace.recipes.op import Op, options_of
from headrace.recipes.pil_decoding import pil_decode
from headrace.recipes.plain import makers
from headrace.recipes.ragged import listed_images, stacked_images
from headrace.recipes.synthetic_decode import SyntheticDecode
from headrace.recipes.synthetic_decode import decode as synthetic_decode
from headrace.recipes.values import to_pil, to_tensor
from headrace.recipes.views import Views


@dataclass(frozen=True)
class Entry:
    """A step that can be written: its name, its class, what makes it of its options, and which options are fixed."""

    name: str
    kind: type[Op]
    make: Callable[..., Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)


def _operation(name: str, make: Callable[..., Any], **fixed: Any) -> Entry:
    """One of Pillow's; ``amount`` is what its function calls by a name of its own."""
    return Entry(f"image.{name}", pillow.Operation, make, {"name": name, **fixed})


ENTRIES: tuple[Entry, ...] = (
    Entry("call", Call, makers.call),
    Entry("views", Views, makers.views_of),
    Entry("fields", Fields, makers.fields_of),
    Entry("synthetic.decode", SyntheticDecode, synthetic_decode),
    Entry("image.decode", ops.Decode, ops.decode),
    # Crops, resizes and flips.
    Entry("image.resize", geometry.Resize, geometry.resize),
    Entry("image.fit", geometry.Fit, makers.fit),
    Entry("image.center_crop", geometry.CenterCrop, makers.sized(geometry.center_crop)),
    Entry(
        "image.random_resized_crop", geometry.RandomResizedCrop, makers.sized(geometry.random_resized_crop)
    ),
    Entry("image.random_crop", geometry.RandomCrop, makers.sized(crops.random_crop)),
    Entry("image.mirrored_crop", crops.MirroredCrop, makers.mirrored(makers.sized(crops.random_crop))),
    Entry("image.pad", crops.Pad, crops.pad),
    Entry("image.mirrored_pad", crops.MirroredPad, makers.mirrored(crops.pad)),
    Entry("image.horizontal_flip", geometry.Flip, geometry.horizontal_flip, {"horizontal": True}),
    Entry("image.vertical_flip", geometry.Flip, geometry.vertical_flip, {"horizontal": False}),
    # Pixels.
    Entry("image.color_jitter", pixels.ColorJitter, makers.color_jitter),
    Entry("image.grayscale", pixels.Grayscale, pixels.grayscale),
    Entry("image.gaussian_blur", pixels.GaussianBlur, pixels.gaussian_blur),
    Entry("image.rotation", pillow.Rotation, pillow.rotation),
    Entry("image.affine", warps.Affine, makers.affine),
    Entry("image.perspective", warps.Perspective, warps.perspective),
    _operation("invert", pillow.invert, amount=None),
    _operation("equalize", pillow.equalize, amount=None),
    _operation("autocontrast", pillow.autocontrast, amount=None),
    _operation("posterize", makers.renamed(pillow.posterize, amount="bits")),
    _operation("solarize", makers.renamed(pillow.solarize, amount="threshold")),
    _operation("sharpness", makers.renamed(pillow.sharpness, amount="factor")),
    Entry("image.random_apply", nested.RandomApply, nested.random_apply),
    Entry("image.random_choice", nested.RandomChoice, makers.renamed(nested.random_choice, weights="p")),
    Entry("image.rand_augment", policies.RandAugment, makers.rand_augment),
    Entry(
        "image.trivial_augment",
        policies.TrivialAugment,
        makers.renamed(policies.trivial_augment, bins="num_magnitude_bins"),
    ),
    Entry("image.auto_augment", policies.AutoAugment, policies.auto_augment, {"bins": 10}),
    # Rows.
    Entry("image.normalise", rows.Normalise, rows.normalise),
    Entry("image.layout", rows.Layout, rows.layout),
    Entry("image.random_erasing", rows.RandomErasing, makers.random_erasing),
    # Targets and batches.
    Entry("image.mask", follow.Mask, follow.mask),
    Entry("image.boxes", follow.Boxes, follow.boxes),
    Entry("image.mixup", mixing.MixUp, mixing.mixup),
    Entry("image.cutmix", mixing.CutMix, mixing.cutmix),
    Entry("image.one_of", mixing.OneOf, makers.one_of),
    # What pipelines of other libraries become.
    Entry("albumentations.center_crop", crops.Middle, makers.middle),
    Entry("albumentations.color_jitter", truncating.TruncatingJitter, makers.truncating_jitter),
    Entry("albumentations.brightness_contrast", truncating.BrightnessContrast, makers.brightness_contrast),
    Entry("albumentations.gaussian_blur", truncating.SizedBlur, makers.sized_blur),
    Entry("timm.rand_augment", augment.RandomOperations, makers.random_operations),
    Entry("timm.auto_augment", augment.PolicyOperations, makers.policy_operations),
    Entry("timm.aug_mix", augment.MixedOperations, makers.mixed_operations),
)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "to_pil": to_pil,
    "to_tensor": to_tensor,
    "pil_decode": pil_decode,
    "stacked_images": stacked_images,
    "listed_images": listed_images,
    "collated": collated,
}
"""Functions of headrace's own that stand in recipes where users' may: to read them runs no code of anybody else's."""


@functools.cache
def named(name: str) -> Entry | None:
    """The entry of a name."""
    return next((entry for entry in ENTRIES if entry.name == name), None)


def entry_of(step: Op) -> Entry | None:
    """The entry of a step; None for one of the user's own class."""
    for entry in ENTRIES:
        if type(step) is entry.kind and entry.fixed.items() <= options_of(step).items():
            return entry
    return None


def own_name(function: Any) -> str | None:
    """What a function of headrace's own is called; None for any other."""
    return next((name for name, own in FUNCTIONS.items() if own is function), None)
