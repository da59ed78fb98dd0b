"""Translated pipelines against torchvision itself, where it is installed: step by step, and from end to end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("torchvision")

from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import autoaugment, v2

import headrace as hr
from headrace.recipes import Recipe
from headrace.recipes.calls import Call
from headrace.recipes.datasets import recognise
from headrace.recipes.image import policies
from headrace.recipes.image.framing import Framing
from headrace.recipes.translate import translate
from headrace.sources import files
from tests.recipes.helpers import rows
from tests.recipes.test_kernels import picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BICUBIC = v1.InterpolationMode.BICUBIC
ENDS = {
    "v1": [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "v2": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    "v2, tensors first": [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes with photos of many sizes."""
    place = tmp_path_factory.mktemp("photos")
    for number in range(12):
        folder = place / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        photo = Image.fromarray(picture(180 + 23 * number, 320 - 17 * number, number))
        photo.save(folder / f"{number:02}.jpg", quality=88, subsampling=number % 3)
    return place


def recipe_of(dataset: Any) -> Recipe:
    """All of it is translated."""
    found = recognise(dataset, files)
    assert found is not None
    assert not [note for note in found.notes if note.why], found.notes
    assert not any(isinstance(step, Call) for step in found.recipe.steps)
    return found.recipe


def levels_apart(found: Any, want: torch.Tensor, std: Any = STD) -> np.ndarray:
    scale = 255 * np.asarray(std)[:, None, None]
    return np.abs((np.asarray(found, np.float64) - want.double().numpy()) * scale)


STEPS: dict[str, Any] = {
    "resize": lambda t: t.Resize(96),
    "resize, bicubic": lambda t: t.Resize(96, interpolation=BICUBIC),
    "resize, larger": lambda t: t.Resize((400, 500)),
    "resize, max size": lambda t: t.Resize(96, max_size=120),
    "center crop": lambda t: t.CenterCrop(100),
    "center crop, padded": lambda t: t.CenterCrop(400),
    "whole crop": lambda t: t.Compose([t.CenterCrop(128), t.RandomResizedCrop(96, (1, 1), (1, 1))]),
    "crop of all": lambda t: t.Compose([t.CenterCrop(128), t.RandomCrop(128)]),
    "padded crop of all": lambda t: t.Compose([t.CenterCrop(128), t.RandomCrop(136, padding=4)]),
    "reflected": lambda t: t.Compose([t.CenterCrop(64), t.RandomCrop(72, padding=4, padding_mode="reflect")]),
    "flip": lambda t: t.RandomHorizontalFlip(1.0),
    "vertical flip": lambda t: t.RandomVerticalFlip(1.0),
    "no flip": lambda t: t.RandomHorizontalFlip(0.0),
    "grey": lambda t: t.Grayscale(3),
    "random grey": lambda t: t.RandomGrayscale(1.0),
    "brightness": lambda t: t.ColorJitter(brightness=(1.3, 1.3)),
    "contrast": lambda t: t.ColorJitter(contrast=(0.6, 0.6)),
    "saturation": lambda t: t.ColorJitter(saturation=(1.7, 1.7)),
    "hue": lambda t: t.ColorJitter(hue=(0.2, 0.2)),
    "blur": lambda t: t.GaussianBlur(5, (1.3, 1.3)),
    "blur, oblong": lambda t: t.GaussianBlur((3, 9), (2.0, 2.0)),
}
BILINEAR = v1.InterpolationMode.BILINEAR
PILLOW: dict[str, Any] = {
    "rotation": lambda t: t.RandomRotation((33, 33), fill=9),
    "rotation, bilinear": lambda t: t.RandomRotation((-70, -70), interpolation=BILINEAR),
    "rotation, around a corner": lambda t: t.RandomRotation((10, 10), center=(5, 9), fill=(1, 2, 3)),
    "rotation, expanded": lambda t: t.RandomRotation((45, 45), expand=True),
    "affine": lambda t: t.RandomAffine((33, 33), (0, 0), (0.7, 0.7), (8, 8), fill=9),
    "affine, bilinear": lambda t: t.RandomAffine(
        (-9, -9),
        scale=(1.3, 1.3),
        shear=(-8, -8, 5, 5),
        interpolation=BILINEAR,
        center=(20, 8),
        fill=(3, 2, 1),
    ),
    "sharpness": lambda t: t.RandomAdjustSharpness(1.8, p=1.0),
    "autocontrast": lambda t: t.RandomAutocontrast(p=1.0),
    "equalize": lambda t: t.RandomEqualize(p=1.0),
    "choice": lambda t: t.RandomChoice([t.RandomEqualize(p=1.0), t.RandomInvert(p=0.0)], p=[1.0, 0.0]),
    "applied": lambda t: t.RandomApply([t.RandomRotation((9, 9)), t.RandomInvert(p=1.0)], p=1.0),
}
"""Where Pillow and torch do different things."""
STEPS |= {
    "pad": lambda t: t.Pad((3, 5), fill=7),
    "pad, four sides": lambda t: t.Pad([1, 2, 3, 4]),
    "pad, reflected": lambda t: t.Compose([t.CenterCrop(60), t.Pad(40, padding_mode="reflect")]),
    "invert": lambda t: t.RandomInvert(p=1.0),
    "posterize": lambda t: t.RandomPosterize(3, p=1.0),
    "solarize": lambda t: t.RandomSolarize(100, p=1.0),
    "blur, applied": lambda t: t.RandomApply([t.GaussianBlur(5, (1.3, 1.3))], p=1.0),
    "flip, applied": lambda t: t.RandomApply([t.RandomHorizontalFlip(1.0)], p=1.0),
    "not applied": lambda t: t.RandomApply(torch.nn.ModuleList([t.RandomInvert(p=1.0)]), p=0.0),
}
LOOSER = {
    "hue": (14.0, 2.5),
    "grey": (1.1, 0.7),
    "random grey": (1.1, 0.7),
}
"""Levels apart at most, and on average: hue has 8 bits in both, each its own."""


