"""Albumentations' transforms as headrace's steps, on stand-ins that have the attributes of theirs; and ``steps_of``.

(Theirs themselves are tried in test_albumentations.py, where albumentations is installed.)
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
import torch

import headrace as hr
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.calls import Call
from headrace.recipes.image import truncating
from headrace.recipes.image.crops import Middle
from headrace.recipes.image.geometry import Fit
from headrace.recipes.image.nested import RandomApply
from tests.recipes import test_translate as tv
from tests.recipes.helpers import MemorySource, jpeg, order, picture, png, rows
from tests.recipes.test_datasets import theirs
from tests.recipes.test_translate import rows_of_samples

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SOURCE = picture(75, 61, 3)


def stand_in(name: str, **plain: Any) -> Any:
    """A class of albumentations' that has the attributes it is given, and is called as theirs are."""

    def init(self: Any, **attributes: Any) -> None:
        self.__dict__.update({"p": 1.0, **plain, **attributes})

    def call(self: Any, *, image: Any) -> Any:
        assert isinstance(image, np.ndarray)
        return {"image": image}

    return theirs(f"albumentations.augmentations.{name.lower()}")(
        type(name, (), {"__init__": init, "__call__": call})
    )


Compose = stand_in("Compose", processors={})
Sequential, OneOf = stand_in("Sequential"), stand_in("OneOf")
Resize = stand_in("Resize", interpolation=1, area_for_downscale=None)
SmallestMaxSize = stand_in("SmallestMaxSize", interpolation=1, area_for_downscale=None)
LongestMaxSize = stand_in("LongestMaxSize", interpolation=1, area_for_downscale=None)
CenterCrop = stand_in("CenterCrop", height=24, width=24, pad_if_needed=False)
RandomCrop = stand_in("RandomCrop", height=24, width=20, pad_if_needed=False)
RandomResizedCrop = stand_in(
    "RandomResizedCrop",
    size=(24, 20),
    scale=(0.1, 1),
    ratio=(0.5, 2),
    interpolation=2,
    area_for_downscale=None,
)
HorizontalFlip, VerticalFlip = stand_in("HorizontalFlip", p=0.5), stand_in("VerticalFlip", p=0.5)
ColorJitter = stand_in(
    "ColorJitter", brightness=(0.8, 1.2), contrast=(0.8, 1.2), saturation=(1, 1), hue=(-0.5, 0.5)
)
BrightnessContrast = stand_in(
    "RandomBrightnessContrast",
    brightness_limit=(-0.2, 0.2),
    contrast_limit=(-0.1, 0.3),
    brightness_by_max=True,
    ensure_safe_range=False,
)
ToGray = stand_in("ToGray", method="weighted_average", num_output_channels=3)
GaussianBlur = stand_in("GaussianBlur", blur_limit=(0, 0), sigma_limit=(0.5, 3.0))
Normalize = stand_in("Normalize", mean=MEAN, std=STD, max_pixel_value=255.0, normalization="standard")
ToFloat, ToTensorV2 = stand_in("ToFloat", max_value=None), stand_in("ToTensorV2")
NoOp, Posterize = stand_in("NoOp"), stand_in("Posterize")


