"""Crops, resizes and flips: against plain numpy and OpenCV, one step at a time, and against what is documented."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.image.framing import Framing
from headrace.recipes.op import Columns
from tests.recipes.helpers import MemorySource, order, picture, png, rows


def framed(sizes: list[tuple[int, int]], step: Any, *, seed: int = 0, epoch: int = 0) -> Framing:
    """The views of images of the given (height, width) after one step."""
    framing = Framing(np.array([w for _, w in sizes], float), np.array([h for h, _ in sizes], float))
    step.fold(framing, Columns([step]).draw(seed, epoch, np.arange(len(sizes))))
    return framing


def boxes(framing: Framing) -> np.ndarray:
    return np.stack([framing.x.start, framing.y.start, framing.x.span, framing.y.span], axis=1)


@pytest.mark.parametrize(
    ("size", "shape", "want"),
    [
        (256, (375, 500), (256, 341)),
        (256, (500, 375), (341, 256)),
        (224, (224, 224), (224, 224)),
        ((96, 128), (375, 500), (96, 128)),
        (3, (1000, 7), (428, 3)),
    ],
)
def test_resize_keeps_the_ratio_as_torchvision_does(size: Any, shape: Any, want: Any) -> None:
    framing = framed([shape], image.resize(size))
    assert (framing.y.size[0], framing.x.size[0]) == want


def test_resize_bounds_the_longer_side() -> None:
    framing = framed([(100, 400), (100, 120)], image.resize(50, max_size=80))
    assert framing.y.size.tolist() == [20, 50]
    assert framing.x.size.tolist() == [80, 60]


@pytest.mark.parametrize("interpolation", ["bilinear", "area", "cubic", "lanczos"])
def test_resize_is_that_of_opencv(interpolation: str) -> None:
    source = picture(50, 70)
    recipe = Recipe(
        MemorySource([png(source)]), image.decode(), [image.resize((31, 43), interpolation=interpolation)]
    )
    flag = {
        "bilinear": cv2.INTER_LINEAR,
        "area": cv2.INTER_AREA,
        "cubic": cv2.INTER_CUBIC,
        "lanczos": cv2.INTER_LANCZOS4,
    }[interpolation]
    got = rows(recipe, [0])[0][0].astype(int)
    want = cv2.resize(source, (43, 31), interpolation=flag).astype(int)
    assert np.abs(got - want).max() <= 1


def test_nearest_takes_the_pixel_under_the_centre() -> None:
    source = picture(50, 70)
    recipe = Recipe(
        MemorySource([png(source)]), image.decode(), [image.resize((31, 43), interpolation="nearest")]
    )
    ys, xs = ((np.arange(31) + 0.5) * 50 / 31).astype(int), ((np.arange(43) + 0.5) * 70 / 43).astype(int)
    np.testing.assert_array_equal(rows(recipe, [0])[0][0], source[ys][:, xs])


@pytest.mark.parametrize("shape", [(9, 9), (9, 20), (20, 9), (5, 5), (5, 12), (12, 5), (6, 8), (4, 7)])
def test_center_crop_takes_the_middle_or_pads_with_black(shape: tuple[int, int]) -> None:
    source = picture(*shape) | 1  # never black
    size = 8
    pad = [max(size - side, 0) for side in shape]
    padded = np.pad(source, [(p // 2, (p + 1) // 2) for p in pad] + [(0, 0)])
    top, left = (round((side - size) / 2) for side in padded.shape[:2])
    recipe = Recipe(MemorySource([png(source)]), image.decode(), [image.center_crop(size)])
    np.testing.assert_array_equal(rows(recipe, [0])[0][0], padded[top : top + size, left : left + size])


@settings(deadline=None, max_examples=80)
@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    padding=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    flips=st.tuples(st.sampled_from([0, 1]), st.sampled_from([0, 1]), st.sampled_from([0, 1])),
    floats=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_padded_crops_and_flips_are_those_of_numpy(
    shape: Any, size: Any, padding: Any, flips: Any, floats: bool, seed: int
) -> None:
    source = picture(*shape, seed=seed)
    crop = image.random_crop(size, padding=padding, fill=(9, 8, 7), pad_if_needed=True)
    steps = [
        image.horizontal_flip(flips[0]),
        image.vertical_flip(flips[1]),
        crop,
        image.horizontal_flip(flips[2]),
    ]
    recipe = Recipe(
        MemorySource([png(source)]), image.decode(), [*steps, image.to_float()] if floats else steps
    )
    got = rows(recipe, [0], seed=seed)[0][0]

    want = source[:: -1 if flips[1] else 1, :: -1 if flips[0] else 1]
    left, top, right, bottom = padding
    missing = [max(size[0] - shape[0] - top - bottom, 0), max(size[1] - shape[1] - left - right, 0)]
    edges = [(top + missing[0], bottom + missing[0]), (left + missing[1], right + missing[1]), (0, 0)]
    shifted = np.pad(want.astype(int) - (9, 8, 7), edges) + (9, 8, 7)
    numbers = Columns(recipe.steps)
    y, x = numbers.of(numbers.draw(seed, 0, np.array([0])), 2)[0]
    y, x = int(y * (shifted.shape[0] - size[0] + 1)), int(x * (shifted.shape[1] - size[1] + 1))
    want = shifted[y : y + size[0], x : x + size[1]][:, :: -1 if flips[2] else 1]
    if floats:
        np.testing.assert_allclose(got, want / 255, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("mode", "numpy_mode"), [("reflect", "reflect"), ("edge", "edge"), ("symmetric", "symmetric")]
)
def test_padding_of_the_image_s_own_pixels(mode: str, numpy_mode: Any) -> None:
    source = picture(12, 16)
    crop = image.random_crop((20, 26), padding=(5, 4), padding_mode=mode)
    recipe = Recipe(MemorySource([png(source)]), image.decode(), [crop])
    want = np.pad(source, [(4, 4), (5, 5), (0, 0)], mode=numpy_mode)
    np.testing.assert_array_equal(rows(recipe, [0])[0][0], want)


def test_images_of_unequal_sizes_are_padded_each_for_itself() -> None:
    """A step on pixels comes between, so that the padded images exist, in an order of several sizes."""
    images = [picture(*shape) for shape in ((12, 16), (20, 9), (12, 16), (8, 30))]
    steps = [image.pad((1, 2, 3, 4), fill=(9, 8, 7)), image.invert(1.0), image.center_crop(9)]
    recipe = Recipe(MemorySource([png(one) for one in images]), image.decode(), steps)
    found = rows(recipe, range(4))[0]
    for one, got in zip(images, found, strict=True):
        padded = np.pad(one.astype(int) - (9, 8, 7), [(2, 4), (1, 3), (0, 0)]) + (9, 8, 7)
        top, left = (round((side - 9) / 2) for side in padded.shape[:2])
        np.testing.assert_array_equal(got, 255 - padded[top : top + 9, left : left + 9])


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_an_image_too_small_for_its_crop_is_a_fault_that_says_what_to_do(mode: str) -> None:
    source = MemorySource([png(picture(12, 40)), png(picture(40, 40))])
    recipe = Recipe(source, image.decode(), [image.random_crop(32, padding_mode=mode)])
    work = order(source, [0, 1])
    out = [np.empty((2, 32, 32, 3), np.uint8)]
    compile_recipe(recipe, caches_decoded=False).run(work, out)
    assert list(work.faults) == [0]
    assert "pad_if_needed=True" in work.faults[0].reason
    np.testing.assert_array_equal(out[0][1], rows(recipe, [1])[0][0])


def test_random_resized_crop_looks_at_nothing_outside_its_box() -> None:
    """Crop first, resize then: pixels beside the crop must not bleed in."""
    framing = framed([(200, 300)] * 50, image.random_resized_crop(16))
    for axis, side in ((framing.x, 300), (framing.y, 200)):
        assert axis.low is not None
        assert axis.high is not None
        np.testing.assert_array_equal(axis.low, axis.start)
        np.testing.assert_array_equal(axis.high, axis.start + axis.span)
        assert axis.low.min() >= 0
        assert axis.high.max() <= side
        np.testing.assert_array_equal(axis.span, np.rint(axis.span))


def test_random_resized_crop_is_a_crop_and_then_a_resize() -> None:
    """Of an image of noise, in which a single pixel from beside the crop would show."""
    source = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    step = image.random_resized_crop((40, 50))
    recipe = Recipe(MemorySource([png(source)] * 40), image.decode(), [step])
    got = rows(recipe, range(40), seed=0)[0].astype(int)
    for row, (x, y, w, h) in enumerate(boxes(framed([(61, 83)] * 40, step)).astype(int)):
        want = cv2.resize(source[y : y + h, x : x + w], (50, 40), interpolation=cv2.INTER_LINEAR)
        assert np.abs(got[row] - want).max() <= 1


def reference_boxes(height: int, width: int, count: int, scale: Any, ratio: Any) -> np.ndarray:
    """The documented rule of torchvision's RandomResizedCrop, one image at a time."""
    rng = np.random.default_rng(1)
    out = []
    for _ in range(count):
        for _ in range(10):
            area = height * width * rng.uniform(*scale)
            aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                out.append((rng.integers(0, width - w + 1), rng.integers(0, height - h + 1), w, h))
                break
        else:
            w, h = width, height
            if width / height < ratio[0]:
                h = round(width / ratio[0])
            elif width / height > ratio[1]:
                w = round(height * ratio[1])
            out.append(((width - w) // 2, (height - h) // 2, w, h))
    return np.array(out, float)


@pytest.mark.parametrize(
    ("shape", "scale", "ratio"),
    [
        ((375, 500), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((100, 900), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((900, 100), (0.5, 1.0), (3 / 4, 4 / 3)),
        ((32, 32), (0.2, 0.9), (1.0, 1.0)),
    ],
)
def test_random_resized_crop_has_torchvision_s_distribution(shape: Any, scale: Any, ratio: Any) -> None:
    count = 6000
    got = boxes(framed([shape] * count, image.random_resized_crop(16, scale=scale, ratio=ratio)))
    want = reference_boxes(*shape, count, scale, ratio)
    for column in range(4):
        a, b = np.sort(got[:, column]), np.sort(want[:, column])
        grid = np.union1d(a, b)
        distance = np.abs(np.searchsorted(a, grid, "right") - np.searchsorted(b, grid, "right")).max() / count
        assert distance < 1.95 * math.sqrt(2 / count)  # Kolmogorov-Smirnov, p = 0.001


def test_random_resized_crop_falls_back_to_the_middle() -> None:
    step = image.random_resized_crop(8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    framing = framed([(10, 100), (100, 10)], step)
    assert boxes(framing).tolist() == [[45, 0, 10, 10], [0, 45, 10, 10]]


def test_flips_happen_as_often_as_asked() -> None:
    for p in (0.0, 0.3, 1.0):
        framing = framed([(4, 4)] * 4000, image.horizontal_flip(p))
        assert framing.x.mirrored is not None
        assert abs(framing.x.mirrored.mean() - p) < 0.04


def test_steps_draw_independently() -> None:
    framing = Framing(np.full(4000, 8.0), np.full(4000, 8.0))
    steps = [image.horizontal_flip(), image.vertical_flip()]
    columns = Columns(steps)
    numbers = columns.draw(1, 2, np.arange(4000))
    for at, step in enumerate(steps):
        step.fold(framing, columns.of(numbers, at))
    assert framing.x.mirrored is not None
    assert framing.y.mirrored is not None
    assert abs((framing.x.mirrored == framing.y.mirrored).mean() - 0.5) < 0.04


def test_resize_then_crop_is_one_resampling_equal_to_two_steps() -> None:
    source = picture(75, 100)
    recipe = Recipe(MemorySource([png(source)]), image.decode(), [image.resize(40), image.center_crop(24)])
    resized = cv2.resize(source, (53, 40), interpolation=cv2.INTER_LINEAR)
    top, left = round((40 - 24) / 2), round((53 - 24) / 2)
    want = resized[top : top + 24, left : left + 24].astype(int)
    assert np.abs(rows(recipe, [0])[0][0].astype(int) - want).max() <= 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: image.resize(0), "size in pixels"),
        (lambda: image.resize((1, 2, 3)), "pair"),
        (lambda: image.resize(8, interpolation="best"), "bilinear"),
        (lambda: image.resize((8, 8), max_size=9), "max_size"),
        (lambda: image.random_resized_crop(8, scale=(0.9, 0.1)), "scale"),
        (lambda: image.random_resized_crop(8, ratio=(0, 1)), "ratio"),
        (lambda: image.random_crop(8, padding=(1, 2, 3)), "padding"),
        (lambda: image.random_crop(8, padding_mode="wrap"), "padding_mode"),
        (lambda: image.random_crop(8, fill=300), "fill"),
        (lambda: image.horizontal_flip(1.5), "probability"),
        (lambda: image.vertical_flip(-1), "probability"),
        (lambda: image.decode("CMYK"), "RGB"),
        (lambda: image.decode(max_pixels=0), "positive"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()
