"""Steps that are Pillow's own operations: to the bit, as often as asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes import Recipe
from headrace.recipes.op import Columns
from tests.recipes.helpers import MemorySource, picture, png, rows

SOURCE = picture(41, 54, 2)
GREY = np.asarray(Image.fromarray(SOURCE).convert("L"))[..., None]


def parameters(step: Any, count: int = 2000) -> list[Any]:
    return step.parameters(Columns([step]).draw(5, 0, np.arange(count)))


@pytest.mark.parametrize("options", [{}, {"expand": True}, {"center": (3, 8)}], ids=str)
@pytest.mark.parametrize("way", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("angle", [0, 90, -90, 180, 37.5, -400])
def test_rotation_is_that_of_pillow(angle: float, way: str, options: dict[str, Any]) -> None:
    step = image.rotation((angle, angle), interpolation=way, fill=(1, 2, 3), **options)
    (drawn,) = parameters(step, 1)
    pillow = Image.Resampling[way.upper()]
    want = Image.fromarray(SOURCE).rotate(angle, pillow, fillcolor=(1, 2, 3), **options)
    np.testing.assert_array_equal(step.apply(SOURCE, drawn), np.asarray(want))
    grey = Image.fromarray(GREY[..., 0]).rotate(angle, pillow, fillcolor=1, **options)
    np.testing.assert_array_equal(step.apply(GREY, drawn)[..., 0], np.asarray(grey))


def test_angles_are_uniform() -> None:
    angles = np.array(parameters(image.rotation((-10, 30))))
    assert -10 <= angles.min() < -9.5 and 29.5 < angles.max() <= 30
    shares = np.histogram(angles, 8, (-10, 30))[0] / len(angles)
    assert np.abs(shares - 1 / 8).max() < 0.03
    assert not image.rotation((5, 5)).random and image.rotation(5).random


OPERATIONS: dict[str, tuple[Any, Any]] = {
    "invert": (image.invert, ImageOps.invert),
    "equalize": (image.equalize, ImageOps.equalize),
    "autocontrast": (image.autocontrast, ImageOps.autocontrast),
    "posterize": (lambda p: image.posterize(3, p), lambda x: ImageOps.posterize(x, 3)),
    "solarize": (lambda p: image.solarize(77.5, p), lambda x: ImageOps.solarize(x, 77.5)),
    "sharpness": (lambda p: image.sharpness(1.7, p), lambda x: ImageEnhance.Sharpness(x).enhance(1.7)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_pillow(name: str) -> None:
    make, theirs = OPERATIONS[name]
    step = make(0.3)
    assert str(step) == name and step.random and not make(1).random and not make(0).random
    np.testing.assert_array_equal(step.apply(SOURCE, True), np.asarray(theirs(Image.fromarray(SOURCE))))
    grey = np.asarray(theirs(Image.fromarray(GREY[..., 0])))
    np.testing.assert_array_equal(step.apply(GREY, True)[..., 0], grey)
    assert abs(np.mean([one is not None for one in parameters(step)]) - 0.3) < 0.04


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_keeps_bits(bits: int) -> None:
    want = ImageOps.posterize(Image.fromarray(SOURCE), bits)
    np.testing.assert_array_equal(image.posterize(bits).apply(SOURCE, True), np.asarray(want))
    assert not image.posterize(0).apply(SOURCE, True).any()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [0, 3, (2, 5), (1, 2, 3, 60)], ids=str)
def test_pad(padding: Any, mode: str) -> None:
    left, top, right, bottom = {0: (0,) * 4, 3: (3,) * 4, (2, 5): (2, 5, 2, 5)}.get(padding, padding)
    extent = ((top, bottom), (left, right), (0, 0))
    want = np.pad(SOURCE, extent, mode)
    if mode == "constant":
        inner = np.pad(np.ones(SOURCE.shape, bool), extent)
        want = np.where(inner, want, (4, 5, 6))
    step = image.pad(padding, padding_mode=mode, fill=(4, 5, 6))
    source = MemorySource([png(SOURCE)])
    first = image.center_crop(SOURCE.shape[:2])
    np.testing.assert_array_equal(rows(Recipe(source, image.decode(), [first, step]), [0])[0][0], want)
    both = Recipe(source, image.decode(), [first, step, image.center_crop(30), image.to_float()])
    top, left = (round((side - 30) / 2) for side in want.shape[:2])
    middle = want[top : top + 30, left : left + 30] / 255
    np.testing.assert_allclose(rows(both, [0])[0][0], middle, atol=1e-6)


def test_center_crops_fill() -> None:
    recipe = Recipe(MemorySource([png(SOURCE)]), image.decode(), [image.center_crop(60, fill=(7, 8, 9))])
    (row,) = rows(recipe, [0])[0]
    np.testing.assert_array_equal(row[9:50, 3:57], SOURCE)
    assert (row[:9] == (7, 8, 9)).all() and (row[:, 57:] == (7, 8, 9)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: image.posterize(9), "0 to 8"),
        (lambda: image.solarize(float("nan")), "pixel value"),
        (lambda: image.sharpness(-1), "not negative"),
        (lambda: image.invert(2), "probability"),
        (lambda: image.rotation(5, interpolation="area"), "nearest, bilinear or bicubic"),
        (lambda: image.pad(-1), "none negative"),
        (lambda: image.pad(1, padding_mode="wrap"), "padding_mode"),
        (lambda: image.center_crop(3, fill=256), "0 to 255"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()