def test_a_training_pipeline() -> None:
    inner = [HorizontalFlip(p=0.5), Compose(transforms=[VerticalFlip(p=0.25)])]
    choice = OneOf(transforms=[ToGray(p=0.2), GaussianBlur(p=0.6)], transforms_ps=[0.25, 0.75], p=0.3)
    transform = Compose(
        transforms=[
            RandomResizedCrop(),
            *inner,
            ColorJitter(p=0.8),
            ToGray(p=0.2),
            choice,
            Normalize(),
            ToTensorV2(),
        ]
    )
    image = hr.image
    blur = truncating.SizedBlur((0, 0), (0.5, 3.0))
    jitter = truncating.TruncatingJitter((0.8, 1.2), (0.8, 1.2), (1, 1), (-0.5, 0.5))
    steps = image.steps_of(transform, strict=True)
    assert list(steps) == [
        image.random_resized_crop(
            (24, 20), scale=(0.1, 1), ratio=(0.5, 2), interpolation="cubic", shrink_on_load=False
        ),
        image.horizontal_flip(0.5),
        image.vertical_flip(0.25),
        image.random_apply(jitter, 0.8),
        image.grayscale(0.2),
        image.random_apply(image.random_choice([image.grayscale(1), blur], [0.25, 0.75]), 0.3),
        image.normalise(MEAN, STD),
        image.layout("NCHW", contiguous=True),
    ]
    assert [str(note) for note in steps.notes][-3:] == ["OneOf", "Normalize", "ToTensorV2"]
    recipe = Recipe(MemorySource([png(SOURCE)] * 3), image.decode(), steps)
    assert rows(recipe, range(3))[0].shape == (3, 3, 24, 20)


def test_an_evaluation_pipeline_has_the_pixels_of_opencv() -> None:
    """Of a large JPEG too, of which nothing is left out."""
    blob = jpeg(picture(401, 300, 5))
    steps = hr.image.steps_of(
        Compose(transforms=[SmallestMaxSize(max_size=40), CenterCrop(height=33), Normalize()]), strict=True
    )
    assert list(steps[:2]) == [Fit(40, 40, True, shrink_on_load=False), Middle(33, 24)]
    (found,) = rows(Recipe(MemorySource([blob]), hr.image.decode(), steps), [0])
    image = cv2.resize(simplejpeg.decode_jpeg(blob), (40, 53), interpolation=cv2.INTER_LINEAR)
    want = (image[10:43, 8:32] / 255 - MEAN) / STD
    assert found[0].shape == (33, 24, 3) and found.dtype == np.float32
    assert (np.abs(found[0] - want) * 255 * np.array(STD)).max() < 1.1
    (crop,) = hr.image.steps_of(LongestMaxSize(max_size=40))[:1]
    assert crop == Fit(40, 40, False, shrink_on_load=False)


def test_small_images_are_bad_samples() -> None:
    source = MemorySource([png(SOURCE), png(picture(20, 90))])
    work = order(source, [0, 1])
    recipe = Recipe(source, hr.image.decode(), hr.image.steps_of(CenterCrop()))
    samples = compile_recipe(recipe, caches_decoded=False).samples(work)
    np.testing.assert_array_equal(samples[0], SOURCE[25:49, 18:42])
    assert samples[1] is None and "smaller than CenterCrop(24, 24)" in work.faults[1].reason


def truncated(values: Any) -> Any:
    return np.clip(values, 0, 255).astype(np.uint8)


def test_pixel_values_are_cut_off() -> None:
    grey = cv2.cvtColor(SOURCE, cv2.COLOR_RGB2GRAY)
    jitter = truncating.TruncatingJitter((1, 1), (1, 1), (1, 1), (0, 0))
    brighter, flatter = jitter.apply(SOURCE, [(0, 1.37)]), jitter.apply(SOURCE, [(1, 0.4)])
    assert np.abs(brighter.astype(int) - truncated(SOURCE * 1.37)).max() <= 1
    assert (brighter != truncated(SOURCE * 1.37)).mean() < 0.001
    assert (flatter != truncated(SOURCE * 0.4 + 0.6 * grey.mean())).mean() < 0.001
    want = SOURCE * 1.7 - 0.7 * grey[..., None].astype(float)
    assert np.abs(jitter.apply(SOURCE, [(2, 1.7)]).astype(int) - np.clip(want, 0, 255)).max() <= 1
    hsv = cv2.cvtColor(SOURCE, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0].astype(int) + 45) % 180
    np.testing.assert_array_equal(jitter.apply(SOURCE, [(3, 0.25)]), cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB))
    one = SOURCE[..., :1].copy()
    assert jitter.apply(one, [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)]).shape == one.shape


