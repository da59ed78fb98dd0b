"""torchvision's own datasets and transforms, where torchvision is installed."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

import headrace as hr

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
from torchvision import transforms  # noqa: E402
from torchvision.transforms import v2  # noqa: E402


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(24):
        folder = root / f"class_{number % 3}"
        folder.mkdir(exist_ok=True)
        small = rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{number:03}.jpg"), cv2.resize(small, (120 + number, 90 + number)))
    return str(root)


def whole(loader):
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


DETERMINISTIC = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()])
RANDOM = transforms.Compose(
    [
        transforms.Resize(80),
        transforms.RandomResizedCrop(64),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ]
)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "native": False},
        {"num_workers": 0},
        {"num_workers": 2, "cache": "64MiB", "native": False},
    ],
)
def test_a_deterministic_image_folder_is_equal_to_the_bit(root, options):
    dataset = torchvision.datasets.ImageFolder(root, DETERMINISTIC)
    with hr.DataLoader(dataset, batch_size=5, **options) as loader:
        for _ in range(2):
            ours = whole(loader)
            theirs = whole(torch.utils.data.DataLoader(dataset, batch_size=5))
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])


def test_an_image_folder_has_three_forms(root):
    dataset = torchvision.datasets.ImageFolder(root, RANDOM)
    with hr.DataLoader(
        dataset, batch_size=8, num_workers=2, cache="64MiB", persistent_workers=True
    ) as loader:
        first = whole(loader)[0]
        second = whole(loader)[0]
        stats = loader.stats()
    assert first.shape == (24, 3, 64, 64) and first.dtype == torch.float32
    assert not torch.equal(first, second), "random transforms are drawn anew in each epoch"
    assert stats.cache["decoded"].samples == 24
    assert stats.fetched_samples == 24, "the second epoch is served from decoded samples"


def test_random_transforms_do_not_depend_on_the_workers(root):
    dataset = torchvision.datasets.ImageFolder(root, RANDOM)
    batches = []
    for workers in (1, 2):
        with hr.DataLoader(dataset, batch_size=8, num_workers=workers, seed=7) as loader:
            batches.append(whole(loader)[0])
    assert torch.equal(batches[0], batches[1])


def test_a_subclass_with_its_own_getitem_behaves_as_itself(root):
    class Negative(torchvision.datasets.ImageFolder):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return -image, label

    dataset = Negative(root, DETERMINISTIC)
    ours = whole(hr.DataLoader(dataset, batch_size=5, num_workers=2))
    theirs = whole(torch.utils.data.DataLoader(dataset, batch_size=5))
    assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize(
    "steps",
    [
        [transforms.RandomResizedCrop(48), transforms.ToTensor()],
        [v2.ToImage(), v2.RandomResizedCrop(48), v2.ToDtype(torch.float32, scale=True)],
        [
            v2.RandomResizedCrop(48),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ],
    ],
    ids=["v1", "v2-tensor", "v2-pil"],
)
def test_transforms_in_a_recipe(root, steps):
    recipe = hr.Recipe(hr.folder(root), decode=hr.image.decode(), augment=steps)
    with hr.DataLoader(recipe, batch_size=6, num_workers=2, seed=1) as loader:
        images, labels = whole(loader)
    assert images.shape == (24, 3, 48, 48) and images.dtype == torch.float32
    assert images.min() >= 0 and images.max() <= 1 and images.std() > 0.01
    assert sorted(labels.tolist()) == sorted(recipe.source.targets.tolist())


PIPELINES = {
    "v1": [transforms.CenterCrop(48), transforms.ToTensor()],
    "v2": [v2.CenterCrop(48), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "v2-pure": [v2.CenterCrop(48), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()],
    "v2-bytes": [v2.ToImage(), v2.CenterCrop(48)],
    "pillow": [v2.CenterCrop(48)],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_collate_function_gets_what_the_dataset_gives(root, name):
    dataset = torchvision.datasets.ImageFolder(root, v2.Compose(PIPELINES[name]))

    def seen(samples):
        return [
            (type(value).__mro__, torch.as_tensor(np.asarray(value).copy()), target)
            for value, target in samples
        ]

    theirs = torch.utils.data.DataLoader(dataset, batch_size=5, collate_fn=seen)
    with hr.DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=seen) as loader:
        for ours, want in zip(loader, theirs, strict=True):
            for (kinds, value, target), (other_kinds, other, label) in zip(ours, want, strict=True):
                assert target == label and type(target) is type(label)
                assert kinds[0] in other_kinds if name == "pillow" else kinds == other_kinds
                torch.testing.assert_close(value, other)
        assert loader.stats().decodes and not loader.stats().untranslated


@pytest.mark.parametrize("mixing", [v2.MixUp, v2.CutMix])
def test_batches_are_mixed_in_the_workers(root, mixing):
    mixed = mixing(num_classes=3)
    dataset = torchvision.datasets.ImageFolder(root, v2.Compose(PIPELINES["v2"]))
    epochs = []
    for workers in (1, 2):
        with hr.DataLoader(
            dataset,
            batch_size=8,
            shuffle=True,
            num_workers=workers,
            seed=2,
            collate_fn=lambda samples: mixed(*torch.utils.data.default_collate(samples)),
        ) as loader:
            epochs.append(whole(loader))
            assert loader.stats().decodes
    images, labels = epochs[0]
    assert images.shape == (24, 3, 48, 48) and labels.shape == (24, 3)
    assert torch.equal(images, epochs[1][0]) and torch.equal(labels, epochs[1][1])
    assert ((labels > 0) & (labels < 1)).any(), "some are mixed"
    assert torch.allclose(labels.sum(1), torch.ones(24))