CASES = [
    *((name, end) for name in STEPS for end in ENDS),
    *((name, end) for name in PILLOW for end in ("v1", "v2")),
]


@pytest.mark.parametrize(("name", "end"), CASES)
def test_step_by_step(root: Path, name: str, end: str) -> None:
    kind = v1 if end == "v1" else v2
    first = [v2.ToImage()] if end == "v2, tensors first" else []
    step = (STEPS | PILLOW)[name](kind)
    dataset = datasets.ImageFolder(
        root, transform=kind.Compose([*first, step, kind.CenterCrop(90), *ENDS[end]])
    )
    recipe = recipe_of(dataset)
    most, mean = LOOSER.get(name, (2.6, 0.5))
    for index in range(0, 12, 3):
        want, target = dataset[index]
        (found, label) = rows(recipe, [index])
        apart = levels_apart(found[0], want)
        assert label[0] == target
        assert apart.mean() <= mean, (index, apart.mean(), apart.max())
        assert apart.max() <= most, (index, apart.mean(), apart.max())


@pytest.mark.parametrize("kind", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("cache", [None, "64MiB"])
def test_from_end_to_end(root: Path, kind: Any, cache: Any) -> None:
    end = ENDS["v1" if kind is v1 else "v2"]
    dataset = datasets.ImageFolder(root, transform=kind.Compose([kind.Resize(80), kind.CenterCrop(64), *end]))
    theirs = torch.utils.data.DataLoader(dataset, batch_size=5)
    with hr.DataLoader(dataset, batch_size=5, num_workers=2, cache=cache) as loader:
        for _ in range(2):
            for (images, labels), (want, want_labels) in zip(loader, theirs, strict=True):
                assert (images.dtype, images.shape, images.stride()) == (
                    want.dtype,
                    want.shape,
                    want.stride(),
                )
                assert levels_apart(images[0], want[0]).mean() < 0.5
                assert torch.equal(labels, want_labels)
        assert loader.stats().untranslated == ()


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.9), (0.5, 2.0)), ((0.9, 1.0), (2.0, 3.0))]
)
def test_random_crops_are_distributed_as_theirs(scale: Any, ratio: Any) -> None:
    width, height, count = 500, 375, 8000
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    theirs = np.array(
        [v1.RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(count)]
    )
    step = translate([v1.RandomResizedCrop(224, scale, ratio), v1.PILToTensor()])[0][0]
    framing = Framing(np.full(count, float(width)), np.full(count, float(height)))
    numbers = np.random.default_rng(0).random((count, step.draws))
    step.fold(framing, numbers)
    x, y = framing.x, framing.y
    ours = np.stack([y.low, x.low, y.high - y.low, x.high - x.low], axis=1)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        one, two = np.quantile(theirs, share, axis=0), np.quantile(ours, share, axis=0)
        assert np.abs(one - two).max() < 0.03 * width, (share, one, two)
    spread = theirs.std(axis=0)
    assert (np.abs(theirs.mean(axis=0) - ours.mean(axis=0)) <= 6 * spread * (2 / count) ** 0.5 + 1e-9).all()


