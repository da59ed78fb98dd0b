"""Torchvision's folder datasets are recognised, and give the samples that they give by themselves.

Here with their own code; what becomes of it by default is in test_translate.py.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset

from headrace.core.forms import Form
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.datasets import recognise
from headrace.sources import files
from tests.recipes.helpers import jpeg, order, picture, png, read_only


def plain_recipe(dataset: Any) -> Recipe | None:
    found = recognise(dataset, files, native=False)
    return None if found is None else found.recipe


FOLDER = "torchvision.datasets.folder"
TRANSFORMS = "torchvision.transforms.transforms"


def theirs(module: str) -> Any:
    def mark(thing: Any) -> Any:
        thing.__module__ = module
        thing.__qualname__ = thing.__name__
        return thing

    return mark


@theirs(FOLDER)
def default_loader(path: str) -> Any:
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


@theirs(FOLDER)
class DatasetFolder(torch.utils.data.Dataset):
    """What torchvision's class of this name does, as its documentation says."""

    def __init__(
        self, samples: Any, loader: Any = default_loader, transform: Any = None, target_transform: Any = None
    ):
        self.samples = samples
        self.loader = loader
        self.transform = transform
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return sample, target

    def __len__(self) -> int:
        return len(self.samples)


@theirs(FOLDER)
class ImageFolder(DatasetFolder):
    pass


@theirs(TRANSFORMS)
class Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


@theirs(TRANSFORMS)
class Resize:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, value: Any) -> Any:
        return value.resize((self.size, self.size))


@theirs(TRANSFORMS)
class ToTensor:
    def __call__(self, value: Any) -> Any:
        return torch.from_numpy(np.asarray(value).transpose(2, 0, 1) / np.float32(255))


@theirs(TRANSFORMS)
class RandomHorizontalFlip:
    def __call__(self, value: Any) -> Any:
        if random.random() < 0.5:
            return (
                value.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                if isinstance(value, Image.Image)
                else value.flip(-1)
            )
        return value


@pytest.fixture
def samples(tmp_path: Path) -> list[tuple[str, int]]:
    out = []
    for number in range(4):
        path = tmp_path / (f"{number}.png" if number == 2 else f"{number}.jpg")
        path.write_bytes((png if number == 2 else jpeg)(picture(20 + number, 30, number)))
        out.append((str(path), number % 2))
    return out


def prepared(recipe: Recipe, indices: list[int], caches: bool = True) -> tuple[list[Any], list[Any]]:
    """Samples that had to be decoded, and the same from the cache."""
    program = compile_recipe(recipe, caches_decoded=caches)
    work = order(recipe.source, indices, keep=caches)
    fresh = program.samples(work)
    assert not work.faults
    if not caches:
        return fresh, fresh
    assert len(work.kept) == len(indices)
    cached = {index: read_only(work.kept[row]) for row, index in enumerate(indices)}
    again = order(recipe.source, indices, cached=cached)
    return fresh, program.samples(again)


def test_a_deterministic_dataset_gives_the_very_same_samples(samples: Any) -> None:
    dataset = ImageFolder(samples, transform=Compose([Resize(16), Compose([ToTensor()])]))
    recipe = plain_recipe(dataset)
    assert recipe is not None
    assert recipe.lead == 2
    assert recipe.encoded
    for got in prepared(recipe, [0, 1, 2, 3]):
        for index in range(4):
            want, target = dataset[index]
            np.testing.assert_array_equal(got[index][0], want.numpy())
            assert got[index][1] == target


def test_random_transforms_stay_random_and_the_rest_leads(samples: Any) -> None:
    dataset = ImageFolder(samples, transform=Compose([Resize(16), RandomHorizontalFlip(), ToTensor()]))
    recipe = plain_recipe(dataset)
    assert recipe is not None
    assert recipe.lead == 1
    fresh, again = prepared(recipe, [0, 1, 2, 3])
    plain = ImageFolder(samples, transform=Compose([Resize(16), ToTensor()]))
    flipped = 0
    for index in range(4):
        np.testing.assert_array_equal(fresh[index][0], again[index][0])
        want = plain[index][0].numpy()
        flipped += (fresh[index][0] == want[..., ::-1]).all()
        assert (fresh[index][0] == want).all() or (fresh[index][0] == want[..., ::-1]).all()
    epochs = [
        compile_recipe(recipe, caches_decoded=False).samples(order(recipe.source, [1], epoch=e))[0][0]
        for e in range(12)
    ]
    assert len({epoch.tobytes() for epoch in epochs}) == 2


