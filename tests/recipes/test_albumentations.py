"""Translated pipelines against albumentations itself, where it is installed.

(Stand-ins for it: test_translate_albumentations.py.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simplejpeg

pytest.importorskip("albumentations")
pytest.importorskip("albumentations.pytorch")

import albumentations as A  # noqa: N812
import cv2

import headrace as hr
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.calls import Call
from headrace.recipes.image.framing import Framing
from tests.recipes.helpers import MemorySource, jpeg, order, rows
from tests.recipes.test_kernels import picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
END = [A.Normalize(MEAN, STD), A.pytorch.ToTensorV2()]
BLOBS = [jpeg(picture(h, w, n)) for n, (h, w) in enumerate([(180, 320), (301, 211), (97, 150), (400, 400)])]
IMAGES = [simplejpeg.decode_jpeg(blob) for blob in BLOBS]

PIPELINES: dict[str, list[Any]] = {
    "evaluation": [A.SmallestMaxSize(80), A.CenterCrop(64, 64), *END],
    "evaluation, odd": [A.SmallestMaxSize(81), A.CenterCrop(62, 64), *END],
    "one size": [A.Resize(50, 70), *END],
    "larger": [A.Resize(500, 450), *END],
    "cubic": [A.Resize(50, 70, interpolation=cv2.INTER_CUBIC), *END],
    "area": [A.Resize(50, 70, interpolation=cv2.INTER_AREA), A.HorizontalFlip(p=1), *END],
    "lanczos": [A.Resize(50, 70, interpolation=cv2.INTER_LANCZOS4), *END],
    "exactly linear": [A.Resize(50, 70, interpolation=cv2.INTER_LINEAR_EXACT), *END],
    "whole crop": [A.CenterCrop(90, 90), A.RandomResizedCrop((64, 64), scale=(1, 1), ratio=(1, 1)), *END],
    "crop of all": [A.Resize(60, 60), A.RandomCrop(60, 60), *END],
    "flips": [A.CenterCrop(80, 80), A.HorizontalFlip(p=1), A.VerticalFlip(p=1), *END],
    "no flips": [A.CenterCrop(80, 80), A.HorizontalFlip(p=0), *END],
    "flip after normalisation": [
        A.CenterCrop(80, 80),
        A.Normalize(),
        A.HorizontalFlip(p=1),
        A.pytorch.ToTensorV2(),
    ],
    "grey": [A.CenterCrop(80, 80), A.ToGray(p=1), *END],
    "blur": [A.CenterCrop(80, 80), A.GaussianBlur(sigma_limit=(1.3, 1.3), p=1), *END],
    "blur, of a size": [
        A.CenterCrop(80, 80),
        A.GaussianBlur(blur_limit=(4, 4), sigma_limit=(2, 2), p=1),
        *END,
    ],
    "brightness": [A.CenterCrop(80, 80), A.ColorJitter((1.3, 1.3), (1, 1), (1, 1), (0, 0), p=1), *END],
    "contrast": [A.CenterCrop(80, 80), A.ColorJitter((1, 1), (0.6, 0.6), (1, 1), (0, 0), p=1), *END],
    "saturation": [A.CenterCrop(80, 80), A.ColorJitter((1, 1), (1, 1), (1.7, 1.7), (0, 0), p=1), *END],
    "hue": [A.CenterCrop(80, 80), A.ColorJitter((1, 1), (1, 1), (1, 1), (0.2, 0.2), p=1), *END],
    "brightness and contrast": [
        A.CenterCrop(80, 80),
        A.RandomBrightnessContrast((0.1, 0.1), (-0.3, -0.3), p=1),
        A.RandomBrightnessContrast((-0.1, -0.1), (0.2, 0.2), brightness_by_max=False, p=1),
        *END,
    ],
    "one of one": [A.CenterCrop(80, 80), A.OneOf([A.ToGray(p=0.1)], p=1), A.NoOp(), *END],
    "nested": [A.Compose([A.CenterCrop(80, 80)]), A.Sequential([A.HorizontalFlip(p=1)], p=1), *END],
    "pixels": [A.CenterCrop(80, 90), A.pytorch.ToTensorV2()],
    "arrays": [A.CenterCrop(80, 90)],
    "arrays of floats": [
        A.CenterCrop(80, 90),
        A.Normalize(max_pixel_value=128.0, mean=(0.4,) * 3, std=(0.3,) * 3),
    ],
    "floats": [A.CenterCrop(80, 90), A.ToFloat(255.0), A.pytorch.ToTensorV2()],
}


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name: str, caches: bool) -> None:
    transform = A.Compose(PIPELINES[name])
    steps = hr.image.steps_of(transform, strict=True)
    assert not any(isinstance(step, Call) for step in steps)
    recipe = Recipe(MemorySource(BLOBS), hr.image.decode(), steps)
    own = Recipe(MemorySource(BLOBS), hr.image.decode(), [transform])
    for index, image in enumerate(IMAGES):
        want = np.asarray(transform(image=image)["image"])
        (found,) = rows(recipe, [index], caches=caches)
        assert (found[0].shape, found.dtype) == (want.shape, want.dtype)
        apart = np.abs(found[0].astype(float) - want) * (255 * min(STD) if found.dtype == np.float32 else 1)
        assert apart.mean() <= 0.5 and apart.max() <= 2, (index, apart.mean(), apart.max())
        (sample,) = compile_recipe(own, caches_decoded=False).samples(order(own.source, [index]))
        assert sample.shape == want.shape  # what the recipe would give with their own code


def test_crops_are_distributed_as_theirs() -> None:
    width, height, count = 500, 375, 4000
    transform = A.RandomResizedCrop((64, 64), scale=(0.2, 0.9), ratio=(0.6, 1.9))
    transform.set_random_seed(0)
    shape = {"shape": (height, width, 3)}
    theirs = np.array(
        [transform.get_params_dependent_on_data(shape, {})["crop_coords"] for _ in range(count)], float
    )
    (step, *_) = hr.image.steps_of(transform)
    framing = Framing(np.full(count, float(width)), np.full(count, float(height)))
    step.fold(framing, np.random.default_rng(0).random((count, step.draws)))
    ours = np.stack([framing.x.low, framing.y.low, framing.x.high, framing.y.high], axis=1)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        one, two = np.quantile(theirs, share, axis=0), np.quantile(ours, share, axis=0)
        assert np.abs(one - two).max() < 0.04 * width, (share, one, two)


@pytest.mark.parametrize(
    "steps",
    [
        [A.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)],
        [A.RandomBrightnessContrast(0.3, 0.4, p=0.5), A.ToGray(p=0.2)],
        [A.GaussianBlur(blur_limit=(3, 7), sigma_limit=(0.2, 3.0), p=0.6)],
        [A.OneOf([A.GaussianBlur(p=0.3), A.ToGray(p=0.9), A.ColorJitter(p=0.5)], p=0.7)],
        [A.HorizontalFlip(p=0.3), A.VerticalFlip(p=0.6)],
        [A.Compose([A.ToGray(p=0.5), A.RandomBrightnessContrast(p=0.5)], p=0.5)],
    ],
    ids=lambda steps: type(steps[0]).__name__,
)
def test_what_is_random_is_distributed_as_theirs(steps: list[Any]) -> None:
    """How much an image comes out changed, over many draws."""
    image, draws = np.ascontiguousarray(IMAGES[0][:24, :24]), 600
    transform = A.Compose(steps, seed=1)
    source = MemorySource([cv2.imencode(".png", image[..., ::-1])[1].tobytes()])
    first = hr.image.center_crop(24)
    recipe = Recipe(source, hr.image.decode(), [first, *hr.image.steps_of(transform, strict=True)])
    theirs = [np.abs(transform(image=image)["image"].astype(int) - image).mean() for _ in range(draws)]
    ours = [np.abs(rows(recipe, [0], epoch=at)[0][0].astype(int) - image).mean() for at in range(draws)]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        edge = np.quantile(theirs, share) + 1e-9
        at_most = [np.mean(np.asarray(one) <= edge) for one in (ours, theirs)]
        assert abs(at_most[0] - at_most[1]) < 5 * (0.5 / draws) ** 0.5, (share, at_most)


def test_the_rest_stays_theirs_and_gets_arrays() -> None:
    transform = A.Compose([A.Resize(40, 50), A.Posterize(p=1), A.HorizontalFlip(p=1), *END])
    steps = hr.image.steps_of(transform)
    assert [bool(note.why) for note in steps.notes] == [False, True, True, True, True]
    assert [str(step) for step in steps] == [
        "resize",
        "Posterize",
        "HorizontalFlip",
        "Normalize",
        "ToTensorV2",
    ]
    recipe = Recipe(MemorySource(BLOBS), hr.image.decode(), steps)
    with hr.DataLoader(recipe, batch_size=4, num_workers=0) as loader:
        (images,) = loader
    assert images.shape == (4, 3, 40, 50)
    normalised = A.Compose([A.Resize(40, 50), A.Normalize(), A.GaussNoise(p=1), A.pytorch.ToTensorV2()])
    steps = hr.image.steps_of(normalised)
    assert "GaussNoise: headrace has no such step" in [str(note) for note in steps.notes]
    (sample,) = compile_recipe(
        Recipe(MemorySource(BLOBS), hr.image.decode(), steps), caches_decoded=False
    ).samples(order(MemorySource(BLOBS), [0]))
    assert sample.shape == (3, 40, 50)


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (A.Resize(8, 8, interpolation=cv2.INTER_NEAREST), "interpolation 0"),
        (A.Resize(8, 8, interpolation=cv2.INTER_NEAREST_EXACT), "interpolation 6"),
        (A.Resize(8, 8, area_for_downscale="image"), "area_for_downscale=image"),
        (A.Resize(8, 8, p=0.5), "p=0.5"),
        (A.SmallestMaxSize([8, 9]), "max_size=[8, 9]"),
        (A.CenterCrop(8, 8, pad_if_needed=True), "pad_if_needed"),
        (A.ToGray(method="max", p=1), "method max"),
        (A.GaussianBlur(sigma_limit=(0, 1)), "sigma_limit"),
        (A.Normalize(normalization="image"), "normalization image"),
        (A.OneOf([A.HorizontalFlip(), A.ToGray()]), "HorizontalFlip in it: no step on pixels"),
        (A.Compose([A.Resize(8, 8)], p=0.5), "resize in it moves pixels"),
        (A.Compose([A.ToGray()], bbox_params={"format": "coco", "label_fields": []}), "boxes or points"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_would_mean_something_else_stays_theirs(transform: Any, why: str) -> None:
    (note,) = hr.image.steps_of(transform).notes
    assert why in note.why
