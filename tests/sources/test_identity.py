"""Digests of identities: by them datasets know which samples they share."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from headrace.sources import files, folder, identities, synthetic
from headrace.sources import identity as module
from headrace.sources.local import FileSource
from headrace.sources.versions import versions


class Named:
    """A source of the user's own."""

    encoded = True
    targets = None

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def read_many(self, indices: object) -> list[bytes | BaseException]:
        raise AssertionError("identities need no bytes")

    def name(self, index: int) -> str:
        return "?"

    def identity(self, index: int) -> str:
        return self.names[index]

    def fingerprint(self) -> str:
        return ""


def test_each_is_the_digest_of_the_identity() -> None:
    source = files(["/data/a/1.jpg", "/data/b/2.jpg", "/data/a/3.jpg"])
    found = identities(source)
    assert found.shape == (3, 16)
    assert found.dtype == np.uint8
    for row, digest in enumerate(found):
        expected = hashlib.blake2b(source.identity(row).encode(), digest_size=16).digest()
        assert digest.tobytes() == expected


def test_samples_have_the_same_identity_in_every_order_subset_and_kind_of_source(tmp_path: Path) -> None:
    names = [b"cat/1.jpg", b"cat/\xff\xfe.jpg", "dog/ä.jpg".encode(), b"dog/4.jpg"]
    for name in names:
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    whole = folder(tmp_path)
    paths = [whole.name(index) for index in range(len(whole))]
    assert len(paths) == 4
    expected = identities(whole)
    assert len({row.tobytes() for row in expected}) == 4
    np.testing.assert_array_equal(identities(files(paths[::-1])), expected[::-1])
    np.testing.assert_array_equal(identities(files(paths[1:3], encoded=False)), expected[1:3])
    np.testing.assert_array_equal(identities(Named([whole.identity(at) for at in range(4)])), expected)


@pytest.mark.parametrize("change", ["content", "size"])
def test_a_file_that_changes_in_place_is_another_sample(tmp_path: Path, change: str) -> None:
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / name).write_bytes(b"old")
    source = folder(tmp_path, labels=False)
    listing, before, table = source.listing(), source.fingerprint(), identities(source)
    stat = os.stat(tmp_path / "2.jpg")
    if change == "content":
        (tmp_path / "2.jpg").write_bytes(b"new")
        os.utime(tmp_path / "2.jpg", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    else:
        (tmp_path / "2.jpg").write_bytes(b"newer")
        os.utime(tmp_path / "2.jpg", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    np.testing.assert_array_equal(identities(source), table)  # as they were when the fingerprint was taken
    for now in (folder(tmp_path, labels=False), source, files([tmp_path / "1.jpg", tmp_path / "2.jpg"])):
        assert now.fingerprint() != before
        assert now.listing() == listing
        assert (identities(now) == table).all(axis=1).tolist() == [True, False]


def test_many_files_are_looked_at_and_those_that_are_not_there_count_as_such(tmp_path: Path) -> None:
    paths = [os.fsencode(tmp_path / str(number)) for number in range(3000)]
    for number in range(0, 3000, 1000):
        (tmp_path / str(number)).write_bytes(b"." * number)
        os.utime(tmp_path / str(number), ns=(5, 7 + number))
    found = versions(paths)
    assert np.flatnonzero(found[:, 0] >= 0).tolist() == [0, 1000, 2000]
    assert found[[0, 1000, 2000, 1]].tolist() == [[0, 7], [1000, 1007], [2000, 2007], [-1, -1]]


def test_many_samples_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    source = files([f"/data/{number}" for number in range(25)])
    whole = identities(source)
    monkeypatch.setattr(module, "_BLOCK", 10)
    asked: list[int] = []
    many = FileSource.identity_bytes
    monkeypatch.setattr(
        FileSource, "identity_bytes", lambda self, at: asked.append(len(at)) or many(self, at)
    )
    np.testing.assert_array_equal(identities(source), whole)
    assert asked == [10, 10, 5]


def test_synthetic_samples_are_the_same_where_their_bytes_are() -> None:
    short, long = identities(synthetic(5, classes=2)), identities(synthetic(9, latency=0.1))
    np.testing.assert_array_equal(short, long[:5])
    other = identities(synthetic(5, bytes_per_sample=7))
    assert not (short == other).all(axis=1).any()


def test_any_text_is_an_identity() -> None:
    names = ["", "a", "\ud800", "\udcff", "\0", "日"]
    found = identities(Named(names))
    assert len({row.tobytes() for row in found}) == len(names)
    assert identities(Named([])).shape == (0, 16)
