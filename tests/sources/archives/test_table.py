"""Parquet and Arrow files as sources."""

from __future__ import annotations

import builtins
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.errors import OptionError
from headrace.sources.archives import convert, patterns
from tests.descriptors import none_left_open
from tests.sources.archives.helpers import SIZE, CountingStorage, image

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headrace[table]'")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

NAMES = ["cat", "dog", "owl"]
FEATURES = {
    "info": {"features": {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}}
}


def made(numbers: Any = range(SIZE), *, plain: bool = False) -> Any:
    rows = [
        {
            "image": image(at) if plain else {"bytes": image(at), "path": f"{at}.jpg"},
            "label": at % 3,
            "name": f"n{at}",
            "large": bytes(3000),
        }
        for at in numbers
    ]
    return pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": json.dumps(FEATURES)})


def write(table: Any, path: Path, kind: str) -> Path:
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=3)
    elif kind == "feather":
        feather.write_feather(table, str(path), compression="lz4")
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    return path


ENDINGS = {"parquet": "parquet", "feather": "feather", "file": "arrow", "stream": "arrow"}


def copies() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"], "headrace", "tables").glob("*"))


def contents(source: Any) -> list[bytes]:
    return [bytes(one) for one in source.read_many(range(len(source)))]


@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("plain", [False, True])
def test_files_of_every_kind(tmp_path: Path, kind: str, plain: bool) -> None:
    ending = ENDINGS[kind]
    write(made(range(4), plain=plain), tmp_path / f"train-0.{ending}", kind)
    write(made(range(4, SIZE), plain=plain), tmp_path / f"train-1.{ending}", kind)
    for paths in (tmp_path, f"{tmp_path}/train-*.{ending}", f"{tmp_path}/train-{{0..1}}.{ending}"):
        source = hr.table(paths)
        assert contents(source) == [image(at) for at in range(SIZE)]
        assert source.targets.tolist() == [at % 3 for at in range(SIZE)] and source.classes == NAMES
    assert source.root == str(tmp_path) and "7 samples" in repr(source)
    if not plain:
        assert source.name(5) == "image[5] (5.jpg)"
    assert len(copies()) == (2 if kind in ("parquet", "feather") else 0), (
        "Arrow files are read where they lie"
    )
    for where, at in zip(source.locate([0, 6]), (0, 6), strict=True):
        assert where is not None and where.length == len(image(at))
        assert where.what.endswith(b".arrow") if copies() else where.what.startswith(os.fsencode(tmp_path))
    copy = pickle.loads(pickle.dumps(source))
    assert contents(copy) == contents(source) and copy.fingerprint() == source.fingerprint()
    assert len(pickle.dumps(source)) < 2000


def test_other_targets(tmp_path: Path) -> None:
    path = write(made(), tmp_path / "x.parquet", "parquet")
    assert hr.table(path, target="name").targets == [f"n{at}" for at in range(SIZE)]
    assert hr.table(path, target="name").classes is None
    assert hr.table(path, target=None).targets is None


def test_only_what_is_needed_is_copied_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(made(), tmp_path / "x.parquet", "parquet")
    hr.table(path)
    (copy,) = copies()
    assert copy.stat().st_size < SIZE * 3000, "the column of large cells is left out"
    monkeypatch.setattr(convert, "_convert", lambda *_: pytest.fail("it is there"))
    hr.table(path)


def test_a_file_that_changes_is_copied_again(tmp_path: Path) -> None:
    path = write(made(), tmp_path / "x.parquet", "parquet")
    before = hr.table(path)
    (first,) = copies()
    write(made(range(3)), path, "parquet")
    os.utime(path, ns=(1, 1))
    assert contents(hr.table(path)) == [image(at) for at in range(3)]
    (second,) = copies()
    assert first != second, "the copy of what was there before is gone"
    assert contents(before) == [image(at) for at in range(SIZE)], "but not for who has it"