@pytest.mark.parametrize("kind", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("seed", range(4))
def test_views_and_shifts_are_theirs(kind: Any, seed: int) -> None:
    """With the numbers that they drew."""
    image, size = picture(90, 61, seed), [90, 61]
    torch.manual_seed(seed)
    numbers = torch.rand(8, dtype=torch.float64).tolist()
    framing = kind.RandomPerspective(0.6, p=1.0, fill=(5, 6, 7))
    step: Any = translate([framing, v1.PILToTensor()])[0][0]
    half = [int(0.6 * (side // 2)) + 1 for side in size]
    moves = [int(number * half[at % 2]) for at, number in enumerate(numbers)]
    far = [(0, 0), (1, 0), (1, 1), (0, 1)]
    start = [[x * (size[0] - 1), y * (size[1] - 1)] for x, y in far]
    end = [
        [x * (size[0] - half[0]) + moves[2 * at], y * (size[1] - half[1]) + moves[2 * at + 1]]
        for at, (x, y) in enumerate(far)
    ]
    want = v1.functional.perspective(Image.fromarray(image), start, end, BILINEAR, [5, 6, 7])
    np.testing.assert_array_equal(step.apply(image, numbers), np.asarray(want))
    moved: Any = translate([kind.RandomAffine(30, (0.2, 0.4), (0.5, 2), (9, 12, 3, 4)), v1.PILToTensor()])[0][
        0
    ]
    (drawn,) = moved.parameters(np.array([numbers[:6]]))
    angle, across, down, scale, *shear = drawn
    shift = [round(across * size[0]), round(down * size[1])]
    nearest = v1.InterpolationMode.NEAREST
    want = v1.functional.affine(Image.fromarray(image), angle, shift, scale, shear, nearest, [0, 0, 0])
    np.testing.assert_array_equal(moved.apply(image, drawn), np.asarray(want))


def test_affine_draws_as_theirs() -> None:
    torch.manual_seed(0)
    theirs = v1.RandomAffine(20, (0.1, 0.3), (0.5, 1.5), (-3, 9, 1, 2))
    params = [
        theirs.get_params(theirs.degrees, theirs.translate, theirs.scale, theirs.shear, [100, 50])
        for _ in range(3000)
    ]
    want = np.array([(angle, x / 100, y / 50, scale, *shear) for angle, (x, y), scale, shear in params])
    step: Any = translate([theirs, v1.PILToTensor()])[0][0]
    found = np.array(step.parameters(np.random.default_rng(0).random((3000, step.draws))))
    spread = np.ptp(want, axis=0)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        apart = np.abs(np.quantile(want, share, axis=0) - np.quantile(found, share, axis=0))
        assert (apart < 0.05 * spread).all(), (share, apart / spread)


def test_corners_move_as_theirs() -> None:
    torch.manual_seed(0)
    ends = np.array([v1.RandomPerspective.get_params(100, 60, 0.5)[1] for _ in range(3000)])
    step: Any = translate([v1.RandomPerspective(0.5, p=0.3), v1.PILToTensor()])[0][0]
    drawn = step.parameters(np.random.default_rng(0).random((3000, step.draws)))
    assert abs(np.mean([row is not None for row in drawn]) - 0.3) < 0.04
    # in the test above the same numbers give the same view, so all that is left is the range
    assert ends[:, 0].max(axis=0).tolist() == [25, 15] and ends[:, 2].min(axis=0).tolist() == [74, 44]


def test_angles_are_distributed_as_theirs() -> None:
    torch.manual_seed(0)
    theirs = np.array([v1.RandomRotation.get_params([-20.0, 40.0]) for _ in range(4000)])
    step = translate([v1.RandomRotation((-20, 40)), v1.PILToTensor()])[0][0]
    ours = np.array(step.parameters(np.random.default_rng(0).random((4000, step.draws))))
    shares = np.linspace(0, 1, 11)
    assert np.abs(np.quantile(theirs, shares) - np.quantile(ours, shares)).max() < 3


@pytest.mark.parametrize("kind", [v1, v2], ids=["v1", "v2"])
def test_what_is_applied_sometimes_is_applied_as_often(root: Path, kind: Any) -> None:
    """How images of SimCLR's pipeline come out, over many draws."""
    steps = [
        kind.RandomApply([kind.ColorJitter(0.8, 0.8, 0.8)], p=0.8),
        kind.RandomApply([kind.GaussianBlur(9), kind.RandomSolarize(128, p=0.5)], p=0.3),
        kind.RandomChoice([kind.RandomInvert(p=0.5), kind.RandomPosterize(1, p=1.0)], p=[0.9, 0.1]),
    ]
    end = [v1.ToTensor()] if kind is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = datasets.ImageFolder(root, transform=kind.Compose([kind.CenterCrop(16), *steps, *end]))
    recipe, draws = recipe_of(dataset), 500
    torch.manual_seed(0)
    random.seed(0)
    ours = np.array([rows(recipe, [0], epoch=epoch)[0][0].mean() for epoch in range(draws)])
    theirs = np.array([dataset[0][0].mean().item() for _ in range(draws)])
    spread = (ours.std() + theirs.std()) / 2
    assert abs(ours.mean() - theirs.mean()) < 5 * spread * (2 / draws) ** 0.5
    for share in (0.2, 0.4, 0.6, 0.8):
        assert abs(np.mean(ours < np.quantile(theirs, share)) - share) < 5 * (0.5 / draws) ** 0.5


@pytest.mark.parametrize("value", [0, 0.5, "random"])
def test_erasing(root: Path, value: Any) -> None:
    end = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
    plain = datasets.ImageFolder(root, transform=v1.Compose([v1.Resize((64, 64)), *end]))
    dataset = datasets.ImageFolder(
        root, transform=v1.Compose([v1.Resize((64, 64)), *end, v1.RandomErasing(1.0, value=value)])
    )
    (found, _) = rows(recipe_of(dataset), list(range(12)))
    for index in range(12):
        changed = levels_apart(found[index], plain[index][0]).max(axis=0) > 4
        area = changed.mean()
        assert 0.01 < area < 0.4
        if value != "random":
            assert np.unique(found[index][:, changed]).tolist() == [value]


OPERATIONS = sorted({*policies.RAND, "Invert"})


@pytest.mark.parametrize("fill", [None, 128])
@pytest.mark.parametrize("wide", [False, True], ids=["rand", "trivial"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_policies(name: str, wide: bool, fill: Any) -> None:
    """With every magnitude, to the bit."""
    size, bins = (75, 110), 31
    theirs = v1.TrivialAugmentWide(bins) if wide else v1.RandAugment(num_magnitude_bins=bins)
    space = theirs._augmentation_space(bins) if wide else theirs._augmentation_space(bins, size)
    source = picture(size[1], size[0])
    step: Any = hr.image.rand_augment(fill=fill or 0)
    if wide:
        step = hr.image.trivial_augment(num_magnitude_bins=bins, fill=fill or 0)
    nearest, fills = v1.InterpolationMode.NEAREST, [fill] * 3 if fill else None
    for at in range(bins) if name in space and space[name][0].ndim else [None]:
        amount = 0.0 if at is None else float(space[name][0][at].item())
        for sign in (1, -1) if name in space and space[name][1] else (1,):
            want = autoaugment._apply_op(Image.fromarray(source), name, sign * amount, nearest, fills)
            found = step.apply(source, [(name, at, sign < 0)])
            np.testing.assert_array_equal(found, np.asarray(want), err_msg=f"{name} {at} {sign}")


def test_the_policy_of_imagenet() -> None:
    assert hr.image.auto_augment().policy == tuple(v1.AutoAugment().policies)


@pytest.mark.parametrize("kind", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
def test_policies_choose_as_theirs(root: Path, kind: Any, name: str) -> None:
    """How often an image comes out changed, and by how much, over many draws."""
    end = [v1.ToTensor()] if kind is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = datasets.ImageFolder(
        root, transform=kind.Compose([kind.CenterCrop(64), getattr(kind, name)(), *end])
    )
    recipe = recipe_of(dataset)
    plain = datasets.ImageFolder(root, transform=v1.Compose([v1.CenterCrop(64), v1.ToTensor()]))[0][0]
    draws = 600
    torch.manual_seed(0)
    ours = [np.abs(rows(recipe, [0], epoch=epoch)[0][0] - plain.numpy()).mean() for epoch in range(draws)]
    theirs = [(dataset[0][0] - plain).abs().mean().item() for _ in range(draws)]
    spread = (np.std(ours) + np.std(theirs)) / 2
    assert abs(np.mean(ours) - np.mean(theirs)) < 5 * spread * (2 / draws) ** 0.5
    same = [np.mean(np.asarray(found) < 1e-6) for found in (ours, theirs)]
    assert abs(same[0] - same[1]) < 5 * (0.5 / draws) ** 0.5
