"""Transforms of torchvision, timm and albumentations as headrace's steps: known by type and parameters, without
importing any of these libraries.

A pipeline is translated from its beginning for as long as every transform is known and means the same on headrace's
images; from the first that is not, the rest stays the user's code and gets what it would have got: a Pillow image, an
array or a tensor. Random parameters have the same distributions, pixels are those of the library but for rounding.

Images here are uint8 pixels until a transform makes floats of them. Moving pixels about and making floats of them
may change places, so crops and flips that follow ``ToTensor`` are put before it.
"""

from headrace.recipes.translate.pipeline import Note
from headrace.recipes.translate.steps import Steps, as_call, steps_of, translate

__all__ = ["Note", "Steps", "as_call", "steps_of", "translate"]
