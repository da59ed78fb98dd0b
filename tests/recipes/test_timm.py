"""Translated pipelines against timm itself, where it is installed. (Stand-ins for it: test_translate_timm.py.)"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("torchvision")
pytest.importorskip("timm")

from timm.data import auto_augment, create_transform
from timm.data import transforms as theirs
from timm.data.random_erasing import RandomErasing
from torchvision import datasets

import headrace as hr
from headrace.recipes import Recipe
from headrace.recipes.calls import Call
from headrace.recipes.datasets import recognise
from headrace.recipes.image import augment
from headrace.recipes.translate import translate
from headrace.sources import files
from tests.recipes.helpers import rows
from tests.recipes.test_kernels import picture

STD = 0.225


@pytest.fixture(autouse=True)
def no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm posterizes to no bits at times, which Pillow refuses since its version 13: black, as it was before."""
    plain = auto_augment.ImageOps.posterize

    def posterize(image: Any, bits: int) -> Any:
        return plain(image, bits) if bits else Image.new(image.mode, image.size)

    monkeypatch.setattr(auto_augment.ImageOps, "posterize", posterize)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    (place / "a").mkdir()
    for number in range(6):
        photo = Image.fromarray(picture(140 + 23 * number, 250 - 31 * number, number))
        photo.save(place / "a" / f"{number:02}.jpg", quality=88)
    return place


def recipe_of(dataset: Any) -> Recipe:
    """All of it is translated."""
    found = recognise(dataset, files)
    assert found is not None
    assert not [note for note in found.notes if note.why], found.notes
    assert not any(isinstance(step, Call) for step in found.recipe.steps)
    return found.recipe


SAME: dict[str, Any] = {
    "is_training": True,
    "scale": (1, 1),
    "ratio": (1, 1),
    "hflip": 0,
    "color_jitter": None,
}
PIPELINES: dict[str, dict[str, Any]] = {
    "evaluation": {"interpolation": "bicubic", "crop_pct": 0.9},
    "evaluation, squashed": {"crop_mode": "squash"},
    "evaluation, border": {"crop_mode": "border", "interpolation": "bicubic", "crop_pct": 1.0},
    "evaluation, border, lanczos": {"crop_mode": "border", "interpolation": "lanczos", "crop_pct": 0.8},
    "evaluation, oblong": {"input_size": (3, 64, 80)},
    "evaluation for a prefetcher": {"use_prefetcher": True},
    "evaluation, plain": {"normalize": False},
    "training without augmentation": {"is_training": True, "no_aug": True},
    "training": {**SAME, "interpolation": "bicubic"},
    "training, flipped": {**SAME, "hflip": 1.0, "vflip": 1.0, "grayscale_prob": 1.0},
}


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(root: Path, name: str) -> None:
    options = {"input_size": 64, **PIPELINES[name]}
    dataset = datasets.ImageFolder(root, transform=create_transform(**options))
    recipe = recipe_of(dataset)
    for index in range(6):
        want, _ = dataset[index]
        (found, _) = rows(recipe, [index])
        assert found[0].shape == want.shape and str(found.dtype) == str(want.dtype).removeprefix("torch.")
        scale = 1 if want.dtype == torch.uint8 else 255 * STD
        apart = np.abs(found[0].astype(float) - want.double().numpy()) * scale
        assert apart.mean() <= 0.5 and apart.max() <= 2.6, (index, apart.mean(), apart.max())


def test_what_its_trainings_become() -> None:
    transform = create_transform(
        64,
        is_training=True,
        interpolation="random",
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25,
        re_count=3,
    )
    steps = hr.image.steps_of(transform, strict=True)
    assert steps[0] == hr.image.random_resized_crop(64, interpolation=("bilinear", "cubic"), antialias=True)
    assert [str(step) for step in steps[1:3]] == ["horizontal_flip", "timm's RandAugment"]
    want = hr.image.random_erasing(0.25, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), count=(1, 3))
    assert str(steps[-1]) == str(want) and steps[-1].count == want.count
    simclr = create_transform(
        64,
        is_training=True,
        color_jitter=0.8,
        color_jitter_prob=0.8,
        grayscale_prob=0.2,
        gaussian_blur_prob=0.5,
    )
    names = [str(step) for step in hr.image.steps_of(simclr, strict=True)]
    assert names[2:5] == ["random_apply", "grayscale", "random_apply"]


class Fixed:
    """Random numbers that are what they are told."""

    def __init__(self, turn: float) -> None:
        self.turn = turn

    def random(self) -> float:
        return self.turn

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.turn


