"""Steps on pixel values, against PIL and plain arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes import Recipe
from headrace.recipes.image import pixels
from headrace.recipes.image.rows import from_storage, to_storage
from headrace.recipes.op import Columns
from tests.recipes.helpers import MemorySource, picture, png, rows

SOURCE = picture(40, 50, 3)


def parameters(step: Any, count: int = 2000) -> list[Any]:
    return step.parameters(Columns([step]).draw(5, 0, np.arange(count)))


def apart(a: Any, b: Any) -> int:
    return int(np.abs(np.asarray(a, int) - np.asarray(b, int)).max())


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
def test_brightness_contrast_and_saturation_are_those_of_pil(factor: float) -> None:
    pil = Image.fromarray(SOURCE)
    for ours, theirs in (
        (pixels.adjust_brightness, ImageEnhance.Brightness),
        (pixels.adjust_contrast, ImageEnhance.Contrast),
        (pixels.adjust_saturation, ImageEnhance.Color),
    ):
        want = np.asarray(theirs(pil).enhance(factor)).astype(int)
        assert apart(ours(SOURCE, factor), want) <= 1, ours.__name__
        assert np.abs(ours(SOURCE, factor) - want).mean() < 0.03, ours.__name__


def test_hue_turns_as_in_pil_and_comes_back() -> None:
    hsv = np.array(Image.fromarray(SOURCE).convert("HSV"))
    hsv[..., 0] += np.uint8(0.25 * 255)
    want = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))
    assert np.abs(pixels.adjust_hue(SOURCE, 0.25).astype(int) - want).mean() < 4
    assert apart(pixels.adjust_hue(SOURCE, 0.0), SOURCE) <= 8  # hue has eight bits, as in PIL
    there_and_back = pixels.adjust_hue(pixels.adjust_hue(SOURCE, 0.4), -0.4)
    assert np.abs(there_and_back.astype(int) - SOURCE).mean() < 4


def test_color_jitter_draws_from_its_ranges_in_every_order() -> None:
    drawn = parameters(image.color_jitter(0.4, (0.5, 0.6), 2.0, 0.1))
    bounds = {0: (0.6, 1.4), 1: (0.5, 0.6), 2: (0.0, 3.0), 3: (-0.1, 0.1)}
    for which, (low, high) in bounds.items():
        values = [value for row in drawn for at, value in row if at == which]
        assert low <= min(values) < low + 0.02 * (high - low) + 1e-9
        assert high - 0.02 * (high - low) - 1e-9 < max(values) <= high
    orders = [tuple(at for at, _ in row) for row in drawn]
    assert len(set(orders)) == 24
    assert min(orders.count(o) for o in set(orders)) > 2000 / 24 / 2
    assert all(at == 2 for row in parameters(image.color_jitter(saturation=0.5), 20) for at, _ in row)


def test_grayscale_keeps_the_channels() -> None:
    want = np.repeat(np.asarray(Image.fromarray(SOURCE).convert("L"))[..., None], 3, axis=2)
    assert apart(image.grayscale(1.0).apply(SOURCE, True), want) <= 1
    hits = [value is not None for value in parameters(image.grayscale(0.2))]
    assert abs(np.mean(hits) - 0.2) < 0.04


def test_blur_is_a_normalised_gaussian() -> None:
    spot = np.zeros((15, 15, 3), np.uint8)
    spot[7, 7] = 255
    got = image.gaussian_blur(5, sigma=1.0).apply(spot, 1.0)[..., 0].astype(float)
    line = np.exp(-0.5 * np.arange(-2, 3) ** 2)
    line /= line.sum()
    np.testing.assert_allclose(got[5:10, 5:10], 255 * np.outer(line, line), atol=1)
    assert got[:5].max() == 0
    sigmas = [s for s in parameters(image.gaussian_blur(3, sigma=(0.5, 2.0), p=0.5)) if s is not None]
    assert 0.5 <= min(sigmas) < 0.53
    assert 1.97 < max(sigmas) <= 2.0
    assert abs(len(sigmas) / 2000 - 0.5) < 0.04


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("contiguous", [False, True])
def test_normalise_is_the_documented_formula(dtype: str, contiguous: bool) -> None:
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    steps = [image.normalise(mean, std, dtype=dtype), image.layout("NCHW", contiguous=contiguous)]
    recipe = Recipe(MemorySource([png(SOURCE)]), image.decode(), [image.resize((40, 50)), *steps])
    got = from_storage(rows(recipe, [0])[0][0], dtype).astype(float)
    want = (SOURCE / 255 - mean) / std
    want = want.transpose(2, 0, 1) if contiguous else want
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(got, want, atol=tolerance)


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 0.1], np.float32)
    torch = pytest.importorskip("torch")
    want = torch.tensor(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_storage(to_storage(values, "bfloat16"), "bfloat16"), want)


def test_one_channel() -> None:
    grey = np.asarray(Image.fromarray(SOURCE).convert("L"))[..., None]
    steps = [
        image.color_jitter(0.2, 0.2, 0.2, 0.1),
        image.gaussian_blur(3),
        image.rotation(10),
        image.grayscale(1.0),
    ]
    recipe = Recipe(
        MemorySource([png(grey)]),
        image.decode("L"),
        [image.resize((32, 32)), *steps, image.normalise(0.5, 0.5)],
    )
    assert rows(recipe, [0])[0].shape == (1, 32, 32, 1)
    plain = Recipe(MemorySource([png(SOURCE)]), image.decode("L"), [image.resize((40, 50))])
    assert apart(rows(plain, [0])[0][0], grey) <= 1


@pytest.mark.parametrize(
    ("value", "after_floats"), [(7, False), ((1.0, 2.0, 3.0), True), ("random", True), ("random", False)]
)
def test_erasing_overwrites_one_box(value: Any, after_floats: bool) -> None:
    base = [image.resize((64, 64))]
    erase = image.random_erasing(1.0, scale=(0.1, 0.3), ratio=(0.5, 2.0), value=value)
    source = MemorySource([png(picture(64, 64, 1)), png(picture(64, 64, 2))])
    floats = [image.to_float()]
    steps = base + floats + [erase] if after_floats else base + [erase] + floats
    got = rows(Recipe(source, image.decode(), steps), [0, 1])[0]
    want = rows(Recipe(source, image.decode(), base + floats), [0, 1])[0]
    for row in (0, 1):
        changed = (got[row] != want[row]).any(axis=2)
        ys, xs = np.nonzero(changed)
        h, w = np.ptp(ys) + 1, np.ptp(xs) + 1
        assert 0.08 < h * w / 64**2 < 0.33
        part = got[row, ys.min() : ys.min() + h, xs.min() : xs.min() + w]
        if value == "random":
            assert len(np.unique(part)) > 0.05 * part.size
            if after_floats:
                assert abs(part.mean()) < 0.25
                assert abs(part.std() - 1) < 0.25
        else:
            expected = np.broadcast_to(np.asarray(value) / (1 if after_floats else 255), (3,))
            np.testing.assert_allclose(part, np.broadcast_to(expected, part.shape), atol=1e-6)
    assert (got[0] != want[0]).any(axis=2).nonzero()[0][0] != (got[1] != want[1]).any(axis=2).nonzero()[0][0]


def test_erasing_happens_as_often_as_asked() -> None:
    step = image.random_erasing(0.25)
    found = step.boxes(np.full(4000, 64.0), np.full(4000, 64.0), Columns([step]).draw(1, 1, np.arange(4000)))
    assert {len(boxes) for boxes in found} == {0, 1}
    assert abs(np.mean([len(boxes) for boxes in found]) - 0.25) < 0.03


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: image.color_jitter(brightness=-1), "negative"),
        (lambda: image.color_jitter(hue=0.6), "0.5"),
        (lambda: image.color_jitter(contrast=(2, 1)), "contrast"),
        (lambda: image.gaussian_blur(4), "odd"),
        (lambda: image.gaussian_blur(3, sigma=(0, 1)), "sigma"),
        (lambda: image.rotation((20, 10)), "degrees"),
        (lambda: image.rotation(10, interpolation="cubic"), "bilinear"),
        (lambda: image.normalise(0.5, 0.0), "above zero"),
        (lambda: image.normalise((), (1,)), "expected numbers"),
        (lambda: image.normalise(0.5, 0.5, dtype="float64"), "float32"),
        (lambda: image.to_float("int8"), "float32"),
        (lambda: image.layout("CHW"), "NCHW"),
        (lambda: image.random_erasing(value="noise"), "random"),
        (lambda: image.random_erasing(value=()), "expected"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()
