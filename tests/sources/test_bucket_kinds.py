"""Buckets of all kinds, each from a real server: the same source behaves alike.

Google's storage speaks, beside its own, the protocol that this library uses for it: that of S3, which the S3 server
answers where no signature is asked for.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import headrace as hr
from headrace.sources.buckets import cached
from headrace.sources.buckets.errors import Changed
from headrace.sources.location import Location
from headrace.sources.storage import storage_of
from tests.sources.azure_server import azure_server
from tests.sources.s3_server import PUBLIC, running

_numbers = itertools.count()
COUNT = 40


class Bucket(NamedTuple):
    url: str
    options: dict[str, Any]
    put: Callable[[Mapping[str, bytes]], None]
    """Objects, by their names below the URL."""
    elsewhere: str
    """A bucket that is not there."""


def _s3(prefix: str) -> Bucket:
    server = running()
    return Bucket(
        f"s3://tests/{prefix}",
        server.options,
        lambda objects: server.put(f"tests/{prefix}", objects),
        "s3://none",
    )


def _s3_public(prefix: str) -> Bucket:
    server = running()
    options = {"endpoint": server.endpoint, "skip_signature": True, "region": "us-east-1"}
    put = lambda objects: server.put(f"{PUBLIC}/{prefix}", objects)  # noqa: E731
    return Bucket(f"s3://{PUBLIC}/{prefix}", options, put, "")


def _gs(prefix: str) -> Bucket:
    server = running()
    account = {
        "gcs_base_url": server.endpoint,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    options = {"service_account_key": json.dumps(account), "skip_signature": True, "allow_http": True}
    put = lambda objects: server.put(f"{PUBLIC}/{prefix}", objects)  # noqa: E731
    return Bucket(f"gs://{PUBLIC}/{prefix}", options, put, "")


def _az(prefix: str) -> Bucket:
    server = azure_server()
    return Bucket(
        f"az://{server.container}/{prefix}",
        server.options,
        lambda objects: server.put(prefix, objects),
        "az://none",
    )


@pytest.fixture(
    params=[
        pytest.param(_s3, id="s3"),
        pytest.param(_s3_public, id="s3, public"),
        pytest.param(_gs, id="gs, public"),
        pytest.param(_az, id="az", marks=pytest.mark.slow),
    ]
)
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return request.param(f"kinds/{os.getpid()}-{next(_numbers)}")


def name(at: int) -> str:
    return f"{('cat', 'dog ü+%')[at % 2]}/{at:03}.bin"


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    bucket.put({name(at): np.int64(at).tobytes() * 4 for at in range(COUNT)})
    return bucket


def decode(data: Any) -> Any:
    return np.frombuffer(data, np.int64, 1).copy()


def folder(bucket: Bucket, **more: Any) -> Any:
    return hr.folder(bucket.url, extensions=[".bin"], storage_options=bucket.options, **more)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch(filled: Bucket, num_workers: int) -> None:
    source = folder(filled)
    assert source.classes == ["cat", "dog ü+%"] and len(source) == COUNT
    recipe = hr.Recipe(source, decode=decode)
    with hr.DataLoader(recipe, batch_size=8, shuffle=True, num_workers=num_workers) as loader:
        for _ in range(2):
            seen = [
                (int(one), int(label))
                for batch, labels in loader
                for one, label in zip(batch, labels, strict=True)
            ]
            assert sorted(seen) == [(at, at % 2) for at in range(COUNT)]


def test_parts_and_what_is_not_there(filled: Bucket) -> None:
    url = filled.url.encode()
    found = storage_of(url, storage_options=filled.options).read(
        [
            Location(url + b"/cat/002.bin", start=8, length=16),
            Location(url + b"/cat/002.bin", start=30, length=8),
            Location(url + b"/cat/none.bin"),
            Location(url + b"/cat/004.bin"),
        ]
    )
    assert found[0] == np.int64(2).tobytes() * 2 and found[3] == np.int64(4).tobytes() * 4
    assert isinstance(found[1], OSError) and "ends before" in str(found[1])
    assert isinstance(found[2], FileNotFoundError) and "no such object" in str(found[2])


def test_an_object_that_was_changed_is_never_served(filled: Bucket) -> None:
    source = folder(filled)
    filled.put({"cat/000.bin": b"another!"})
    (error, other) = source.read_many([0, 1])
    assert isinstance(error, Changed) and "refresh=True" in str(error)
    assert other == np.int64(2).tobytes() * 4
    assert folder(filled, refresh=True).read_many([0]) == [b"another!"]


def test_a_listing_that_was_kept_is_looked_at(filled: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder(filled)
    monkeypatch.setattr(cached, "FRESH", -1.0)
    again = folder(filled)
    assert again._objects.manifest.header.listed == first._objects.manifest.header.listed, "it holds"
    filled.put({"dog ü+%/999.bin": b"new one!"})
    assert len(folder(filled)) == COUNT + 1


def test_shards(bucket: Bucket) -> None:
    for shard in range(2):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for at in range(shard, COUNT, 2):
                for ending, content in (("bin", np.int64(at).tobytes() * 4), ("cls", str(at % 5).encode())):
                    info = tarfile.TarInfo(f"{at:03}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        bucket.put({f"train-{shard}.tar": packed.getvalue()})
    source = hr.shards(bucket.url + "/train-{0..1}.tar", storage_options=bucket.options, image="bin")
    with hr.DataLoader(hr.Recipe(source, decode=decode), batch_size=8, num_workers=1) as loader:
        seen = sorted(
            (int(one), int(label))
            for batch, labels in loader
            for one, label in zip(batch, labels, strict=True)
        )
    assert seen == [(at, at % 5) for at in range(COUNT)]


def test_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    if not bucket.elsewhere:
        pytest.skip("who does not sign is told nothing of other buckets")
    with pytest.raises((FileNotFoundError, hr.HeadraceError)) as raised:
        hr.folder(bucket.elsewhere, extensions=[".bin"], storage_options=bucket.options)
    assert "none" in str(raised.value)
