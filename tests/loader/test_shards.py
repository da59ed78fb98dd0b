"""Loaders over archives: exact epochs, resume, and the batches of the same images in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace as hr
from headrace.core.forms import Form
from tests.loader.helpers import jpeg_folder
from tests.sources.archives.helpers import write_tar, write_zip

COUNT = 24
STEPS = [hr.image.random_resized_crop(16), hr.image.horizontal_flip()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and the same in shards."""
    root = tmp_path_factory.mktemp("data")
    jpeg_folder(root / "folder", COUNT)
    paths = sorted((root / "folder").rglob("*.jpg"))
    (root / "shards").mkdir()
    for shard in range(3):
        items = []
        for at in range(shard * 8, shard * 8 + 8):
            key = f"{at:03d}"
            items += [
                (f"{key}.jpg", paths[at].read_bytes()),
                (f"{key}.cls", paths[at].parent.name[-1].encode()),
                (f"{key}.json", json.dumps({"at": at, "name": f"n{at}"}).encode()),
                (f"{key}.txt", f"text {at}".encode()),
            ]
        write_tar(root / "shards" / f"{shard}.tar", items)
    write_zip(root / "x.zip", [(str(path.relative_to(root)), path.read_bytes()) for path in paths])
    return root


def drained(loader: Any) -> list[Any]:
    return [[part.clone() if isinstance(part, torch.Tensor) else part for part in batch] for batch in loader]


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            for a, b in zip(left, right, strict=True)
        )


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "cache": "16MiB"}])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_batches_are_those_of_the_folder(data: Path, kind: str, options: dict[str, Any]) -> None:
    there = hr.shards(data / "shards") if kind == "tar" else hr.shards(data / "x.zip", layout="folder")
    epochs = []
    for source in (hr.folder(data / "folder"), there):
        recipe = hr.Recipe(source, hr.image.decode(), STEPS)
        with hr.DataLoader(recipe, batch_size=5, shuffle=True, seed=3, **options) as loader:
            epochs.append(drained(loader) + drained(loader))
    assert_same(*epochs)


def test_epochs_are_exact_and_go_on_in_the_middle(data: Path) -> None:
    source = hr.shards(data / "shards", target="json:at")
    recipe = hr.Recipe(source, hr.image.decode(), STEPS)

    def make(batch_size: int = 5) -> Any:
        return hr.DataLoader(recipe, batch_size=batch_size, shuffle=True, seed=3, num_workers=1)

    with make() as loader:
        whole = drained(loader)
        assert sorted(number for batch in whole for number in batch[1].tolist()) == list(range(COUNT))
    with make() as loader:
        taken = []
        for batch in loader:
            taken.append([part.clone() for part in batch])
            if len(taken) == 2:
                state = loader.state_dict()
                break
    # As after the end of the process: another source, of the same shards.
    recipe = hr.Recipe(hr.shards(data / "shards", target="json:at"), hr.image.decode(), STEPS)
    with make() as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert_same(taken + drained(loader), whole)
    with make(batch_size=7) as loader:
        loader.load_state_dict(state)
        rest = [number for batch in loader for number in batch[1].tolist()]
    seen = [number for batch in taken for number in batch[1].tolist()]
    assert sorted(seen + rest) == list(range(COUNT))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_any_kind(data: Path, method: str) -> None:
    recipe = hr.Recipe(hr.shards(data / "shards"), hr.image.decode(), [hr.image.resize((8, 8))])
    with hr.DataLoader(recipe, batch_size=8, num_workers=1, multiprocessing_context=method) as loader:
        found = drained(loader)
    with hr.DataLoader(recipe, batch_size=8, num_workers=0) as loader:
        assert_same(found, drained(loader))


@pytest.mark.parametrize("cache", [None, "16MiB"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_several_fields(
    data: Path, tmp_path: Path, kind: str, cache: str | None, num_workers: int
) -> None:
    source = hr.shards(data / "shards", fields=["jpg", "json", "txt"])
    if kind == "zip":
        items = []
        for at in range(COUNT):
            (path,) = (data / "folder").rglob(f"{at:03}.jpg")
            items += [
                (f"{at}.jpg", path.read_bytes()),
                (f"{at}.txt", f"text {at}".encode()),
                (f"{at}.cls", b"1"),
            ]
            items += [(f"{at}.json", json.dumps({"at": at, "name": f"n{at}"}).encode())]
        source = hr.shards(write_zip(tmp_path / "y.zip", items), fields=["jpg", "json", "txt"])
    decode = hr.fields(jpg=[hr.image.decode(), hr.image.resize((9, 7))], json=json.loads, txt=bytes.decode)
    with hr.DataLoader(
        hr.Recipe(source, decode), batch_size=7, shuffle=True, seed=1, num_workers=num_workers, cache=cache
    ) as loader:
        for epoch in range(2):
            seen = []
            for values, labels in loader:
                numbers = values["json"]["at"].tolist()
                assert values["jpg"].shape == (len(numbers), 3, 9, 7) and values["jpg"].dtype == torch.uint8
                assert values["txt"] == [f"text {at}" for at in numbers]
                assert values["json"]["name"] == [f"n{at}" for at in numbers]
                assert len(labels) == len(numbers)
                seen += numbers
            assert sorted(seen) == list(range(COUNT)), epoch
        if cache is not None and num_workers:
            stats = loader.stats().cache
            assert sum(form.samples for form in stats.values()) >= COUNT


def test_texts_are_targets(data: Path) -> None:
    recipe = hr.Recipe(hr.shards(data / "shards", target="txt"), hr.image.decode(), [hr.image.resize((8, 8))])
    with hr.DataLoader(recipe, batch_size=6, num_workers=1) as loader:
        batches = drained(loader)
    assert [list(batch[1]) for batch in batches] == [
        [f"text {at}" for at in range(start, start + 6)] for start in range(0, COUNT, 6)
    ]
    assert all(batch[0].is_contiguous(memory_format=torch.channels_last) for batch in batches)


def test_recipes_over_shards_can_be_written_down(data: Path) -> None:
    for source in (
        hr.shards(data / "shards", target="json:at"),
        hr.shards(data / "x.zip", layout="folder", inside="folder"),
        hr.shards(str(data / "shards" / "{0..1}.tar"), fields=["jpg", "txt"], target=None),
    ):
        recipe = hr.Recipe(source, hr.image.decode())
        again = hr.Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        assert again.to_dict() == recipe.to_dict()
        for form in (Form.ENCODED, Form.AUGMENTED):
            assert again.fingerprint(form) == recipe.fingerprint(form)
        assert again.profile_key == recipe.profile_key


def test_parts_of_shards_share_what_they_have_in_common(data: Path) -> None:
    recipe = hr.Recipe(hr.shards(data / "shards"), hr.image.decode(), STEPS)
    some = hr.Recipe(hr.shards(data / "shards" / "1.tar"), hr.image.decode(), STEPS)
    assert [some.source.identity(at) for at in range(8)] == [
        recipe.source.identity(at) for at in range(8, 16)
    ]
    assert [recipe.subset(range(8, 16)).source.identity(at) for at in range(8)] == [
        some.source.identity(at) for at in range(8)
    ]