def test_nothing_is_left_of_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(made(), tmp_path / "x.parquet", "parquet")
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(OptionError, match=r"100 B are free; make room, or set XDG_CACHE_HOME"):
        hr.table(path)
    monkeypatch.undo()

    def interrupted(*_: Any) -> Iterator[Any]:
        yield from ()
        raise KeyboardInterrupt

    real = convert._read

    def read(*given: Any) -> Any:
        return (*real(*given)[:3], interrupted())

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(convert, "_read", read)
    with pytest.raises(KeyboardInterrupt):
        hr.table(path)
    assert not copies()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1" + bytes(100))
    monkeypatch.setattr(convert, "_read", real)
    with pytest.raises(OptionError, match=r"broken.parquet'\) cannot be read"):
        hr.table(tmp_path / "broken.parquet")
    assert not copies()
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1" + bytes(100))
    with pytest.raises(OptionError, match=r"broken.arrow'\) cannot be read"):
        hr.table(tmp_path / "broken.arrow")


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    for kind in ("parquet", "stream"):
        path = write(made(), tmp_path / f"x.{ENDINGS[kind]}", kind)
        with pytest.raises(OptionError, match=r"image='img'.*columns image, label, name, large"):
            hr.table(path, image="img")
        with pytest.raises(OptionError, match=r"target='y'.*target=None for none"):
            hr.table(path, target="y")
        with pytest.raises(OptionError, match=r"a column of int64 is neither one of images"):
            hr.table(path, image="label", target=None)
        with pytest.raises(OptionError, match="one column"):
            hr.table(path, target="image")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"no \.parquet nor"):
        hr.table(tmp_path / "empty")
    none = write(made().slice(0, 0), tmp_path / "none.arrow", "stream")
    with pytest.raises(OptionError, match="no rows"):
        hr.table(none)


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError, match=r"table\(\) needs pyarrow; install it with: pip install 'headrace\[table\]'"
    ):
        hr.table(tmp_path / "x.parquet")


def test_folders_that_datasets_were_saved_to(tmp_path: Path) -> None:
    """Files as their notes say, and not as they are called."""
    write(made(range(4, SIZE)), tmp_path / "data-00000.arrow", "stream")
    write(made(range(4)), tmp_path / "data-00001.arrow", "stream")
    write(made(range(2)), tmp_path / "cache-1.arrow", "stream")
    state = {"_data_files": [{"filename": "data-00001.arrow"}, {"filename": "data-00000.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    source = hr.table(tmp_path)
    assert contents(source) == [image(at) for at in range(SIZE)] and source.classes == NAMES
    again = hr.Recipe.from_dict(hr.Recipe(source, hr.image.decode()).to_dict())
    assert again.source.fingerprint() == source.fingerprint()
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(OptionError, match=r"state\.json cannot be understood"):
        hr.table(tmp_path)
    both = tmp_path / "both"
    both.mkdir()
    (both / "dataset_dict.json").write_text("{}")
    with pytest.raises(OptionError, match="several splits"):
        hr.table(both)


def test_what_datasets_save(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows = {
        "image": [{"bytes": image(at), "path": None} for at in range(SIZE)],
        "label": [at % 3 for at in range(SIZE)],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    dataset.to_parquet(str(tmp_path / "x.parquet"))
    for path in (tmp_path / "saved", tmp_path / "x.parquet"):
        source = hr.table(path)
        assert contents(source) == [image(at) for at in range(SIZE)]
        assert source.classes == NAMES and source.targets.tolist() == rows["label"]


@pytest.mark.parametrize("kind", ENDINGS)
def test_tables_elsewhere(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CountingStorage(tmp_path)
    monkeypatch.setattr(patterns, "storage_of", lambda *_, **__: storage)
    write(made(), tmp_path / f"x.{ENDINGS[kind]}", kind)
    source = hr.table("s3://bucket/")
    assert contents(source) == [image(at) for at in range(SIZE)]
    assert source.targets.tolist() == [at % 3 for at in range(SIZE)]
    storage.reads.clear()
    assert contents(hr.table(f"s3://bucket/x.{ENDINGS[kind]}")) == contents(source)
    assert not storage.reads, "it has been copied"


def test_many_files_take_no_descriptors(tmp_path: Path) -> None:
    for at in range(30):
        write(made(range(at % SIZE, at % SIZE + 1)), tmp_path / f"{at:02d}.arrow", "stream")
    with none_left_open(but=1):
        source = hr.table(tmp_path)
    assert contents(source) == [image(at % SIZE) for at in range(30)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_recipe_over_a_table(tmp_path: Path, num_workers: int) -> None:
    path = write(made(), tmp_path / "x.parquet", "parquet")
    recipe = hr.Recipe(hr.table(path), hr.image.decode(), [hr.image.resize((8, 8))])
    with hr.DataLoader(recipe, batch_size=3, num_workers=num_workers, cache="4MiB") as loader:
        labels = [label for _ in range(2) for _, batch in loader for label in batch.tolist()]
    assert labels == [at % 3 for at in range(SIZE)] * 2
