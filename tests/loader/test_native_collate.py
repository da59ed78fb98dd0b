"""Folder datasets with a collate function of the user's: it gets what the dataset would have given, in the worker,
while images are prepared by headrace. (Stand-ins for torchvision's classes, as in tests/recipes/test_translate.py.)
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, default_collate, get_worker_info

import headrace as hr
from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order
from headrace.engine.board import Board
from headrace.loader import observer
from headrace.loader.codec import decode
from headrace.loader.native import look_for
from headrace.loader.recipe_collate import RecipeCollator
from headrace.measure.runs import list_runs
from tests.recipes.helpers import jpeg, picture, png
from tests.recipes.test_datasets import TRANSFORMS, Compose, ImageFolder, theirs
from tests.recipes.test_translate import (
    MEAN,
    STD,
    V2,
    CenterCrop,
    Normalize,
    Resize,
    ToDtype,
    ToImage,
    ToTensor,
)

EXACT = [CenterCrop(24), ToTensor()]
"""Nothing in it rounds, so pixels are theirs to the bit."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    root = tmp_path_factory.mktemp("folder")
    found = []
    for number in range(11):
        pixels = picture(40 + number, 50, number)
        path = root / f"{number:02}.{'png' if number % 3 else 'jpg'}"
        path.write_bytes(png(pixels) if number % 3 else jpeg(pixels))
        found.append((str(path), number % 4))
    return found


def folder(files: Any, transforms: Any = EXACT) -> ImageFolder:
    return ImageFolder(files, transform=Compose(list(transforms)) if transforms is not None else None)


@theirs(V2)
class MixUp:
    """What torchvision's class of this name does with images and labels."""

    def __init__(self, num_classes: int, alpha: float = 1.0) -> None:
        self.num_classes, self.beta = num_classes, torch.distributions.Beta(alpha, alpha)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = float(self.beta.sample())
        hot = torch.nn.functional.one_hot(labels, self.num_classes).float()
        return (
            images.roll(1, 0).mul(1 - part).add(images.mul(part)),
            hot.roll(1, 0).mul(1 - part).add(hot.mul(part)),
        )


mixup = MixUp(4)


def mix(samples: Any) -> Any:
    images, labels = mixup(*default_collate(samples))
    drawn = torch.tensor([torch.rand(()).item(), np.random.random(), random.random()], dtype=torch.float64)
    return {"images": images, "labels": labels, "drawn": drawn, "pid": os.getpid()}


def seen(samples: Any) -> Any:
    """What a collate function could know of its samples."""
    out = []
    for value, target in samples:
        if isinstance(value, Image.Image):
            about: Any = (value.mode, value.size, np.asarray(value).copy())
        elif isinstance(value, np.ndarray):
            about = (value.dtype, value.shape, value.strides, value.copy())
        else:
            about = (value.dtype, value.shape, value.stride(), value.numpy().copy())
        out.append((type(value), about, type(target), target))
    return out, type(samples), os.getpid()


@theirs(TRANSFORMS)
class ElasticTransform:
    """One of which headrace has no step."""

    def __call__(self, image: Any) -> Any:
        return image


class ToNumpy:
    """A transform of the user's, or of another library: as timm's, for its own collate function."""

    def __call__(self, image: Any) -> Any:
        return np.rollaxis(np.array(image, dtype=np.uint8), 2)


