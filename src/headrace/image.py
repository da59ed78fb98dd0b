"""Image steps for recipes.

``decode`` goes into ``decode=``; ``mixup``, ``cutmix`` and ``one_of`` into ``batch=``; all others into ``augment=``.
"""

from headrace.recipes.image.ops import (
    auto_augment,
    center_crop,
    color_jitter,
    cutmix,
    decode,
    gaussian_blur,
    grayscale,
    horizontal_flip,
    layout,
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
    "center_crop",
    "color_jitter",
    "cutmix",
    "decode",
    "gaussian_blur",
    "grayscale",
    "horizontal_flip",
    "layout",
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
