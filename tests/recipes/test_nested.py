"""Steps made of other steps: random_apply and random_choice; and crops with several interpolations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import simplejpeg

from headrace import image
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.image.geometry import Fit
from headrace.recipes.op import Columns
from tests.recipes.helpers import MemorySource, jpeg, order, picture, png, rows, run

SOURCE = picture(32, 40, 3)


def parameters(step: Any, count: int = 4000) -> list[Any]:
    numbers = Columns([step]).draw(5, 0, np.arange(count))
    assert numbers.shape[1] == step.draws
    return step.parameters(numbers)


def test_all_steps_or_none() -> None:
    step = image.random_apply([image.color_jitter(0.4, 0.4), image.gaussian_blur(3, p=0.5)], 0.8)
    drawn = parameters(step)
    hits = [row for row in drawn if row is not None]
    assert abs(len(hits) / len(drawn) - 0.8) < 0.02
    assert abs(np.mean([blur is not None for _, blur in hits]) - 0.5) < 0.04
    factors = [factor for jitter, _ in hits for which, factor in jitter if which == 0]
    assert 0.6 <= min(factors) < 0.61 and 1.39 < max(factors) <= 1.4  # whatever the first number was
    jitter, blur = next(row for row in hits if row[1] is not None)
    want = step.steps[1].apply(step.steps[0].apply(SOURCE, jitter), blur)
    np.testing.assert_array_equal(step.apply(SOURCE, [jitter, blur]), want)
    once = step.steps[0].apply(SOURCE, jitter)
    np.testing.assert_array_equal(step.apply(SOURCE, [jitter, None]), once)


def test_steps_draw_for_themselves() -> None:
    both = parameters(image.random_apply([image.grayscale(0.5), image.invert(0.5)], 1))
    found = Counter((first is None, second is None) for first, second in both)
    assert len(found) == 4 and all(abs(count / 4000 - 0.25) < 0.03 for count in found.values())


def test_one_of_several() -> None:
    step = image.random_choice([image.invert(1), [image.grayscale(1), image.solarize(9, 1)], []], p=[2, 1, 1])
    drawn = parameters(step)
    shares = np.bincount([which for which, _ in drawn]) / len(drawn)
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.03)
    looks = {which: step.apply(SOURCE, (which, own)) for which, own in dict(drawn).items()}
    np.testing.assert_array_equal(looks[0], 255 - SOURCE)
    assert (looks[1][..., 0] == looks[1][..., 1]).all() and (looks[1] != SOURCE).any()
    np.testing.assert_array_equal(looks[2], SOURCE)
    even = np.bincount([which for which, _ in parameters(image.random_choice([image.invert(1)] * 4))])
    assert abs(even / 4000 - 0.25).max() < 0.03


def test_what_counts_as_random() -> None:
    always = image.invert(1)
    assert not image.random_apply(always, 1).random
    assert not image.random_apply(image.grayscale(), 0).random
    assert image.random_apply(always, 0.5).random
    assert image.random_apply(image.grayscale(0.5), 1).random
    assert not image.random_choice([always]).random
    assert image.random_choice([always, image.grayscale(1)]).random


def test_in_a_recipe() -> None:
    """Rows are pure functions of seed, epoch and sample; the fingerprint knows what is inside."""
    source = MemorySource([jpeg(picture(40, 50, number)) for number in range(8)])

    def recipe(p: float = 0.5, bits: int = 2) -> Recipe:
        inner = image.random_apply([image.color_jitter(0.4, hue=0.1), image.posterize(bits, 0.5)], p)
        nested = image.random_choice([inner, image.rotation(20)])
        return Recipe(source, image.decode(), [image.resize((32, 32)), nested, image.horizontal_flip()])

    (whole,) = rows(recipe(), range(8), epoch=1)
    (backwards,) = rows(recipe(), range(7, -1, -1), epoch=1, caches=True)
    np.testing.assert_array_equal(whole, backwards[::-1])
    assert (rows(recipe(), range(8), epoch=2)[0] != whole).any()
    prints = {made.fingerprint(Form.AUGMENTED) for made in (recipe(), recipe(0.6), recipe(bits=3))}
    assert len(prints) == 3 and recipe().fingerprint(Form.AUGMENTED) in prints


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: image.random_apply(image.horizontal_flip()), "no step on pixels"),
        (lambda: image.random_apply([image.grayscale(), image.normalise(0, 1)]), "normalise is no step"),
        (lambda: image.random_apply(lambda value: value), "no step on pixels"),
        (lambda: image.random_apply(image.rotation(9, expand=True)), "rotation changes the size"),
        (lambda: image.random_apply(image.pad(1, padding_mode="edge")), "pad changes the size"),
        (lambda: image.random_apply(image.invert(), 1.5), "probability"),
        (lambda: image.random_choice([]), "a list of steps"),
        (lambda: image.random_choice(image.invert()), "a list of steps"),
        (lambda: image.random_choice([image.invert()], p=[0.5, 0.5]), "a weight for each"),
        (lambda: image.random_choice([image.invert()], p=[0]), "a weight for each"),
        (lambda: image.random_resized_crop(8, interpolation=()), "at least one"),
        (lambda: image.random_resized_crop(8, interpolation=("bilinear", "hamming")), "hamming"),
        (lambda: image.resize(8, fit="fill"), "cover"),
        (lambda: image.resize(8, fit="cover", max_size=9), "max_size"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()


@pytest.mark.parametrize("end", [[], [image.to_float(), image.layout("NCHW", contiguous=True)]], ids=len)
@pytest.mark.parametrize("after", [[], [image.invert(1)], [image.random_crop(28, padding=4)]], ids=len)
def test_a_crop_in_one_of_several_ways(after: list[Any], end: list[Any]) -> None:
    """Each row is what one of the ways alone gives it, the same crop; and whoever is next to it does not matter."""
    source = MemorySource(
        [*(jpeg(picture(60, 90, n)) for n in range(30)), png(picture(50, 40, 9)), b"no image"]
    )

    def made(way: Any) -> Recipe:
        crop = image.random_resized_crop(24, scale=(0.3, 1), interpolation=way, antialias=True)
        return Recipe(source, image.decode(), [crop, *after, *end])

    (both,) = rows(made(("bilinear", "cubic")), range(31))
    (again,) = rows(made(("bilinear", "cubic")), range(30, -1, -1), caches=True)
    np.testing.assert_array_equal(both, again[::-1])
    if after and after[0].draws:
        return  # the steps after it draw other numbers
    alone = [rows(made(way), range(31))[0] for way in ("bilinear", "cubic")]
    same = np.array([[(row == one[at]).all() for one in alone] for at, row in enumerate(both)])
    assert same.any(axis=1).all()
    assert 8 <= same[:, 0].sum() <= 22


def test_a_bad_row_among_several_ways() -> None:
    source = MemorySource([jpeg(picture(60, 90, 1)), b"no image", jpeg(picture(60, 90, 2))])
    crop = image.random_resized_crop(24, interpolation=("bilinear", "cubic"), antialias=True)
    work = order(source, [0, 1, 2])
    run(compile_recipe(Recipe(source, image.decode(), [crop]), caches_decoded=False), work)
    assert list(work.faults) == [1]


@pytest.mark.parametrize(
    ("of", "fit", "size", "want"),
    [
        ((100, 200), "cover", (30, 30), (30, 60)),
        ((100, 200), "contain", (30, 30), (15, 30)),
        ((100, 200), "cover", (30, 80), (40, 80)),
        ((100, 200), "contain", (30, 80), (30, 60)),
        ((100, 200), "cover", 25, (25, 50)),
        ((130, 100), "cover", 33, (43, 33)),  # 42.9
        ((100, 130), "contain", 33, (25, 33)),  # 25.4
        ((300, 1), "contain", 30, (30, 1)),
    ],
)
def test_resize_fits(of: tuple[int, int], fit: str, size: Any, want: tuple[int, int]) -> None:
    source = MemorySource([png(picture(*of))])
    recipe = Recipe(source, image.decode(), [image.resize(size, fit=fit, antialias=True)])
    (sample,) = compile_recipe(recipe, caches_decoded=False).samples(order(source, [0]))
    assert sample.shape == (3, *want)
    exact = Recipe(source, image.decode(), [image.resize(want, antialias=True)])
    np.testing.assert_array_equal(sample, rows(exact, [0])[0][0].transpose(2, 0, 1))


@pytest.mark.parametrize("divides", [False, True])
def test_halves_go_the_way_of_the_library(divides: bool) -> None:
    """Where a side would be half a pixel: as timm's and albumentations' own floats have it."""
    short, long = np.meshgrid(np.arange(8, 90, dtype=float), np.arange(8, 400, dtype=float))
    step = Fit(27, 27, cover=True, divides=divides)
    height, width = step._sides(long.ravel(), short.ravel())
    for at in range(0, height.size, 7):
        sides = long.flat[at], short.flat[at]
        scale, ratio = 27 / min(sides), min(side / 27 for side in sides)
        want = [round(side / ratio if divides else side * scale) for side in sides]
        assert [height[at], width[at]] == [max(side, 1) for side in want]


def test_jpegs_may_be_read_in_full() -> None:
    """What a shrunk JPEG looks like depends on whether all of it was read; a PNG is always read in full."""
    photo = picture(256, 256, 4)
    photo[::2] = 255 - photo[::2]
    encoded = jpeg(photo, 95)
    plain = simplejpeg.decode_jpeg(encoded)
    source, full = MemorySource([encoded]), MemorySource([png(plain)])

    def row(where: Any, **options: Any) -> np.ndarray:
        return rows(Recipe(where, image.decode(), [image.resize((60, 60), **options)]), [0])[0][0]

    np.testing.assert_array_equal(row(source, shrink_on_load=False), row(full))
    assert (row(source) != row(full)).any()