PIPELINES: dict[str, Any] = {
    "tensors": [*EXACT, Normalize(MEAN, STD)],
    "bytes": [CenterCrop(24), ToImage()],
    "half": [CenterCrop(24), ToImage(), ToDtype(torch.float16, scale=True)],
    "bfloat16": [CenterCrop(24), ToImage(), ToDtype(torch.bfloat16, scale=True), ToDtype(torch.float32)],
    "arrays": [CenterCrop(24), ToNumpy()],
    "Pillow images": [CenterCrop(24)],
    "of any size": [],
    "no transform": None,
    "code in between": [CenterCrop(24), ElasticTransform(), ToTensor()],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_samples_are_those_of_the_dataset(files: Any, name: str) -> None:
    dataset = folder(files, PIPELINES[name])
    want = DataLoader(dataset, batch_size=4, collate_fn=seen)
    options: dict[str, Any] = {"cache": "8MiB", "num_workers": 0} if name != "tensors" else {"num_workers": 1}
    with hr.DataLoader(dataset, batch_size=4, collate_fn=seen, **options) as loader:
        for _ in range(2):
            for (ours, kind, pid), (plain, same_kind, here) in zip(loader, want, strict=True):
                assert kind is same_kind is list
                assert (pid == here) == (loader.num_workers == 0), "it runs in the worker, where there is one"
                for (a, about, b, target), (c, other, d, label) in zip(ours, plain, strict=True):
                    # (where torchvision itself is loaded, its images come out, as its own ToImage makes them)
                    assert issubclass(c, a) if issubclass(c, Image.Image) else issubclass(a, c)
                    assert (b, target) == (d, label)
                    assert about[:-1] == other[:-1]
                    apart = np.abs(about[-1].astype(np.float64) - other[-1].astype(np.float64)).max()
                    assert apart <= (1e-6 if name == "tensors" else 0), name
        stats = loader.stats()
    assert stats.own_code[-1] == "seen: the collate_fn"
    assert stats.decodes == (name != "bfloat16")
    assert "bfloat16" not in name or "bfloat16" in stats.own_code[0]


def test_images_are_mixed_in_workers_and_drawn_by_their_samples(files: Any) -> None:
    dataset = folder(files)
    plain = list(DataLoader(dataset, batch_size=4))
    epochs = []
    for options in ({"num_workers": 2}, {"num_workers": 1, "cache": "8MiB"}):
        with hr.DataLoader(dataset, batch_size=4, collate_fn=mix, seed=3, **options) as loader:
            epochs += [[{**batch, "images": batch["images"].clone()} for batch in loader] for _ in range(2)]
            stats = loader.stats()
        assert stats.translated == ("CenterCrop", "ToTensor") and stats.decodes
        assert stats.untranslated == () and stats.own_code == ("mix: the collate_fn",)
    assert stats.fetched_samples == 11 and stats.hits >= 11, "the second epoch is of decoded samples"
    first, second, *again = epochs
    for one, other in zip((first, second), again, strict=True):
        for ours, same in zip(one, other, strict=True):
            assert torch.equal(ours["images"], same["images"]) and torch.equal(ours["drawn"], same["drawn"])
    drawn = torch.stack([batch["drawn"] for batch in [*first, *second]])
    assert len(torch.unique(drawn, dim=0)) == 6, "of each batch its own, in each epoch"
    assert len(torch.unique(drawn)) == 18
    for batch, (images, labels) in zip(first, plain, strict=True):
        assert batch["pid"] != os.getpid()
        hot = torch.nn.functional.one_hot(labels, 4).float()
        at = int((hot != hot.roll(1, 0)).any(1).nonzero()[0])
        part = batch["labels"][at, labels[at]]
        torch.testing.assert_close(batch["images"], part * images + (1 - part) * images.roll(1, 0))
        assert 0 < part < 1


def test_an_epoch_that_goes_on_draws_what_it_would_have_drawn(files: Any) -> None:
    def make(**options: Any) -> Any:
        dataset = folder(files)
        return hr.DataLoader(
            dataset, batch_size=3, shuffle=True, collate_fn=mix, num_workers=1, seed=8, **options
        )

    with make() as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        state = loader.state_dict()
        rest = [{**batch, "images": batch["images"].clone()} for batch in batches]
    with make() as other:
        other.load_state_dict(state)
        for ours, want in zip(other, rest, strict=True):
            assert torch.equal(ours["images"], want["images"]) and torch.equal(ours["drawn"], want["drawn"])


def test_ranks_and_the_job_itself(files: Any) -> None:
    """Each rank draws its own numbers; and without workers, those of the job are left as they are."""
    shares = []
    for rank in range(2):
        dataset = folder(files)
        options = {"rank": rank, "world_size": 2, "cache": "8MiB", "num_workers": 0, "seed": 1}
        with hr.DataLoader(dataset, batch_size=3, collate_fn=mix, **options) as loader:
            before = torch.get_rng_state()
            shares.append([tuple(batch["drawn"].tolist()) for batch in loader])
            assert torch.equal(torch.get_rng_state(), before)
    assert not set(shares[0]) & set(shares[1])


def test_single_samples_and_the_default_collation(files: Any) -> None:
    dataset = Subset(folder(files), [3, 1, 4])
    for collate_fn in (None, lambda sample: (sample[1], sample[0].shape)):
        want = list(DataLoader(dataset, batch_size=None, collate_fn=collate_fn))
        with hr.DataLoader(dataset, batch_size=None, collate_fn=collate_fn, num_workers=1) as loader:
            ours = list(loader)
            assert loader.stats().decodes
        for a, b in zip(ours, want, strict=True):
            assert type(a) is type(b) and type(a[1]) is type(b[1])
            assert a[1] == b[1]
            torch.testing.assert_close(a[0], b[0])
    loader = hr.DataLoader(dataset, batch_size=2, collate_fn=default_collate, num_workers=1)
    assert loader._spec.data.collator is None and loader.stats().decodes, (
        "torch's own needs no list of samples"
    )
    single = hr.DataLoader(
        hr.Recipe(hr.files([path for path, _ in files], range(11)), hr.image.decode()),
        batch_size=None,
        num_workers=0,
        collate_fn=lambda sample: sample[1],
    )
    assert list(single) == list(range(11)), "as torch's loader, for recipes too"


def test_workers_know_the_dataset(files: Any) -> None:
    dataset = folder(files)
    dataset.mark = 17

    def collate(samples: Any) -> Any:
        info = get_worker_info()
        return info.id, info.num_workers, info.dataset.mark, torch.get_num_threads()

    with hr.DataLoader(dataset, batch_size=6, num_workers=1, collate_fn=collate) as loader:
        assert list(loader) == [(0, 1, 17, 1)] * 2


def test_what_headrace_cannot_prepare_runs_as_the_dataset_runs_it(files: Any) -> None:
    dataset = folder(files)
    off = look_for(dataset, mix, native=False, batched=True, workers=True, keeps=False)
    assert off.recipe is None and "native=False" in off.own[0] and "native=False" in off.hint
    kept = look_for(dataset, mix, native=False, batched=True, workers=True, keeps=True)
    assert kept.recipe is not None and kept.present is None and kept.collate_fn is mix
    own = ImageFolder(files, loader=lambda path: Image.open(path))
    loaded = look_for(own, None, native=True, batched=True, workers=True, keeps=False)
    assert loaded.own == ("decoding: the dataset has a loader of its own",) and "loader=" in loaded.hint
    inline = look_for(dataset, mix, native=True, batched=True, workers=False, keeps=False)
    assert inline.recipe is None and inline.own == ("ImageFolder: num_workers=0",)
    odd = ImageFolder([(path, np.int64(target)) for path, target in files])
    assert look_for(odd, mix, native=True, batched=True, workers=True, keeps=False).recipe is None
    assert look_for(odd, None, native=True, batched=True, workers=True, keeps=False).recipe is not None
    with pytest.raises(
        hr.OptionError, match=r"cache= needs a recipe.*but: ImageFolder: it reads samples, or"
    ):
        hr.DataLoader(odd, collate_fn=mix, cache="8MiB")
    with pytest.raises(hr.OptionError, match=r"\(docs/recipes.md\).$"):
        hr.DataLoader([1, 2], share=True)
    between = folder(files, [ElasticTransform(), Resize(8), ToTensor()])
    known = look_for(between, None, native=True, batched=True, workers=True, keeps=False)
    assert known.steps == ("decoding",) and "ElasticTransform" in known.hint
    assert look_for([1, 2], mix, native=True, batched=True, workers=True, keeps=True).own == ()
    with hr.DataLoader(dataset, batch_size=4, num_workers=1, native=False, collate_fn=len) as loader:
        assert list(loader) == [4, 4, 3]
        assert "native      nothing; your own code: CenterCrop: native=False" in str(loader.stats())


def test_tensors_have_the_type_that_torchvision_gives_them(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Typed(torch.Tensor):
        pass

    module = types.SimpleNamespace(Image=lambda tensor: tensor.as_subclass(Typed))
    monkeypatch.setitem(sys.modules, "torchvision.tv_tensors", module)
    pure = type("ToPureTensor", (), {"__module__": V2, "__call__": lambda self, value: value})()
    for transforms, kind in (
        ([CenterCrop(8), ToImage()], Typed),
        ([CenterCrop(8), ToImage(), pure], torch.Tensor),
        ([CenterCrop(8), ToImage(), CenterCrop(8)], torch.Tensor),
    ):
        found = look_for(folder(files, transforms), len, native=True, batched=True, workers=True, keeps=False)
        assert found.present is not None
        tensor, target = found.present((np.zeros((3, 8, 8), np.uint8), 5))
        assert type(tensor) is kind and target == 5


def test_one_thread_collates_at_a_time() -> None:
    """Threads share the generators: each would draw from what another has seeded."""

    def collate(samples: Any) -> Any:
        first = torch.rand(())
        time.sleep(0.002)
        return [float(first), float(torch.rand(())), float(np.random.random())]

    collator = pickle.loads(pickle.dumps(RecipeCollator(drawing)))
    assert collator.collate_fn is drawing and collator.name == "drawing"
    collator.collate_fn = collate
    arena = Arena()
    board = Board(arena)

    def run(number: int) -> Any:
        order = Order(number, 0, 0, 2, 0, 5, 0, 0, np.array([number, number + 1], np.int64).tobytes())
        done = collator(arena, board, order, None, [1, 2], {})
        return decode(done.result, None)

    alone = [run(number) for number in range(16)]
    together: list[Any] = [None] * 16

    def some(start: int) -> None:
        for number in range(start, 16, 4):
            together[number] = run(number)

    threads = [threading.Thread(target=some, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert len({tuple(drawn) for drawn in alone}) == 16


def drawing(samples: Any) -> Any:
    return samples


def test_records_say_what_is_native(files: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HEADRACE_RECORD", "1")
    monkeypatch.setattr(observer, "_SHORT", 0.0)
    dataset = folder(files, [CenterCrop(24), ElasticTransform(), ToTensor()])
    for options in ({}, {"native": False}):
        with hr.DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=len, **options) as loader:
            assert sum(loader) == 11
    off, on = sorted(list_runs(), key=lambda run: len(run.native))
    assert on.native == ("decoding", "CenterCrop") and "ElasticTransform" in on.hint
    assert on.own_code[0] == "ElasticTransform: headrace has no such step"
    assert (
        off.own_code[-2:] == ("decoding: native=False", "len: the collate_fn") and "native=False" in off.hint
    )
