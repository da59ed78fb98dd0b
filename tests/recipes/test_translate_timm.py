"""timm's transforms as headrace's steps, on stand-ins with the attributes that theirs have.

(Theirs themselves are tried in test_timm.py, where timm is installed.)
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

import headrace as hr
from headrace.core.forms import Form
from headrace.recipes import Recipe
from headrace.recipes.image import augment
from headrace.recipes.translate import steps_of, translate
from tests.recipes.helpers import MemorySource, picture, png, rows
from tests.recipes.test_datasets import TRANSFORMS, Compose, theirs
from tests.recipes.test_translate import Mode, Normalize, RandomHorizontalFlip, ToTensor, rows_of_samples

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SOURCE = picture(40, 54, 2)


def stand_in(name: str, module: str = "timm.data.transforms") -> Any:
    """A class of timm's that has the attributes it is given."""

    def init(self: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    return theirs(module)(type(name, (), {"__init__": init, "__call__": lambda self, value: value}))


Crop = stand_in("RandomResizedCropAndInterpolation")
KeepRatio = stand_in("ResizeKeepRatio")
CropOrPad = stand_in("CenterCropOrPad")
ToNumpy, Unscaled = stand_in("ToNumpy"), stand_in("ToTensor")
MaybeToTensor, MaybePILToTensor = stand_in("MaybeToTensor"), stand_in("MaybePILToTensor")
Erasing = stand_in("RandomErasing", "timm.data.random_erasing")
Op = stand_in("AugmentOp", "timm.data.auto_augment")
RandAugment = stand_in("RandAugment", "timm.data.auto_augment")
AutoAugment = stand_in("AutoAugment", "timm.data.auto_augment")
AugMix = stand_in("AugMixAugment", "timm.data.auto_augment")


def keep_ratio(**options: Any) -> Any:
    plain = {"size": (48, 48), "longest": 1.0, "interpolation": Mode.BICUBIC}
    return KeepRatio(**{**plain, "random_scale_prob": 0.0, "random_aspect_prob": 0.0, **options})


def crop_or_pad(**options: Any) -> Any:
    return CropOrPad(**{"size": (48, 48), "fill": [124, 116, 104], "padding_mode": "constant", **options})


def erasing(**options: Any) -> Any:
    plain = {"probability": 0.25, "min_area": 0.02, "max_area": 1 / 3, "device": "cpu", "mode": "const"}
    ratio = (math.log(0.3), math.log(1 / 0.3))
    return Erasing(**{**plain, "log_aspect_ratio": ratio, "min_count": 1, "max_count": 1, **options})


def op(name: str = "Rotate", **options: Any) -> Any:
    plain = {"prob": 0.5, "magnitude": 9, "magnitude_std": 0.5, "magnitude_max": None}
    ways = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    more = {"hparams": {"translate_const": 100}, "kwargs": {"fillcolor": (1, 2, 3), "resample": ways}}
    return Op(**{"name": name, **plain, **more, **options})


def rand(*ops: Any, layers: int = 2, weights: Any = None) -> Any:
    return RandAugment(ops=list(ops), num_layers=layers, choice_weights=weights)


def test_a_training_pipeline() -> None:
    ways = (Mode.BILINEAR, Mode.BICUBIC)
    steps, notes = translate(
        [
            Crop(size=(32, 32), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation=ways),
            RandomHorizontalFlip(0.5),
            rand(op("Rotate"), op("TranslateXRel", hparams={"translate_pct": 0.3, "magnitude_max": 10})),
            MaybeToTensor(),
            Normalize(torch.tensor(MEAN), torch.tensor(STD)),
            erasing(mode="pixel", max_count=3),
        ]
    )
    assert not any(note.why for note in notes)
    image = hr.image
    assert steps[:2] == [
        image.random_resized_crop(32, interpolation=("bilinear", "cubic"), antialias=True),
        image.horizontal_flip(),
    ]
    first = augment.Augmentation("Rotate", 0.5, 9, 0.5, 10, 100, (1, 2, 3), ("bilinear", "bicubic"))
    assert steps[2].operations[0] == first and steps[2].operations[1].translate == 0.3
    assert steps[3].mean == pytest.approx(MEAN) and steps[3].std == pytest.approx(STD)
    assert steps[4] == image.layout("NCHW", contiguous=True)
    assert (steps[5].p, steps[5].value, steps[5].flat, steps[5].count) == (0.25, (), False, (1, 3))
    assert steps[5].ratio == pytest.approx((0.3, 1 / 0.3))
    recipe = Recipe(MemorySource([png(SOURCE)] * 4), image.decode(), steps)
    assert rows(recipe, range(4))[0].shape == (4, 3, 32, 32)
    same = Recipe(recipe.source, image.decode(), [*steps[:2], *translate([rand(op("Rotate"))])[0]])
    assert same.fingerprint(Form.AUGMENTED) != recipe.fingerprint(Form.AUGMENTED)


def test_evaluation_with_borders() -> None:
    """The longest side to the box, the rest filled."""
    steps, _ = translate([keep_ratio(), crop_or_pad(), MaybePILToTensor()])
    (found,) = rows(Recipe(MemorySource([png(SOURCE)]), hr.image.decode(), steps), [0])
    small = Image.fromarray(SOURCE).resize((48, 36), Image.Resampling.BICUBIC)
    want = np.empty((48, 48, 3), np.uint8)
    want[:] = (124, 116, 104)
    want[6:42] = np.asarray(small)
    apart = np.abs(found[0].transpose(1, 2, 0).astype(int) - want)
    assert apart.max() <= 2 and apart.mean() < 0.5 and (found[0][:, :6] == want[:6].transpose(2, 0, 1)).all()


def test_covering_an_oblong() -> None:
    steps, _ = translate(
        [keep_ratio(size=(30, 60), longest=0.0, interpolation=Mode.BILINEAR), MaybePILToTensor()]
    )
    recipe = Recipe(MemorySource([png(picture(100, 300))]), hr.image.decode(), steps)
    assert rows_of_samples(recipe, 0).shape == (3, 30, 90)


@pytest.mark.parametrize(
    ("transforms", "dtype"),
    [
        ([ToNumpy()], "uint8"),
        ([Unscaled(dtype=torch.float32)], "float32"),
        ([Unscaled(dtype=torch.uint8)], "uint8"),
    ],
)
def test_pixels_as_they_are(transforms: list[Any], dtype: str) -> None:
    steps, notes = translate(transforms)
    assert not any(note.why for note in notes)
    recipe = Recipe(MemorySource([png(SOURCE)]), hr.image.decode(), [hr.image.center_crop(30), *steps])
    (found,) = rows(recipe, [0])
    assert found.dtype == dtype
    np.testing.assert_allclose(found[0], SOURCE[5:35, 12:42].transpose(2, 0, 1), atol=1e-4)


def test_code_after_to_numpy_gets_arrays() -> None:
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    steps, notes = translate([ToNumpy(), look])
    assert [bool(note.why) for note in notes] == [False, True]
    recipe = Recipe(MemorySource([png(SOURCE)]), hr.image.decode(), steps)
    rows_of_samples(recipe, 0)
    assert isinstance(seen[0], np.ndarray)
    np.testing.assert_array_equal(seen[0], SOURCE.transpose(2, 0, 1))


def table(function: Any) -> Any:
    return np.array([function(value) for value in range(256)], np.uint8)[SOURCE]


def enhanced(kind: str, factor: float) -> Any:
    return getattr(ImageEnhance, kind)(PILLOW).enhance(factor)


def moved(matrix: Any) -> Any:
    return PILLOW.transform(PILLOW.size, Image.Transform.AFFINE, matrix, 2, fillcolor=(1, 2, 3))


PILLOW = Image.fromarray(SOURCE)
WANT: dict[str, tuple[float, Any]] = {
    "AutoContrast": (5, lambda: ImageOps.autocontrast(PILLOW)),
    "Equalize": (5, lambda: ImageOps.equalize(PILLOW)),
    "Invert": (5, lambda: 255 - SOURCE),
    "Rotate": (5, lambda: PILLOW.rotate(-15, 2, fillcolor=(1, 2, 3))),
    "Posterize": (5, lambda: SOURCE & 0xC0),
    "PosterizeIncreasing": (7.5, lambda: SOURCE & 0x80),
    "PosterizeOriginal": (7.5, lambda: SOURCE & 0xFE),
    "Solarize": (5, lambda: table(lambda v: v if v < 128 else 255 - v)),
    "SolarizeIncreasing": (2.5, lambda: table(lambda v: v if v < 192 else 255 - v)),
    "SolarizeAdd": (5, lambda: table(lambda v: v + 55 if v < 128 else v)),
    "Color": (5, lambda: enhanced("Color", 1.0)),
    "ColorIncreasing": (5, lambda: enhanced("Color", 0.55)),
    "Contrast": (2.5, lambda: enhanced("Contrast", 0.55)),
    "ContrastIncreasing": (10, lambda: enhanced("Contrast", 0.1)),
    "Brightness": (7.5, lambda: enhanced("Brightness", 1.45)),
    "BrightnessIncreasing": (5, lambda: enhanced("Brightness", 0.55)),
    "Sharpness": (0, lambda: enhanced("Sharpness", 0.1)),
    "SharpnessIncreasing": (5, lambda: enhanced("Sharpness", 0.55)),
    "ShearX": (5, lambda: moved((1, -0.15, 0, 0, 1, 0))),
    "ShearY": (5, lambda: moved((1, 0, 0, -0.15, 1, 0))),
    "TranslateX": (1, lambda: moved((1, 0, -10, 0, 1, 0))),
    "TranslateY": (1, lambda: moved((1, 0, 0, 0, 1, -10))),
    "TranslateXRel": (5, lambda: moved((1, 0, -0.225 * 54, 0, 1, 0))),
    "TranslateYRel": (5, lambda: moved((1, 0, 0, 0, 1, -0.225 * 40))),
    "Desaturate": (5, lambda: enhanced("Color", 0.25)),
    "GaussianBlur": (10, lambda: PILLOW.filter(ImageFilter.GaussianBlur(2.0))),
    "GaussianBlurRand": (10, lambda: PILLOW.filter(ImageFilter.GaussianBlur(0.1 + 1.9 * 0.75))),
}


@pytest.mark.parametrize("name", sorted(augment.OPERATIONS))
def test_operations(name: str) -> None:
    """Each with one magnitude, its sign negative where it has one."""
    magnitude, want = WANT[name]
    ((step, *_), _) = translate([rand(op(name, magnitude=magnitude, magnitude_std=0, prob=1.0), layers=1)])
    (drawn,) = step.parameters(np.array([[0.3, 0.99, 0.1, 0.2, 0.75, 0.1]]))
    before = SOURCE.copy()
    apart = np.abs(step.apply(SOURCE, drawn).astype(int) - np.asarray(want()).astype(int))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.01
    np.testing.assert_array_equal(SOURCE, before)
    assert step.apply(SOURCE[..., :1].copy(), drawn).shape == (40, 54, 1)


def drawn(transform: Any, rows: int = 6000) -> Any:
    ((step, *_), (note,)) = translate([transform])
    assert not note.why and step.random
    return step, step.parameters(np.random.default_rng(0).random((rows, step.draws)))


def test_magnitudes_and_chances() -> None:
    _, found = drawn(rand(op("Rotate", magnitude=6, magnitude_std=1.0), layers=1))
    levels = np.array([10 * one.level for (one,) in found if one is not None])
    assert abs(len(levels) / len(found) - 0.5) < 0.03
    assert abs(levels.mean() - 6) < 0.1 and abs(levels.std() - 1) < 0.05
    ways = Counter(one.way for (one,) in found if one is not None)
    assert abs(ways["bilinear"] / len(levels) - 0.5) < 0.04 and set(ways) == {"bilinear", "bicubic"}
    _, found = drawn(rand(op(magnitude=8, magnitude_std=math.inf, prob=1.0), layers=1))
    levels = np.array([10 * one.level for (one,) in found])
    assert levels.max() < 8 and np.abs(np.histogram(levels, 4, (0, 8))[0] / 1500 - 1).max() < 0.1
    _, found = drawn(rand(op(magnitude=9.5, magnitude_std=2.0, prob=1.0), layers=1))
    assert max(one.level for (one,) in found) == 1.0  # no further than the scale goes


def test_operations_are_chosen_with_replacement_unless_they_have_weights() -> None:
    names = ("Invert", "Equalize", "Rotate", "ShearX")
    ops = [op(name, prob=1.0) for name in names]
    _, found = drawn(rand(*ops))
    pairs = Counter(tuple(one.what.name for one in row) for row in found)
    assert len(pairs) == 16 and all(abs(count / len(found) - 1 / 16) < 0.02 for count in pairs.values())
    weights = (0.5, 0.25, 0.25, 0.0)
    _, found = drawn(rand(*ops, weights=np.array(weights)))
    pairs = Counter(tuple(one.what.name for one in row) for row in found)
    assert all(first != second and "ShearX" not in (first, second) for first, second in pairs)
    for (first, second), count in pairs.items():
        p, q = (weights[names.index(name)] for name in (first, second))
        assert abs(count / len(found) - p * q / (1 - p)) < 0.03


def test_policies_of_pairs() -> None:
    policy = [[op("Invert", prob=1.0), op("Rotate", prob=0.2)], [op("Equalize", prob=0.4)]]
    step, found = drawn(AutoAugment(policy=policy))
    assert step.draws == 1 + 2 * augment.NEEDS
    lengths = Counter(len(row) for row in found)
    assert abs(lengths[2] / len(found) - 0.5) < 0.03
    assert abs(np.mean([row[1] is not None for row in found if len(row) == 2]) - 0.2) < 0.03
    assert abs(np.mean([row[0] is not None for row in found if len(row) == 1]) - 0.4) < 0.04


def test_mixing() -> None:
    ops = [op(name, prob=1.0, magnitude=3, magnitude_std=math.inf) for name in ("Invert", "Solarize")]
    step, found = drawn(AugMix(ops=ops, alpha=1.0, width=3, depth=-1, blended=False), 3000)
    shares = np.array([[share for share, _ in chains] for _, chains in found])
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert np.abs(shares.mean(axis=0) - 1 / 3).max() < 0.02 and abs(shares.std() - (1 / 18) ** 0.5) < 0.01
    blends = [blend for blend, _ in found]
    assert abs(np.mean(blends) - 0.5) < 0.02 and abs(np.std(blends) - (1 / 12) ** 0.5) < 0.01
    lengths = Counter(len(chain) for _, chains in found for _, chain in chains)
    assert set(lengths) == {1, 2, 3} and all(abs(count / 9000 - 1 / 3) < 0.02 for count in lengths.values())
    invert = next(
        one for _, chains in found for _, chain in chains for one in chain if one.what.name == "Invert"
    )
    mixed = step.apply(SOURCE, (np.float32(0.5), [(np.float32(0.5), [invert]), (np.float32(0.5), [None])]))
    assert np.abs(mixed.astype(int) - (SOURCE / 2.0 + 63.75)).max() <= 1
    fixed, found = drawn(AugMix(ops=ops, alpha=1.0, width=2, depth=4, blended=False), 5)
    assert all(len(chain) == 4 for _, chains in found for _, chain in chains)
    assert fixed.apply(SOURCE, found[0]).shape == SOURCE.shape


@pytest.mark.parametrize(
    ("transforms", "why"),
    [
        ([keep_ratio(random_scale_prob=0.5)], "a random scale or ratio"),
        ([keep_ratio(longest=0.3)], "longest=0.3"),
        ([keep_ratio(interpolation=Mode.HAMMING)], "interpolation hamming"),
        ([keep_ratio(interpolation=(Mode.BILINEAR, Mode.BICUBIC))], "a random interpolation"),
        ([crop_or_pad(padding_mode="reflect")], "padding_mode reflect"),
        ([ToTensor(), crop_or_pad()], "after a conversion to floats"),
        ([ToTensor(), ToNumpy()], "it is a tensor already"),
        ([ToNumpy(), MaybeToTensor()], "it is a tensor already"),
        ([ToNumpy(), MaybePILToTensor()], "it is given an array"),
        ([Unscaled(dtype=torch.float64)], "to torch.float64"),
        ([erasing()], "it is given no floats"),
        ([ToTensor(), erasing(device="cuda")], "device cuda"),
        ([ToTensor(), erasing(max_count=99)], "from 1 to 16 boxes"),
        ([ToTensor(), rand(op())], "it follows a conversion to floats"),
        ([MaybePILToTensor(), rand(op())], "not Pillow's"),
        ([rand(op("Cutout"))], "Cutout in it: headrace has no such operation"),
        ([rand(op(), weights=[1.0])], "more layers than operations"),
        ([AugMix(ops=[op()], alpha=0.5, width=3, depth=-1, blended=False)], "alpha=0.5"),
        ([AugMix(ops=[op()], alpha=1, width=3, depth=-1, blended=True)], "blended"),
        ([stand_in("RandomPad")()], "headrace has no such step"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_would_mean_something_else_stays_theirs(transforms: list[Any], why: str) -> None:
    _, notes = translate(transforms)
    assert why in notes[-1].why
    with pytest.raises(hr.OptionError, match=type(transforms[-1]).__name__):
        steps_of(Compose(transforms), strict=True)


def test_boxes_divide_their_area() -> None:
    """From one to four of them, the area of each the smaller the more they are."""
    step = hr.image.random_erasing(0.5, scale=(0.2, 0.2), ratio=(1, 1), value="color", count=(1, 4))
    numbers = np.random.default_rng(0).random((4000, step.draws))
    boxes = step.boxes(np.full(4000, 100.0), np.full(4000, 100.0), numbers)
    counts = Counter(len(row) for row in boxes)
    assert abs(counts[0] / 4000 - 0.5) < 0.03
    assert all(abs(counts[count] / 4000 - 0.125) < 0.02 for count in (1, 2, 3, 4))
    for row in boxes:
        assert all(abs(h * w - 2000 / len(row)) < 2 * h for _, _, h, w in row)


def test_boxes_have_colours_of_their_own() -> None:
    erase = hr.image.random_erasing(1.0, scale=(0.1, 0.1), ratio=(1, 1), value="color", count=2)
    source = MemorySource([png(np.zeros((60, 60, 3), np.uint8))] * 8)
    steps = [hr.image.center_crop(60), hr.image.to_float(), erase]
    (found,) = rows(Recipe(source, hr.image.decode(), steps), range(8))
    colours = [{tuple(colour) for colour in row.reshape(-1, 3).tolist()} - {(0.0, 0.0, 0.0)} for row in found]
    counts = Counter(len(row) for row in colours)  # one may hide the other
    assert set(counts) <= {1, 2} and counts[2] >= 6
    assert len(set.union(*colours)) == counts[1] + 2 * counts[2]
    again = rows(Recipe(source, hr.image.decode(), steps), range(7, -1, -1))[0]
    np.testing.assert_array_equal(found, again[::-1])


def test_its_classes_are_known_by_their_package() -> None:
    own = theirs(TRANSFORMS)(type("ToNumpy", (), {"__call__": lambda self, value: value}))
    assert translate([own()])[1][0].why == "headrace has no such step"
