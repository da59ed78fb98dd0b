"""Image steps for recipes: ``decode`` goes into ``decode=``, all others into ``augment=[...]``."""

from headrace.recipes.image.ops import (
    center_crop,
    color_jitter,
    decode,
    gaussian_blur,
    grayscale,
    horizontal_flip,
    layout,
    normalise,
    normalize,
    random_crop,
    random_erasing,
    random_resized_crop,
    resize,
    rotation,
    to_float,
    vertical_flip,
)

__all__ = [
    "center_crop",
    "color_jitter",
    "decode",
    "gaussian_blur",
    "grayscale",
    "horizontal_flip",
    "layout",
    "normalise",
    "normalize",
    "random_crop",
    "random_erasing",
    "random_resized_crop",
    "resize",
    "rotation",
    "to_float",
    "vertical_flip",
]