def test_random_steps_on_cached_tensors(samples: Any) -> None:
    dataset = ImageFolder(samples, transform=Compose([Resize(8), ToTensor(), RandomHorizontalFlip()]))
    recipe = plain_recipe(dataset)
    assert recipe is not None
    fresh, again = prepared(recipe, [0, 1])
    for one, other in zip(fresh, again, strict=True):
        assert one[0].shape == (3, 8, 8)
        np.testing.assert_array_equal(one[0], other[0])


def test_pil_images_are_samples_too(samples: Any) -> None:
    recipe = plain_recipe(ImageFolder(samples))
    assert recipe is not None
    for got in prepared(recipe, [0, 2]):
        np.testing.assert_array_equal(got[1][0], picture(22, 30, 2))


def test_target_transforms_and_subsets(samples: Any) -> None:
    dataset = ImageFolder(samples, transform=Resize(8), target_transform=lambda target: target + 0.5)
    recipe = plain_recipe(Subset(dataset, [3, 0]))
    assert recipe is not None
    assert len(recipe.source) == 2
    (fresh, _) = prepared(recipe, [0, 1])
    assert [sample[1] for sample in fresh] == [1.5, 0.5]
    np.testing.assert_array_equal(fresh[0][0], np.asarray(dataset[3][0]))


def test_a_loader_of_the_user_s_own_gets_the_path(samples: Any) -> None:
    def load(path: str) -> Any:
        return np.full((2, 2), int(Path(path).stem))

    recipe = plain_recipe(DatasetFolder(samples, loader=load))
    assert recipe is not None
    assert not recipe.encoded
    for got in prepared(recipe, [3, 1]):
        assert [sample[0].tolist() for sample in got] == [[[3, 3], [3, 3]], [[1, 1], [1, 1]]]


def test_equal_datasets_share_and_others_do_not(samples: Any) -> None:
    def prints(*transforms: Any) -> list[str]:
        recipe = plain_recipe(ImageFolder(samples, transform=Compose(list(transforms))))
        assert recipe is not None
        return [recipe.fingerprint(form) for form in (Form.DECODED, Form.AUGMENTED)]

    assert prints(Resize(8), RandomHorizontalFlip()) == prints(Resize(8), RandomHorizontalFlip())
    assert prints(Resize(8), RandomHorizontalFlip())[0] == prints(Resize(8))[0]
    assert prints(Resize(9))[0] != prints(Resize(8))[0]


def test_what_behaves_otherwise_is_left_alone(samples: Any) -> None:
    class Own(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[::-1]

    class Longer(ImageFolder):
        def __len__(self) -> int:
            return 2 * len(self.samples)

    class Batched(ImageFolder):
        def __getitems__(self, indices: Any) -> Any:
            return [self[index] for index in indices]

    class Harmless(ImageFolder):
        extra = 1

    class Lookalike:
        def __init__(self) -> None:
            self.samples, self.loader, self.transform, self.target_transform = (
                samples,
                default_loader,
                None,
                None,
            )

        def __getitem__(self, index: int) -> Any:
            return index

        def __len__(self) -> int:
            return 1

    for other in (
        Own(samples),
        Longer(samples),
        Batched(samples),
        Lookalike(),
        [1, 2],
        None,
        ImageFolder([]),
    ):
        assert plain_recipe(other) is None
    assert plain_recipe(Harmless(samples)) is not None
    assert plain_recipe(Subset(Own(samples), [0])) is None


def test_a_compose_of_the_user_s_own_is_called_as_it_is(samples: Any) -> None:
    """Whatever it derives from: it may do other things with its transforms than to call one after the other."""
    own = type(
        "Compose", (Compose,), {"__module__": "mine", "__call__": lambda self, image: image.resize((4, 4))}
    )
    found = recognise(ImageFolder(samples, transform=own([Resize(16), ToTensor()])), files)
    assert found is not None
    (note,) = found.notes
    assert note.step == "Compose" and "not torchvision's own" in note.why
