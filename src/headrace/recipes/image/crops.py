"""``random_crop``, whose padding decides which kind of step it is."""

from __future__ import annotations

from headrace.core.errors import OptionError
from headrace.recipes.image.geometry import RandomCrop
from headrace.recipes.image.pixels import MirroredCrop, as_fill
from headrace.recipes.op import as_size

PADDING_MODES = ("constant", "reflect", "edge", "symmetric")


def random_crop(
    size: int | tuple[int, int],
    *,
    padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
    padding_mode: str = "constant",
    fill: int | tuple[int, ...] = 0,
    pad_if_needed: bool = False,
) -> RandomCrop | MirroredCrop:
    """A part of the image at a random place, after padding it.

    ``padding``: pixels on every side, or (left and right, top and bottom), or (left, top, right, bottom).
    ``padding_mode``: ``"constant"`` (of value ``fill``), or made of the image's own pixels: ``"edge"`` repeats
    the outermost one, ``"reflect"`` mirrors without it, ``"symmetric"`` with it. ``pad_if_needed`` pads images
    that are too small, which are otherwise bad samples.
    """
    height, width = as_size("random_crop", size)
    sides = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
    if len(sides) == 2:
        sides = sides * 2
    if len(sides) != 4 or any(not isinstance(side, int) or side < 0 for side in sides):
        raise OptionError(
            f"random_crop(padding={padding!r}): expected pixels: one number, two or four, none negative"
        )
    if padding_mode not in PADDING_MODES:
        raise OptionError(
            f"random_crop(padding_mode={padding_mode!r}): expected one of {', '.join(PADDING_MODES)}"
        )
    four = (sides[0], sides[1], sides[2], sides[3])
    if padding_mode == "constant":
        return RandomCrop(height, width, four, as_fill("random_crop", fill), pad_if_needed)
    return MirroredCrop(height, width, four, padding_mode, pad_if_needed)