def test_brightness_and_contrast() -> None:
    (step,) = hr.image.steps_of(BrightnessContrast())[:1]
    drawn = np.array(step.parameters(np.random.default_rng(0).random((2000, step.draws))))
    assert np.allclose(drawn.min(axis=0), (0.9, -0.2), atol=0.01) and np.allclose(
        drawn.max(axis=0), (1.3, 0.2), atol=0.01
    )
    assert (step.apply(SOURCE, (1.25, 0.125)) != truncated(SOURCE * 1.25 + 0.125 * 255)).mean() < 0.001
    (step,) = hr.image.steps_of(BrightnessContrast(brightness_by_max=False))[:1]
    assert (step.apply(SOURCE, (1.0, -0.25)) != truncated(SOURCE - 0.25 * SOURCE.mean())).mean() < 0.001


def test_blur_of_a_size_that_goes_with_sigma() -> None:
    (step,) = hr.image.steps_of(GaussianBlur(blur_limit=(3, 6), sigma_limit=(0.5, 2)))[:1]
    drawn = step.parameters(np.random.default_rng(0).random((2000, step.draws)))
    sizes = np.bincount([size for _, size in drawn])
    assert len(sizes) == 7 and (np.abs(sizes[3:] / 2000 - 0.25) < 0.04).all()
    assert 0.5 <= min(s for s, _ in drawn) < 0.51 and 1.99 < max(s for s, _ in drawn) <= 2
    for sigma, size, width in ((1.5, 0, 11), (1.5, 4, 5), (0.2, 0, 1)):
        want = cv2.GaussianBlur(SOURCE, (width, width), sigma, borderType=cv2.BORDER_REFLECT_101)
        assert np.abs(step.apply(SOURCE, (sigma, size)).astype(int) - want).max() <= 1