@pytest.mark.parametrize("name", sorted(augment.OPERATIONS))
def test_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With magnitudes over the whole scale and beyond, both signs, both filters: to the bit."""
    source = Image.fromarray(picture(75, 110))
    assert set(auto_augment.NAME_TO_OP) == augment.OPERATIONS
    for way in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
        for magnitude in (0, 1, 4.5, 9, 10, 13):
            options = {
                "translate_const": 40,
                "img_mean": (9, 8, 7),
                "interpolation": way,
                "magnitude_max": 12,
            }
            operation = auto_augment.AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=options)
            step = translate([auto_augment.RandAugment([operation], 1)])[0][0]
            for turn in (0.2, 0.8):
                monkeypatch.setattr(auto_augment, "random", Fixed(turn))
                want = np.asarray(operation(source))
                ((one,),) = step.parameters(np.array([[0, 0, 0, 0, turn, 0]]))
                found = np.asarray(augment.performed(source, one))
                np.testing.assert_array_equal(found, want, err_msg=f"{way} {magnitude} {turn}")


POLICIES = [
    "rand-m9-mstd0.5-inc1",
    "rand-m7-n3-mstd101-p0.8",
    "rand-m8-tweights-n3",
    "rand-m9-t3a-inc1",
    "original-mstd0.5",
    "v0",
    "3a",
    "augmix-m5",
    "augmix-m3-w4-d2-mstd1",
]


def policy(config: str) -> Any:
    if config.startswith("rand"):
        return auto_augment.rand_augment_transform(
            config, {"translate_const": 20, "img_mean": (120, 110, 100)}
        )
    if config.startswith("augmix"):
        return auto_augment.augment_and_mix_transform(config)
    return auto_augment.auto_augment_transform(config)


@pytest.mark.parametrize("config", POLICIES)
def test_policies_draw_as_theirs(config: str) -> None:
    """How much an image comes out changed, over many draws."""
    source, draws = picture(28, 28, 3), 700  # (some versions of AugMix take square images alone)
    image, transform = Image.fromarray(source), policy(config)
    (step, *_), (note,) = translate([transform])
    assert not note.why
    random.seed(1)
    np.random.seed(1)
    theirs = [np.abs(np.asarray(transform(image)).astype(int) - source).mean() for _ in range(draws)]
    numbers = np.random.default_rng(1).random((draws, step.draws))
    ours = [np.abs(step.apply(source, one).astype(int) - source).mean() for one in step.parameters(numbers)]
    spread = (np.std(ours) + np.std(theirs)) / 2
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * spread * (2 / draws) ** 0.5
    for share in (0.2, 0.4, 0.6, 0.8, 0.95):
        edge = np.quantile(theirs, share)
        at_most = [np.mean(np.asarray(one) <= edge) for one in (ours, theirs)]
        assert abs(at_most[0] - at_most[1]) < 5 * (0.5 / draws) ** 0.5, (share, at_most)


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
@pytest.mark.parametrize("count", [1, 4])
def test_erasing(mode: str, count: int) -> None:
    erasing, draws = RandomErasing(0.6, mode=mode, max_count=count, device="cpu", max_area=0.5), 1500
    steps, notes = translate([theirs.MaybeToTensor(), erasing])
    step: Any = steps[-1]
    assert not any(note.why for note in notes)
    random.seed(0)
    theirs_ = [erasing(torch.full((3, 40, 50), 7.0)) for _ in range(draws)]
    numbers = np.random.default_rng(0).random((draws, step.draws))
    boxes = step.boxes(np.full(draws, 40.0), np.full(draws, 50.0), numbers)
    ours = []
    for row, found in enumerate(boxes):
        image = np.full((3, 40, 50), 7.0, np.float32)
        noise = np.random.default_rng(row).random
        for box in found:
            step.erase(image, box, True, "float32", noise)
        ours.append(image)
    for measure in (
        lambda image: (np.asarray(image) != 7).mean(),
        lambda image: (
            np.ptp(np.nonzero((np.asarray(image) != 7).any(axis=(0, 1)))[0])
            if (np.asarray(image) != 7).any()
            else -1
        ),
        lambda image: (
            np.asarray(image)[:, np.asarray(image)[0] != 7].std() if (np.asarray(image) != 7).any() else -1
        ),
    ):
        one, two = (np.array([measure(image) for image in images]) for images in (ours, theirs_))
        for share in (0.1, 0.3, 0.45, 0.6, 0.8, 0.95):
            edge = np.quantile(two, share)
            assert abs(np.mean(one <= edge) - np.mean(two <= edge)) < 5 * (0.5 / draws) ** 0.5


def test_numpy_for_collating(root: Path) -> None:
    from torchvision.transforms import CenterCrop, Compose

    dataset = datasets.ImageFolder(root, transform=Compose([CenterCrop(60), theirs.ToNumpy()]))
    (found, _) = rows(recipe_of(dataset), [0])
    np.testing.assert_array_equal(found[0], dataset[0][0])
    floats = datasets.ImageFolder(root, transform=Compose([CenterCrop(60), theirs.ToTensor()]))
    (found, _) = rows(recipe_of(floats), [0])
    assert np.abs(found[0] - floats[0][0].numpy()).max() < 1e-4


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (theirs.ResizeKeepRatio(32, random_scale_prob=0.5), "a random scale or ratio"),
        (theirs.ResizeKeepRatio(32, longest=0.5), "longest=0.5"),
        (theirs.ResizeKeepRatio(32, interpolation="random"), "a random interpolation"),
        (theirs.ResizeKeepRatio(32, interpolation="hamming"), "interpolation hamming"),
        (theirs.CenterCropOrPad(32, padding_mode="reflect"), "padding_mode reflect"),
        (theirs.RandomCropOrPad(32), "headrace has no such step"),
        (auto_augment.augment_and_mix_transform("augmix-b1"), "blended"),
        (auto_augment.augment_and_mix_transform("augmix-a2"), "alpha=2.0"),
        (RandomErasing(device="cpu"), "it is given no floats"),
    ],
)
def test_what_stays_theirs(transform: Any, why: str) -> None:
    _, (note,) = translate([transform])
    assert note.why == why
