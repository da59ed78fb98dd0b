"""Image steps for recipes.

``decode`` goes into ``decode=``; ``mixup``, ``cutmix`` and ``one_of`` into ``batch=``;
``mask`` and ``boxes`` into ``follow=``; all others into ``augment=``.
"""

from headrace.recipes.image.ops import (
    auto_augment,
    boxes,
    center_crop,
    color_jitter,
    cutmix,
    decode,
    gaussian_blur,
    grayscale,
    horizontal_flip,
    layout,
    mask,
    mixup,
    normalise,
    normalize,
    one_of,
    rand_augment,
    random_crop,
    random_erasing,
    random_resized_crop,
    resize,
    rotation,
    to_float,
    trivial_augment,
    vertical_flip,
)

__all__ = [
    "auto_augment",
    "boxes",
    "center_crop",
    "color_jitter",
    "cutmix",
    "decode",
    "gaussian_blur",
    "grayscale",
    "horizontal_flip",
    "layout",
    "mask",
    "mixup",
    "normalise",
    "normalize",
    "one_of",
    "rand_augment",
    "random_crop",
    "random_erasing",
    "random_resized_crop",
    "resize",
    "rotation",
    "to_float",
    "trivial_augment",
    "vertical_flip",
]
