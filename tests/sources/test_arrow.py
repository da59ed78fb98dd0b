"""Hugging Face's datasets as sources, where the package is installed."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headrace as hr
from headrace.core.forms import Form
from headrace.sources import identities
from headrace.sources.arrow import ArrowSource
from headrace.sources.mapped import Maps
from tests.recipes.helpers import jpeg, picture, png

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")

SIZE = 24
FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
        "text": datasets.Value("string"),
    }
)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Any:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def blob(number: int) -> bytes:
    pixels = picture(40 + number, 50, number)
    return png(pixels) if number % 5 == 0 else jpeg(pixels)


def in_memory(numbers: Any = range(SIZE)) -> Any:
    rows = {
        "image": [{"bytes": blob(number), "path": f"{number}.jpg"} for number in numbers],
        "label": [number % 3 for number in numbers],
        "text": [str(number) for number in numbers],
    }
    return datasets.Dataset.from_dict(rows, features=FEATURES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    in_memory().save_to_disk(str(place), num_shards=3)
    return place


@pytest.fixture
def mapped(saved: Path) -> Any:
    return datasets.load_from_disk(str(saved))


def numbers_of(dataset: Any) -> list[int]:
    return [int(text) for text in dataset.with_format(None)["text"]]


VIEWS: dict[str, Any] = {
    "whole": lambda d: d,
    "a part": lambda d: d.select(range(5, 17)),
    "part of a part": lambda d: d.select(range(5, 17)).select(range(2, 9)),
    "some": lambda d: d.select([20, 3, 3, 11]),
    "shuffled": lambda d: d.shuffle(seed=4),
    "shuffled part": lambda d: d.shuffle(seed=4).select(range(6)),
    "filtered": lambda d: d.filter(lambda row: row["label"] == 1),
    "concatenated": lambda d: datasets.concatenate_datasets([d.select(range(8, 12)), d]),
    "renamed": lambda d: d.rename_column("text", "words").rename_column("words", "text"),
    "formatted": lambda d: d.with_format("numpy"),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["mapped", "memory"])
def test_samples_are_those_of_the_dataset(mapped: Any, view: str, kind: str) -> None:
    dataset = VIEWS[view](mapped if kind == "mapped" else in_memory())
    source = hr.hf(dataset)
    numbers = numbers_of(dataset)
    assert isinstance(source, hr.sources.Source) and len(source) == len(dataset) == len(numbers)
    order = np.random.default_rng(0).permutation(len(source))
    assert [bytes(data) for data in source.read_many(order)] == [blob(numbers[at]) for at in order]
    assert source.targets.tolist() == [number % 3 for number in numbers]
    assert source.classes == ["cat", "dog", "owl"]
    assert source.name(1) == f"image[1] ({numbers[1]}.jpg)"
    whole = identities(hr.hf(mapped if kind == "mapped" else in_memory()))
    if view != "filtered":  # (that is a copy, in a file of its own)
        assert np.array_equal(identities(source), whole[numbers]), "wherever a sample is, it is the same"
    other = pickle.loads(pickle.dumps(source))
    assert [bytes(data) for data in other.read_many([0, 1])] == [blob(number) for number in numbers[:2]]
    assert other.fingerprint() == source.fingerprint() and other.listing() == source.listing()


def test_nothing_is_copied(mapped: Any, saved: Path) -> None:
    (data,) = hr.hf(mapped).read_many([7])
    place = Maps().find(np.frombuffer(data, np.uint8).__array_interface__["data"][0])
    assert place is not None and os.fsencode(saved) in place.path
    file = Path(os.fsdecode(place.path))
    assert file.read_bytes()[place.offset : place.offset + len(data)] == blob(7)


def test_rows_that_are_not_those_of_the_dataset_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = in_memory(), in_memory(range(1, SIZE + 1)).with_format("arrow")
    monkeypatch.setattr(data, "with_format", lambda kind: other)
    with pytest.raises(hr.OptionError, match="this version of datasets"):
        hr.hf(data)


def test_parts_of_one_file_are_told_apart_by_their_place(tmp_path: Path) -> None:
    cells = [b"%04d" % number for number in range(8)]
    features = datasets.Features({"image": datasets.Value("binary")})
    datasets.Dataset.from_dict({"image": cells}, features=features).save_to_disk(str(tmp_path))
    whole = datasets.load_from_disk(str(tmp_path))
    parts = [hr.hf(whole.select(range(start, start + 4)), target=None) for start in (0, 4)]
    assert [bytes(data) for part in parts for data in part.read_many(range(4))] == cells
    assert parts[0].fingerprint() != parts[1].fingerprint()


def test_fingerprints_tell_samples_and_orders_apart(mapped: Any, saved: Path) -> None:
    again = datasets.load_from_disk(str(saved))
    prints = {view: hr.hf(VIEWS[view](mapped)).fingerprint() for view in VIEWS}
    assert hr.hf(again).fingerprint() == prints["whole"] == prints["renamed"] == prints["formatted"]
    assert len(set(prints.values())) == len(VIEWS) - 2
    assert hr.hf(in_memory()).fingerprint() == hr.hf(in_memory()).fingerprint() != prints["whole"]
    assert hr.hf(in_memory(range(1, 25))).fingerprint() != hr.hf(in_memory()).fingerprint()
    assert len({bytes(row) for row in identities(hr.hf(mapped))}) == SIZE


def test_a_file_that_was_changed_has_other_samples(mapped: Any, saved: Path) -> None:
    before, listed = hr.hf(mapped), hr.hf(mapped).listing()
    prints, names = before.fingerprint(), identities(before)
    (first, *_) = sorted(saved.glob("data-*.arrow"))
    os.utime(first, ns=(5, 5))
    after = hr.hf(mapped)
    assert after.fingerprint() != prints and after.listing() == listed
    assert (identities(after) != names).any(axis=1).tolist() == [True] * 8 + [False] * 16


def test_images_that_are_files(tmp_path: Path) -> None:
    paths = []
    for number in range(6):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(blob(number))
        paths.append(str(path))
    cells: list[Any] = [{"bytes": None, "path": path} for path in paths]
    cells[2] = {"bytes": blob(2), "path": None}
    cells[4] = None
    cells[5] = {"bytes": None, "path": "hf://somewhere/5.jpg"}
    features = datasets.Features({"image": datasets.Image()})
    source = hr.hf(datasets.Dataset.from_dict({"image": cells}, features=features), target=None)
    assert source.targets is None
    first, second, third, fourth, fifth, sixth = source.read_many(range(6))
    assert [bytes(data) for data in (first, second, third, fourth)] == [blob(number) for number in range(4)]
    assert isinstance(fifth, ValueError) and "neither bytes nor a path" in str(fifth)
    assert isinstance(sixth, OSError) and "no local file" in str(sixth)
    assert source.identity(0) == hr.files(paths).identity(0), "a file is one sample, wherever it is named"
    before = source.fingerprint()
    os.utime(paths[0], ns=(5, 5))
    assert source.fingerprint() != before


def test_plain_bytes_and_other_targets(mapped: Any) -> None:
    raw = datasets.Dataset.from_dict(
        {"data": [blob(3), blob(4)], "pair": [[1, 2], [3, 4]], "maybe": [1, None], "share": [0.5, 1.5]},
        features=datasets.Features(
            {
                "data": datasets.Value("binary"),
                "pair": datasets.Sequence(datasets.Value("int64")),
                "maybe": datasets.Value("int64"),
                "share": datasets.Value("float32"),
            }
        ),
    )
    source = hr.hf(raw, "data", "share")
    assert [bytes(data) for data in source.read_many([1, 0])] == [blob(4), blob(3)]
    assert source.name(1) == "data[1]" and source.targets.dtype == np.float32
    assert hr.hf(raw, "data", "maybe").targets == [1, None]
    assert np.array_equal(hr.hf(raw, "data", "pair").targets, [[1, 2], [3, 4]])
    assert hr.hf(mapped, target="text").targets == [str(number) for number in range(SIZE)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda d: hr.hf(datasets.DatasetDict(train=d)),
            r"choose one of its splits, as in dataset\['train'\]",
        ),
        (lambda d: hr.hf(d.to_iterable_dataset()), "got a IterableDataset"),
        (lambda d: hr.hf(d, image="img"), "image='img'.*columns image, label, text"),
        (lambda d: hr.hf(d, target="y"), "target=None"),
        (lambda d: hr.hf(d, image="label"), "a column of int64 is neither"),
        (lambda d: hr.hf(d.with_transform(lambda batch: batch)), "has a transform"),
        (lambda d: hr.hf(d.select([])), "is empty"),
    ],
)
def test_what_is_no_source_is_refused(mapped: Any, wrong: Any, says: str) -> None:
    with pytest.raises(hr.OptionError, match=says):
        wrong(mapped)


@pytest.mark.parametrize("cache", [None, "16MiB"])
def test_a_recipe_over_a_dataset(mapped: Any, tmp_path: Path, cache: str | None) -> None:
    numbers = mapped.shuffle(seed=1)
    order = numbers_of(numbers)
    paths = []
    for number in order:
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(blob(number))
        paths.append(path)
    steps = [hr.image.random_resized_crop(16), hr.image.horizontal_flip()]
    ours = hr.Recipe(hr.hf(numbers), hr.image.decode(), steps)
    theirs = hr.Recipe(hr.files(paths, [number % 3 for number in order]), hr.image.decode(), steps)
    epochs = []
    for recipe in (ours, theirs):
        with hr.DataLoader(recipe, batch_size=5, shuffle=True, seed=2, num_workers=1, cache=cache) as loader:
            epochs.append([[part.clone() for part in batch] for _ in range(2) for batch in loader])
            for _ in range(8):  # (a sample for which there was no block that is large enough comes in later)
                if cache and loader.stats().cache["decoded"].samples < SIZE:
                    list(loader)
            assert not cache or loader.stats().cache["decoded"].samples == SIZE
    for one, other in zip(*epochs, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert ours.share_key(Form.DECODED) == theirs.share_key(Form.DECODED)


def test_a_file_that_was_cut_off_is_a_bad_sample(tmp_path: Path) -> None:
    in_memory().save_to_disk(str(tmp_path), num_shards=1)
    dataset = datasets.load_from_disk(str(tmp_path))
    recipe = hr.Recipe(hr.hf(dataset), hr.image.decode(), [hr.image.resize((8, 8))])
    (file,) = tmp_path.glob("*.arrow")
    size = file.stat().st_size
    assert isinstance(recipe.source, ArrowSource)
    data = recipe.source.read_many([0])[0]
    assert Image.open(io.BytesIO(data)).size == (50, 40)
    os.truncate(file, size // 2)
    with hr.DataLoader(recipe, batch_size=6, num_workers=1, on_error="skip", error_budget=SIZE) as loader:
        rows = sum(len(labels) for _, labels in loader)
        bad = loader.bad_samples
    assert 0 < rows < SIZE and rows + len(bad) == SIZE
    assert bad[-1].index == SIZE - 1 and "Bad address" in bad[-1].reason
