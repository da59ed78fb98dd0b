"""What holds for every source, and for every one that says where its samples lie."""

from __future__ import annotations

import errno
import importlib
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import sources
from headrace.recipes.subset import SubsetSource
from headrace.sources import FileReader, Location, Source, files, folder, synthetic
from tests.recipes.helpers import MemorySource, jpeg, picture
from tests.sources.archives.helpers import members, write_shards, write_zip
from tests.sources.s3_server import running

SIZE = 7


def tree(root: Path) -> list[Path]:
    paths = [root / ("cat" if at % 2 else "dog") / f"{at}.jpg" for at in range(SIZE)]
    for at, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(picture(20 + at, 30, at)))
    return paths


def hugging_face(root: Path) -> Any:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")
    paths = tree(root)
    rows: dict[str, list[Any]] = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in paths[:-1]]
    }
    rows["image"].append({"bytes": None, "path": str(paths[-1])})
    made = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    made.save_to_disk(str(root / "saved"))
    import headrace as hr

    return hr.hf(datasets.load_from_disk(str(root / "saved")), target=None)


def in_a_bucket(root: Path) -> Any:
    """The same files, as objects of a real bucket."""
    server, bucket = running(), f"conformance/{os.getpid()}-{root.name}"
    paths = tree(root)
    server.put(bucket, {str(path.relative_to(root)): path.read_bytes() for path in paths})
    return server, bucket, paths


def bucket_folder(root: Path) -> Any:
    server, bucket, _ = in_a_bucket(root)
    return folder(f"s3://{bucket}", storage_options=server.options)