@pytest.mark.parametrize(
    ("transforms", "why"),
    [
        ([Resize(height=8, width=8, interpolation=0)], "interpolation 0"),
        ([Resize(height=8, width=8, area_for_downscale="image")], "area_for_downscale=image"),
        ([Resize(height=8, width=8, p=0.5)], "p=0.5"),
        ([SmallestMaxSize(max_size=None)], "max_size=None"),
        ([RandomResizedCrop(), CenterCrop()], "it follows a resize with interpolation cubic"),
        ([Normalize(), CenterCrop()], "it follows a normalisation"),
        ([RandomCrop(pad_if_needed=True)], "pad_if_needed"),
        ([Normalize(), ColorJitter()], "it follows a conversion to floats"),
        ([ToFloat(), Normalize()], "it is given no uint8"),
        ([Normalize(normalization="image")], "normalization image"),
        ([Normalize(mean=(0.5, 0.5))], "2 means for three channels"),
        ([BrightnessContrast(ensure_safe_range=True)], "ensure_safe_range"),
        ([ToGray(method="max")], "method max"),
        ([GaussianBlur(sigma_limit=(0, 1))], "sigma_limit"),
        ([ToTensorV2(), HorizontalFlip()], "it follows ToTensorV2"),
        ([Posterize()], "headrace has no such step"),
        ([Compose(transforms=[ToGray()], processors={"bboxes": 1})], "boxes or points"),
        ([Compose(transforms=[Resize(height=8, width=8)], p=0.5)], "resize in it moves pixels"),
        ([OneOf(transforms=[Posterize()], transforms_ps=[1.0])], "Posterize in it"),
        ([lambda image: image], "it is not albumentations' own"),
        ([tv.ToTensor()], "it is not albumentations' own"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_would_mean_something_else_stays_theirs(transforms: list[Any], why: str) -> None:
    steps = hr.image.steps_of([NoOp(), *transforms])
    assert why in steps.notes[-1].why
    assert isinstance(steps[-1], Call) and steps[-1].function is transforms[-1]
    with pytest.raises(hr.OptionError, match="strict"):
        hr.image.steps_of([NoOp(), *transforms], strict=True)


def test_the_rest_gets_arrays() -> None:
    seen: list[Any] = []

    class Look(Posterize):
        def __call__(self, *, image: Any) -> Any:
            seen.append(image)
            return {"image": image}

    theirs("albumentations.look")(Look)
    transform = Compose(transforms=[CenterCrop(), Look(), Normalize(), ToTensorV2()])
    steps = hr.image.steps_of(transform)
    recipe = Recipe(MemorySource([png(SOURCE)]), hr.image.decode(), steps)
    rows_of_samples(recipe, 0)
    np.testing.assert_array_equal(seen[0], SOURCE[25:49, 18:42])
    assert [step.style for step in steps[1:]] == ["image"] * 3
    plain = hr.image.steps_of([CenterCrop(), lambda image: image[::2]])
    assert plain[1].style == "plain"
    assert rows_of_samples(Recipe(recipe.source, hr.image.decode(), plain), 0).shape == (12, 24, 3)
    later = hr.image.steps_of(Compose(transforms=[CenterCrop(), Normalize(), Look()]))
    rows_of_samples(Recipe(MemorySource([png(SOURCE)]), hr.image.decode(), later), 0)
    assert seen[1].shape == (24, 24, 3) and seen[1].dtype == np.float32


def test_what_happens_together() -> None:
    one = hr.image.steps_of(Compose(transforms=[ToGray(), BrightnessContrast(p=0.5)], p=0.4))
    assert isinstance(one[0], RandomApply) and one[0].p == 0.4 and len(one[0].steps) == 2
    (flip, _) = hr.image.steps_of(Sequential(transforms=[HorizontalFlip(p=0.5)], p=0.5))
    assert flip == hr.image.horizontal_flip(0.25)


def test_other_versions_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "albumentations", SimpleNamespace(__version__="1.4.24"))
    (note,) = hr.image.steps_of(ToGray()).notes
    assert note.why == "albumentations 1.4.24 is not known"


def test_steps_of_torchvision() -> None:
    transforms = [tv.Resize([32, 32]), tv.ToTensor(), tv.Normalize(MEAN, STD)]
    steps = hr.image.steps_of(tv.Compose([transforms[0], tv.Compose(transforms[1:])]), strict=True)
    assert list(steps) == [
        hr.image.resize((32, 32), antialias=True),
        hr.image.normalise(MEAN, STD),
        hr.image.layout("NCHW", contiguous=True),
    ]
    assert list(hr.image.steps_of(transforms)) == list(steps)
    (note,) = hr.image.steps_of(tv.Resize([32, 32])).notes
    assert str(note) == "Resize"
    partly = hr.image.steps_of(tv.Compose([tv.Resize([32, 32]), tv.ElasticTransform(), tv.ToTensor()]))
    assert [str(step) for step in partly] == ["resize", "to_pil", "ElasticTransform", "ToTensor"]
    with pytest.raises(hr.OptionError, match="ElasticTransform: headrace has no such step"):
        hr.image.steps_of(tv.Compose([tv.ElasticTransform()]), strict=True)


def test_images_stay_images() -> None:
    """As their own code would give them in a recipe."""
    pixels = tv.Compose([tv.CenterCrop(30)])
    source = MemorySource([png(SOURCE)] * 2)
    ours = Recipe(source, hr.image.decode(), hr.image.steps_of(pixels))
    own = Recipe(source, hr.image.decode(), [pixels])
    with (
        hr.DataLoader(ours, batch_size=2, num_workers=0) as loader,
        hr.DataLoader(own, batch_size=2) as plain,
    ):
        ((first,), (second,)) = loader, plain
    assert first.shape == (2, 30, 30, 3) and torch.equal(first, second)


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(hr.OptionError, match="expected a transform of torchvision, timm, albumentations"):
        hr.image.steps_of(lambda image: image)
    with pytest.raises(hr.OptionError, match="expected a transform"):
        hr.image.steps_of(hr.image.resize(8))
