"""The store over a real S3 server: archives and prefixes of shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.datastore import DataError, SourceChanged, Store, evict, overview
from tests.datastore.archives import read_tree, some_files, tar
from tests.datastore.looks import check_still

s3_server = pytest.importorskip("tests.sources.s3_server", reason="there are no buckets yet")


def test_archives_and_shards_of_a_bucket(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = s3_server.running()
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    bucket = "tests/datastore"
    shards = {"0.tar": tar(some_files(3, seed=1)), "x/1.tar": tar(some_files(3, seed=2))}
    s3.put(bucket, {"some.tar.gz": tar(some_files(64, 16_000), "w:gz")})
    s3.put(bucket, {f"shards/{name}": data for name, data in shards.items()})
    with Store(root, part=64 << 10) as store:
        assert read_tree(store.add("some", [f"s3://{bucket}/some.tar.gz"])) == some_files(64, 16_000)
        size = overview(store).bytes
        for number, url in enumerate([f"s3://{bucket}/shards/", f"s3://{bucket}/shards"]):
            assert read_tree(store.add(f"shards{number}", [url])) == shards
        assert overview(store).bytes - size < 1 << 20  # once
        for url in (f"s3://{bucket}/nothing", "s3://no-such-bucket-here/nothing"):
            with pytest.raises(DataError, match="nothing"):
                store.add("nothing", [url])
    with Store(root, part=64 << 10) as store:
        evict(store, "some")
        s3.put(bucket, {"some.tar.gz": tar(some_files(64, 16_000, seed=9), "w:gz")})
        with pytest.raises(SourceChanged, match="headrace data remove some"):
            store.use("some")
    everything = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert s3_server.SECRET.encode() not in everything
    check_still(root)