def bucket_files(root: Path) -> Any:
    server, bucket, paths = in_a_bucket(root)
    urls = [f"s3://{bucket}/{path.relative_to(root)}" for path in paths]
    return files(urls, storage_options=server.options)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What is read back from a pickle has the credentials of the environment."""
    if "bucket" in request.node.name:
        for name, value in running().environment().items():
            monkeypatch.setenv(name, value)


def shards(root: Path, **options: Any) -> Any:
    import headrace as hr

    return hr.shards(write_shards(root), **options)


def zipped(root: Path, method: int = zipfile.ZIP_STORED, **options: Any) -> Any:
    import headrace as hr

    return hr.shards(write_zip(root / "x.zip", members(), method), **options)


def table(root: Path, kind: str) -> Any:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import headrace as hr

    rows = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": 1} for path in tree(root)]
    made = pa.Table.from_pylist(rows)
    path = root / f"x.{kind}"
    if kind == "parquet":
        importlib.import_module("pyarrow.parquet").write_table(made, path, row_group_size=3)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, made.schema) as writer:
            writer.write_table(made, max_chunksize=3)
    return hr.table(path)


LOCATING: dict[str, Callable[[Path], Any]] = {
    "files": lambda root: files(tree(root)),
    "a folder": lambda root: tree(root) and folder(root),
    "a part of a folder": lambda root: tree(root) and SubsetSource(folder(root), [4, 0, 4, 6, 1, 2, 3]),
    "made up": lambda _: synthetic(SIZE, bytes_per_sample=(20, 60)),
    "of Hugging Face": hugging_face,
    "tar shards": shards,
    "a part of tar shards": lambda root: SubsetSource(shards(root), [4, 0, 4, 6, 1, 2, 3]),
    "several fields of tar shards": lambda root: shards(root, fields=["jpg", "json"]),
    "a folder in tar shards": lambda root: shards(root, layout="folder"),
    "a zip archive": zipped,
    "an Arrow file": lambda root: table(root, "arrow"),
    "a Parquet file": lambda root: table(root, "parquet"),
    "a folder of a bucket": bucket_folder,
    "files in a bucket": bucket_files,
}
INFLATED: dict[str, Callable[[Path], Any]] = {
    "a zip archive that is deflated": lambda root: zipped(root, zipfile.ZIP_DEFLATED),
    "several fields of a zip archive": lambda root: zipped(root, fields=["jpg", "txt"]),
}
"""They could say where samples lie, but none of these lies anywhere as it is read."""
OTHERS: dict[str, Callable[[Path], Any]] = {
    "in memory": lambda _: MemorySource([bytes([at]) * 9 for at in range(SIZE)]),
    "a part of one in memory": lambda _: SubsetSource(
        MemorySource([b"%d" % at for at in range(10)]), range(SIZE)
    ),
}


@pytest.fixture(params=[*LOCATING, *INFLATED, *OTHERS])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return (LOCATING | INFLATED | OTHERS)[request.param](tmp_path)


@pytest.fixture(params=[*LOCATING])
def locating(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return LOCATING[request.param](tmp_path)


def read(source: Any, indices: Any) -> list[bytes]:
    found = source.read_many(indices)
    assert not any(isinstance(one, BaseException) for one in found)
    return [bytes(one) for one in found]


def test_samples_are_the_same_alone_together_and_in_any_order(source: Any) -> None:
    assert isinstance(source, Source)
    whole = read(source, range(SIZE))
    assert [read(source, [at])[0] for at in range(SIZE)] == whole
    assert read(source, np.arange(SIZE)[::-1]) == whole[::-1]
    assert read(source, [3, 3]) == [whole[3]] * 2
    assert source.read_many([]) == []


def test_only_some_sources_say_where_samples_lie(tmp_path: Path) -> None:
    for kind, make in OTHERS.items():
        assert sources.locating(make(tmp_path)) is None, kind


@pytest.mark.parametrize("kind", INFLATED)
def test_what_is_made_of_what_lies_there_has_an_identity_of_its_own(kind: str, tmp_path: Path) -> None:
    source = INFLATED[kind](tmp_path)
    assert source.locate(range(SIZE)) == [None] * SIZE
    found = [source.identity(at) for at in range(SIZE)]
    assert len({*found}) == SIZE
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.identity(at) for at in range(SIZE)] == found
    assert read(copy, range(SIZE)) == read(source, range(SIZE))


def test_locations_are_stable(locating: Any) -> None:
    assert sources.locating(locating) is locating
    found = locating.locate(range(SIZE))
    assert None not in found
    assert locating.locate(np.arange(SIZE)) == found
    assert [locating.locate([at])[0] for at in range(SIZE)] == found
    copy = pickle.loads(pickle.dumps(locating))
    assert copy.locate(range(SIZE)) == found
    assert [pickle.loads(pickle.dumps(one)) for one in found] == found
    assert locating.locate([]) == []
    locating.fingerprint()
    assert locating.locate(range(SIZE)) == found, "nothing has changed"


def test_locations_agree_with_identities(locating: Any) -> None:
    found = locating.locate(range(SIZE))
    assert [one.identity for one in found] == [os.fsencode(locating.identity(at)) for at in range(SIZE)]
    equal = {(one.identity, locating.identity(at)) for at, one in enumerate(found)}
    assert len({one for one, _ in equal}) == len({one for _, one in equal}) == len(equal)


def test_what_is_read_by_location_is_the_sample(locating: Any) -> None:
    reader = pickle.loads(pickle.dumps(locating.location_reader()))
    found = locating.locate([5, 0, 3, 3, 6])
    assert reader.read(found) == read(locating, [5, 0, 3, 3, 6])
    assert reader.read([]) == []


def test_a_file_that_changes_has_another_version(tmp_path: Path) -> None:
    (path, *_) = tree(tmp_path)
    source = files([path])
    (before,) = source.locate([0])
    os.utime(path, ns=(1, 1))
    (after,) = source.locate([0])
    assert before is not None and after is not None
    assert before.what == after.what == os.fsencode(path) and before.version != after.version


def test_what_cannot_be_read_is_the_same_error_by_location(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "large").write_bytes(bytes(5000))
    source = files([tmp_path / "none", tmp_path / "cat", tmp_path / "large"], max_bytes=4096)
    for one, other in zip(
        source.read_many(range(3)), source.location_reader().read(source.locate(range(3))), strict=True
    ):
        assert isinstance(one, OSError) and isinstance(other, OSError)
        assert (one.errno, str(one)) == (other.errno, str(other))


@given(data=st.data(), content=st.binary(max_size=200))
def test_parts_of_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts"
    path.write_bytes(content)
    start = data.draw(st.integers(0, len(content)))
    length = data.draw(st.none() | st.integers(0, len(content) - start))
    part, whole = Location(os.fsencode(path), b"", start, length), Location(os.fsencode(path))
    stop = None if length is None else start + length
    assert FileReader().read([part, whole]) == [content[start:stop], content]
    (beyond,) = FileReader().read([Location(os.fsencode(path), b"", start, len(content) - start + 1)])
    assert isinstance(beyond, OSError) and beyond.errno == errno.ENODATA and str(path) in str(beyond)
    assert len({one.identity for one in (part, whole)}) == (1 if part == whole else 2)


def test_of_a_part_only_the_part_counts_as_large(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(bytes(range(200)))
    name = os.fsencode(path)
    small, large, rest = FileReader(max_bytes=50).read(
        [Location(name, b"", 10, 50), Location(name, b"", 10, 51), Location(name, b"", 150)]
    )
    assert (small, rest) == (bytes(range(10, 60)), bytes(range(150, 200)))
    assert isinstance(large, OSError) and large.errno == errno.EFBIG
