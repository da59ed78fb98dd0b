"""How archives elsewhere are read through: few requests where members are small, few bytes where they are large."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.errors import NotNow
from headrace.sources.archives import patterns, windows
from tests.sources.archives.helpers import (
    SIZE,
    CountingStorage,
    image,
    members,
    write_shards,
    write_tar,
    write_zip,
)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingStorage:
    storage = CountingStorage(tmp_path)

    def storage_of(what: Any, max_bytes: int, **options: Any) -> CountingStorage:
        storage.options = options  # type: ignore[attr-defined]
        return storage

    monkeypatch.setattr(patterns, "storage_of", storage_of)
    return storage


def test_shards_elsewhere(tmp_path: Path, bucket: CountingStorage) -> None:
    write_shards(tmp_path)
    for urls in ("s3://bucket/", "s3://bucket", "s3://bucket/train-{0000..0002}.tar"):
        source = hr.shards(urls, storage_options={"region": "x"})
        assert [bytes(one) for one in source.read_many(range(SIZE))] == [image(at) for at in range(SIZE)]
        assert source.targets.tolist() == [at % 3 for at in range(SIZE)]
    assert bucket.options == {"storage_options": {"region": "x"}}  # type: ignore[attr-defined]
    assert source.root == "s3://bucket" and source.name(0) == "train-0000.tar:dog/0000.jpg"
    assert not list(tmp_path.glob("*.hridx")), "indexes of what lies elsewhere lie here"
    assert len(list(Path(os.environ["XDG_CACHE_HOME"], "headrace", "indexes").iterdir())) == 3
    bucket.reads.clear()
    source = hr.shards("s3://bucket/")
    assert source.targets.tolist() == [at % 3 for at in range(SIZE)]
    assert not bucket.reads, "of what is indexed nothing is read, targets neither"
    source.read_many([3])
    (where,) = source.locate([3])
    assert where is not None and bucket.reads == [(where.what, where.start, len(image(3)))]


def test_small_members_take_few_requests(tmp_path: Path, bucket: CountingStorage) -> None:
    write_tar(tmp_path / "x.tar", [(f"{at:05d}.jpg", bytes(700)) for at in range(6200)])
    size = (tmp_path / "x.tar").stat().st_size
    hr.shards("s3://bucket/x.tar")
    assert size > 9 << 20
    assert len(bucket.reads) <= 4 and bucket.bytes_read <= size + 4 * 512


def test_large_members_are_skipped(tmp_path: Path, bucket: CountingStorage) -> None:
    with open(tmp_path / "x.tar", "wb") as file:  # with holes, so that it takes no room
        for at in range(30):
            from headrace.core.tar import header_of

            file.write(header_of(b"%05d.jpg" % at, 8 << 20))
            file.seek(8 << 20, os.SEEK_CUR)
        file.write(bytes(1024))
    hr.shards("s3://bucket/x.tar")
    assert len(bucket.reads) <= 32
    assert bucket.bytes_read <= 30 * (1 << 16) + (4 << 20)


def test_zips_elsewhere(tmp_path: Path, bucket: CountingStorage) -> None:
    write_zip(tmp_path / "x.zip", [*members(), *((f"{at:05d}.png", bytes(900)) for at in range(2000))])
    source = hr.shards("s3://bucket/x.zip", image="jpg")
    assert len(bucket.reads) <= 5
    assert [bytes(one) for one in source.read_many(range(SIZE))] == [image(at) for at in range(SIZE)]


def test_more_targets_take_few_requests(tmp_path: Path, bucket: CountingStorage) -> None:
    write_tar(tmp_path / "x.tar", members(range(300)))
    hr.shards("s3://bucket/x.tar")
    bucket.reads.clear()
    assert hr.shards("s3://bucket/x.tar", target="txt").targets[7] == "picture № 7"
    assert len(bucket.reads) <= 2


def test_what_storage_does_not_give_just_now_is_asked_for_again(
    tmp_path: Path, bucket: CountingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows.time, "sleep", lambda seconds: None)
    write_tar(tmp_path / "x.tar", members())
    bucket.failures = [NotNow("busy"), ConnectionResetError("gone"), TimeoutError("slow")]
    assert len(hr.shards("s3://bucket/x.tar")) == SIZE
    bucket.failures = [PermissionError(13, "no")]
    os.utime(tmp_path / "x.tar", ns=(1, 1))
    with pytest.raises(PermissionError):
        hr.shards("s3://bucket/x.tar")


def test_patterns_of_files_are_none_of_buckets(bucket: CountingStorage) -> None:
    with pytest.raises(hr.OptionError, match="buckets have no such patterns"):
        hr.shards("s3://bucket/train-*.tar")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{08..11}", ["a-08", "a-09", "a-10", "a-11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("plain{}", ["plain{}"]),
        ("x{y}", ["x{y}"]),
        ("{,-x}", ["", "-x"]),
        ("{-1..1}", ["-1", "0", "1"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert list(patterns.braces(pattern)) == names


def test_braces_that_stand_for_too_much() -> None:
    with pytest.raises(hr.OptionError, match="more than 1000000 names"):
        list(patterns.braces("{0..99999999}"))
